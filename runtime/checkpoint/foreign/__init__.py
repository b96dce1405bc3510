"""Checkpoints of other libraries, read for migration. Nothing in them is unpickled but tensors and plain data."""
