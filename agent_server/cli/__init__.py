"""The terminal: what humans do with forerun, approvals among it."""
