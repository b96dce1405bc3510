"""Evidence read from a run directory: metrics of any script, step times, checkpoints, failures."""

from .run_metrics import iter_run_metrics, read_run_metrics

__all__ = ["iter_run_metrics", "read_run_metrics"]
