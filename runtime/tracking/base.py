"""What a tracker is: the class that a script's own trackers derive from."""

from collections.abc import Mapping
from typing import Any, ClassVar


class GeneralTracker:
    """Takes logged values to some place. A class of its own sets `name` and defines `tracker`; the rest is as needed.

    Attributes:
        name: under which get_tracker() finds it, and init_kwargs and log_kwargs address it.
        requires_logging_directory: whether a logging directory has to be known.
        main_process_only: its methods are called on the main process alone; else on every rank.
    """

    name: str
    requires_logging_directory: bool = False
    main_process_only: ClassVar[bool] = True

    @property
    def tracker(self) -> Any:
        """The thing that it wraps, for what this class has no method for."""
        return None

    def start(self) -> None:
        """Open what is written to; called by init_trackers()."""

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Keep the configuration of the training."""

    def log(self, values: Mapping[str, Any], step: int | None = None, **options: Any) -> None:
        """Keep values: numbers, texts, and mappings of names to numbers."""

    def finish(self) -> None:
        """Close what start() opened."""


class SilentTracker(GeneralTracker):
    """What get_tracker() gives on ranks where the tracker does not run: every method exists and does nothing."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def tracker(self) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_args, **_options: None
