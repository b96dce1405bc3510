"""Loaders that every rank reads its own share of, and their position."""
