"""The policy: which launches need which assurance level, what they may cost together, and what counts as known."""

from .levels import SHIPPED, require_level_for_mode

__all__ = ["SHIPPED", "require_level_for_mode"]
