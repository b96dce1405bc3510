"""The trackers of one Accelerator, from init_trackers() to end_training().

A training is worth more than a curve: a tracker that fails while training goes on is dropped, and that is said at
once (log, event) and again at the end. Before training, in init_trackers(), its error is raised.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..reporting import RunReporter, metric_value
from .base import GeneralTracker, SilentTracker
from .choice import Choice, build_trackers
from .jsonl import plain_json

_LOG = logging.getLogger(__name__)


class Trackers:
    """Those of log_with; open after start(). `choices` are as they were asked for, `all` the objects.

    Args:
        choices: names and objects, checked by choose_trackers.
        logging_dir: where those that need a directory write.
        is_main: whether this is the main process.
    """

    def __init__(
        self, choices: Sequence[Choice], *, logging_dir: Path | None, is_main: bool, reporter: RunReporter
    ) -> None:
        self.choices = list(choices)
        self._logging_dir = logging_dir
        self._is_main = is_main
        self._reporter = reporter
        self.all: list[GeneralTracker] = []
        self._failed: dict[str, str] = {}
        self.started = False

    def start(self, project_name: str, config: dict[str, Any] | None, options: dict[str, dict[str, Any]]) -> None:
        """Open all, and hand them the configuration.

        Raises:
            UsageError: init_kwargs for a tracker that log_with does not name, or a second call.
            Exception: what a tracker raises.
        """
        if self.started:
            raise UsageError("init_trackers() a second time", allowed="once, before training")
        self._check_options(options, "init_kwargs")
        self.all = build_trackers(self.choices, project_name, logging_dir=self._logging_dir, options=options)
        self.started = True
        self._reporter.event(
            "tracking_started",
            project=project_name,
            trackers=[t.name for t in self.all],
            config=plain_json(config or {}),
        )
        for tracker in self._working():
            # One that only looks like a GeneralTracker may have none of the methods that do nothing by default.
            getattr(tracker, "start", _nothing)()
            if config is not None:
                getattr(tracker, "store_init_configuration", _nothing)(dict(config))

    def log(self, values: Mapping[str, Any], step: int | None, options: dict[str, dict[str, Any]]) -> None:
        """Hand checked values (checked_values) to all that work."""
        self._check_options(options, "log_kwargs")
        for tracker in self._working():
            extra = options.get(tracker.name, {})
            self._guarded(tracker, f"log() at step {step}", partial(tracker.log, values, step=step, **extra))

    def get(self, name: str, *, unwrap: bool) -> Any:
        """The tracker of this name, or what it wraps; one that does nothing where it does not run.

        Raises:
            UsageError: there is none of this name, or init_trackers() has not been called.
        """
        found = next((tracker for tracker in self.all if tracker.name == name), None)
        if found is None:
            raise UsageError(
                f"get_tracker({name!r}): " + ("no such tracker" if self.started else "before init_trackers()"),
                allowed=", ".join(tracker.name for tracker in self.all) or "none: log_with names none",
                next_step="name it in Accelerator(log_with=...) and call init_trackers(project_name) first",
            )
        if not self._runs_here(found):
            return SilentTracker(name)
        return found.tracker if unwrap else found

    def finish(self) -> None:
        """Close all; say again which of them failed on the way."""
        for tracker in self._working():
            self._guarded(tracker, "finish()", getattr(tracker, "finish", _nothing))
        for name, failure in self._failed.items():
            _LOG.error("tracker %s did not get all values: it failed in %s", name, failure)
        self.all, self._failed, self.started = [], {}, False

    def _working(self) -> list[GeneralTracker]:
        return [tracker for tracker in self.all if self._runs_here(tracker) and tracker.name not in self._failed]

    def _runs_here(self, tracker: GeneralTracker) -> bool:
        return self._is_main or not getattr(tracker, "main_process_only", True)

    def _guarded(self, tracker: GeneralTracker, what: str, call: Callable[[], Any]) -> None:
        try:
            call()
        except Exception as error:
            self._failed[tracker.name] = f"{what}: {type(error).__name__}: {error}"
            _LOG.error("tracker %s failed in %s and gets no further values", tracker.name, what, exc_info=True)
            self._reporter.event("tracker_failed", tracker=tracker.name, failure=self._failed[tracker.name][:500])

    def _check_options(self, options: dict[str, dict[str, Any]], argument: str) -> None:
        names = [choice if isinstance(choice, str) else choice.name for choice in self.choices]
        unknown = sorted(set(options) - set(names))
        if unknown:
            raise UsageError(
                f"{argument} for {', '.join(unknown)}, which log_with does not name",
                allowed=", ".join(names) or "none: log_with names none",
                next_step="correct the name",
            )


def checked_values(values: Mapping[str, Any], *, texts: bool) -> dict[str, Any]:
    """Values as numbers, mappings of numbers, and (where there are trackers to take them) texts.

    Raises:
        UsageError: a value is something else.
    """
    checked: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            checked[name] = {part: metric_value(f"{name}/{part}", number) for part, number in value.items()}
        elif texts and isinstance(value, str):
            checked[name] = value
        else:
            checked[name] = metric_value(name, value)
    return checked


def flat_numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of checked values, those of a mapping as name/part."""
    flat: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}/{part}": number for part, number in value.items()}
        elif not isinstance(value, str):
            flat[name] = value
    return flat


def _nothing(*_args: Any) -> None:
    """For a method that a tracker does not have."""
