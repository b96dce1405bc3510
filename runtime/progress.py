"""Progress bars that one process of each machine shows."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from .errors import MissingDependencyError, UsageError
from .state import PartialState


def tqdm(*args: Any, main_process_only: bool = True, **kwargs: Any) -> Any:
    """tqdm's bar; silent on all but the first process of each machine.

    Args:
        main_process_only: False shows one bar per process.

    Raises:
        MissingDependencyError: tqdm is not installed.
        UsageError: the first argument is a bool, as main_process_only once was.
    """
    if args and isinstance(args[0], bool):
        raise UsageError(
            f"tqdm({args[0]}, ...)",
            allowed="what is iterated over comes first",
            next_step=f"tqdm(..., main_process_only={args[0]})",
        )
    if find_spec("tqdm") is None:
        raise MissingDependencyError("a progress bar needs tqdm", next_step="pip install tqdm")
    if main_process_only and not kwargs.get("disable"):
        kwargs["disable"] = not PartialState().is_local_main_process
    return import_module("tqdm.auto").tqdm(*args, **kwargs)
