"""Optimizer, scheduler and the accumulation window that decides when they step."""
