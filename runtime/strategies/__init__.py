"""Strategies: how a model is spread over the ranks. One file each, found by name in registry.py."""
