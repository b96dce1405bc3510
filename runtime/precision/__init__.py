"""Numeric precision of forward and backward."""
