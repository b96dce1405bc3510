"""Values as JSON lines in the logging directory, in the form of a run's own metric records."""

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..files import write_json_atomic
from ..records import MetricRecord, append_event, append_metric
from .base import GeneralTracker


class JsonlTracker(GeneralTracker):
    """Numbers go to metrics.jsonl, texts to texts.jsonl, the configuration to config.json."""

    name = "jsonl"
    requires_logging_directory = True

    def __init__(self, project_name: str, logging_dir: Path) -> None:
        self.directory = logging_dir / project_name

    @property
    def tracker(self) -> Path:
        """The file of numbers."""
        return self.directory / "metrics.jsonl"

    def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.tracker.touch()

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        write_json_atomic(self.directory / "config.json", plain_json(values))

    def log(self, values: Mapping[str, Any], step: int | None = None, **_options: Any) -> None:
        for name, value in values.items():
            if isinstance(value, str):
                append_event(self.directory / "texts.jsonl", name, step=step, text=value)
            elif isinstance(value, Mapping):
                self.log({f"{name}/{part}": number for part, number in value.items()}, step)
            else:
                record = MetricRecord(step=step, name=name, value=value, rank=0, time_s=time.time())
                append_metric(self.tracker, record)


def plain_json(value: Any) -> Any:
    """A value as JSON; what JSON does not know becomes text."""
    if isinstance(value, Mapping):
        return {str(key): plain_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
