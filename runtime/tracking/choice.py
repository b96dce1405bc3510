"""log_with: from names and objects to trackers."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ..errors import ConfigurationError
from ..layout import RunLayout
from ..options import ProjectConfiguration
from . import tensorboard
from .base import GeneralTracker
from .jsonl import JsonlTracker

Choice = str | GeneralTracker

_CLASSES: dict[str, Callable[..., GeneralTracker]] = {
    "jsonl": JsonlTracker,
    "tensorboard": tensorboard.TensorBoardTracker,
}
_ABSENT = ("aim", "clearml", "comet_ml", "dvclive", "mlflow", "swanlab", "trackio", "wandb")
_MEMBERS = ("name", "requires_logging_directory", "tracker", "log")


def choose_trackers(log_with: Any, *, logging_dir: Path | None) -> list[Choice]:
    """Check what Accelerator(log_with=...) names, each once.

    Args:
        log_with: jsonl, tensorboard, all (those that are installed), an object like GeneralTracker, or a list of these.

    Raises:
        ConfigurationError: a name is unknown, or a tracker that this version does not have; an object lacks a member;
            no logging directory is known to a tracker that needs one.
        MissingDependencyError: tensorboard is named and not installed.
    """
    if log_with is None:
        return []
    given = list(log_with) if isinstance(log_with, (list, tuple, set)) else [log_with]
    chosen: list[Choice] = []
    for item in given:
        for choice in _named(item) if isinstance(item, str) else [_checked(item)]:
            if choice not in chosen:
                chosen.append(choice)
    homeless = [_name(choice) for choice in chosen if logging_dir is None and _needs_directory(choice)]
    if homeless:
        raise ConfigurationError(
            f"log_with={', '.join(homeless)} without a directory to write to",
            allowed="project_dir, or logging_dir in project_config; in a run, the run directory",
            next_step='Accelerator(log_with=..., project_dir="...")',
        )
    return chosen


def logging_directory(project: ProjectConfiguration, run: RunLayout | None) -> Path | None:
    """Where trackers write: as the script says, else in the run directory; None where neither is there."""
    given = project.logging_dir or project.project_dir
    if given is not None:
        return Path(given)
    return None if run is None else run.tracking


def build_trackers(
    choices: Iterable[Choice], project_name: str, *, logging_dir: Path | None, options: dict[str, dict[str, Any]]
) -> list[GeneralTracker]:
    """The objects; nothing is opened yet."""
    return [
        choice
        if not isinstance(choice, str)
        else _CLASSES[choice](project_name, logging_dir, **options.get(choice, {}))
        for choice in choices
    ]


def _named(name: str) -> list[str]:
    name = str(name)
    if name == "all":
        return [known for known in _CLASSES if known != "tensorboard" or tensorboard.is_installed()]
    if name == "tensorboard":
        tensorboard.require()
    if name in _CLASSES:
        return [name]
    reason = ": this version does not have that tracker" if name in _ABSENT else ": no such tracker"
    raise ConfigurationError(
        f"log_with={name!r}{reason}",
        allowed=f"{', '.join(_CLASSES)}, all, or an object like runtime.tracking.GeneralTracker",
        next_step="give an object of your own that passes values on, or use tensorboard",
    )


def _checked(tracker: Any) -> GeneralTracker:
    missing = [member for member in _MEMBERS if not hasattr(tracker, member)]
    if missing or isinstance(tracker, type):
        what = f"lacks {', '.join(missing)}" if missing else "is a class, not an object"
        raise ConfigurationError(
            f"log_with={tracker!r} {what}",
            allowed=f"objects with {', '.join(_MEMBERS)}",
            next_step="derive it from runtime.tracking.GeneralTracker",
        )
    checked: GeneralTracker = tracker
    return checked


def _needs_directory(choice: Choice) -> bool:
    return isinstance(choice, str) or choice.requires_logging_directory


def _name(choice: Choice) -> str:
    return choice if isinstance(choice, str) else choice.name
