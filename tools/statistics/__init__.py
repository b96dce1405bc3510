"""The arithmetic of verification: metrics, resampled intervals, paired tests, baselines. Reads no file."""

from .baselines import Baseline, constant_baseline, linear_baseline
from .batch_means import explain_as_batch_means
from .comparison import Comparison, compare
from .intervals import Score, bonett_price, score, seed_of, wilson
from .labels import Unified, first_few, unify
from .metrics import METRICS, metric_names
from .significance import holm, mcnemar_exact, permutation_p_value

__all__ = [
    "METRICS",
    "Baseline",
    "Comparison",
    "Score",
    "Unified",
    "bonett_price",
    "compare",
    "constant_baseline",
    "explain_as_batch_means",
    "first_few",
    "holm",
    "linear_baseline",
    "mcnemar_exact",
    "metric_names",
    "permutation_p_value",
    "score",
    "seed_of",
    "unify",
    "wilson",
]
