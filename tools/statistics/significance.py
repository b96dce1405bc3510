"""Paired tests, and Holm's correction for asking several questions at once."""

from collections.abc import Sequence

import numpy as np

from .metrics import Floats


def mcnemar_exact(only_first: int, only_second: int) -> float:
    """Two-sided exact McNemar p-value from the rows that exactly one of the two got right; 1 with no such row."""
    discordant = only_first + only_second
    if discordant == 0:
        return 1.0
    from scipy.stats import binom  # costs half a second to import; the server starts without it

    return min(1.0, 2 * float(binom.cdf(min(only_first, only_second), discordant, 0.5)))


def permutation_p_value(swapped: Floats, observed: float) -> float:
    """Two-sided p-value of a paired permutation test.

    Args:
        swapped: differences after the two predictions were swapped on rows chosen by coin tosses.
        observed: the difference without swaps.

    With B tosses it is at least 1 / (B + 1), and with few rows it cannot be small: no resampling claims more.
    """
    finite = swapped[~np.isnan(swapped)]
    as_large = int((np.abs(finite) >= abs(observed) - 1e-12).sum())
    return (as_large + 1) / (len(finite) + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p-values, in the given order (S. Holm, Scand. J. Statist. 6, 1979)."""
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted
