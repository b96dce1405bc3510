"""Average of averages: does a claimed value come out when means of batches are averaged?"""

import math
from collections.abc import Callable, Sequence

import numpy as np

_LARGEST_BATCH = 4_097


def explain_as_batch_means(
    per_row: Sequence[float],
    claimed: float,
    *,
    decimals: int,
    finish: Callable[[float], float] = float,
) -> list[tuple[int, int]]:
    """Every (batch size, number of batches) whose mean of batch means gives `claimed`; powers of two come first.

    Args:
        per_row: one value per row in file order, such as its loss, or 1 for a right answer and 0 for a wrong one.
        decimals: how many digits after the point the claim was given with.
        finish: applied to each batch's mean and to the mean of means alike, e.g. math.exp for perplexity.

    Returns:
        Nothing if no batch size explains it, or if the true mean does as well.
    """
    values = np.asarray(per_row, dtype=np.float64)
    n = len(values)
    tolerance = 0.5 * 10**-decimals + 1e-12
    if n < 2 or abs(finish(float(values.mean())) - claimed) <= tolerance:
        return []
    found = []
    for size in range(2, min(n, _LARGEST_BATCH)):
        starts = np.arange(0, n, size)
        means = (np.add.reduceat(values, starts) / np.diff(np.append(starts, n))).tolist()
        of_means = finish(math.fsum(means) / len(means))
        mean_of_finished = math.fsum(finish(mean) for mean in means) / len(means)
        if min(abs(of_means - claimed), abs(mean_of_finished - claimed)) <= tolerance:
            found.append((size, len(means)))
    return sorted(found, key=lambda pair: (pair[0] & (pair[0] - 1) != 0, pair[0]))
