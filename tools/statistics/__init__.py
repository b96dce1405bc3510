"""The arithmetic of verification: metrics, resampled intervals, paired tests, baselines, overlap. Reads no file."""

from .baselines import Baseline, constant_baseline, linear_baseline
from .batch_means import explain_as_batch_means
from .comparison import Comparison, compare
from .intervals import Score, bonett_price, score, seed_of, wilson
from .labels import Unified, first_few, unify
from .metrics import METRICS, metric_names
from .overlap import Overlap, Table, find_overlap
from .significance import holm, mcnemar_exact, permutation_p_value

__all__ = [
    "METRICS",
    "Baseline",
    "Comparison",
    "Overlap",
    "Score",
    "Table",
    "Unified",
    "bonett_price",
    "compare",
    "constant_baseline",
    "explain_as_batch_means",
    "find_overlap",
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
