"""torch.profiler with the Accelerate API's options; each rank writes a Chrome trace of its own."""

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from .errors import ConfigurationError
from .options import ProfileKwargs

_LOG = logging.getLogger(__name__)
_ACTIVITIES = {
    name: getattr(ProfilerActivity, member)
    for name, member in (("cpu", "CPU"), ("cuda", "CUDA"), ("xpu", "XPU"), ("mtia", "MTIA"), ("hpu", "HPU"))
    if hasattr(ProfilerActivity, member)
}
_SCHEDULE = ("wait", "warmup", "active", "repeat", "skip_first", "skip_first_wait")


@contextmanager
def profiled(options: ProfileKwargs, *, directory: Path | None, rank: int) -> Iterator[torch.profiler.profile]:
    """Profile the block; with a schedule, the block calls step() of what it is given.

    Args:
        directory: where traces go, as profile_RANK.json, and profile_RANK.cycleN.json for further cycles of a
            schedule; None writes none.

    Raises:
        ConfigurationError: an activity or a key of the schedule is unknown, or the schedule lacks `active`.
    """
    activities = _activities(options.activities)
    schedule = None if options.schedule_option is None else _schedule(options.schedule_option)
    with (
        warnings.catch_warnings(),
        torch.profiler.profile(
            activities=activities,
            schedule=schedule,
            on_trace_ready=_hand_over(options.on_trace_ready, directory, rank),
            record_shapes=options.record_shapes,
            profile_memory=options.profile_memory,
            with_stack=options.with_stack,
            with_flops=options.with_flops,
            with_modules=options.with_modules,
        ) as profiler,
    ):
        # Each cycle's trace is its own here. As an error, this warning would leave the profiler half-way: a crash.
        warnings.filterwarnings("ignore", message="Warning: Profiler clears events at the end of each cycle")
        yield profiler


def _activities(names: Any) -> list[ProfilerActivity] | None:
    if names is None:
        return None
    known = torch.profiler.supported_activities()  # type: ignore[no-untyped-call]  # untyped in torch
    chosen = []
    for name in names:
        activity = name if isinstance(name, ProfilerActivity) else _ACTIVITIES.get(str(name).lower())
        if activity is None:
            raise ConfigurationError(
                f"profiler activity {name!r}",
                allowed=", ".join(_ACTIVITIES),
                next_step="correct ProfileKwargs.activities",
            )
        if activity in known:
            chosen.append(activity)
        else:
            _LOG.warning("profiler activity %s is not available here and is left out", name)
    return chosen or None


def _schedule(given: dict[str, int]) -> Callable[[int], Any]:
    unknown = sorted(set(given) - set(_SCHEDULE))
    if unknown or not given.get("active"):
        raise ConfigurationError(
            f"schedule_option {given}: " + (f"unknown {', '.join(unknown)}" if unknown else "no `active` steps"),
            allowed=", ".join(_SCHEDULE) + "; active at least 1",
            next_step="correct ProfileKwargs.schedule_option",
        )
    return torch.profiler.schedule(**({"wait": 0, "warmup": 0} | given))


def _hand_over(theirs: Callable[[Any], Any] | None, directory: Path | None, rank: int) -> Callable[[Any], None]:
    num_ready = 0

    def ready(profiler: torch.profiler.profile) -> None:
        nonlocal num_ready
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
            suffix = f".cycle{num_ready}" if num_ready else ""
            path = directory / f"profile_{rank}{suffix}.json"
            unfinished = path.with_name(f".{path.name}.tmp.json")
            profiler.export_chrome_trace(str(unfinished))
            unfinished.replace(path)
        num_ready += 1
        if theirs is not None:
            theirs(profiler)

    return ready
