"""Where logged values go beside the run's own records: TensorBoard, a JSONL file, trackers of the script's own."""

from .base import GeneralTracker

__all__ = ["GeneralTracker"]
