"""How many optimizer steps were seen, and how many the full run will take, or why that is unknown."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from runtime.config.plan import TrainingPlan
from runtime.records import EventRecord, SourcedMetric

from .trainer import TrainerState

_STEP_FLAGS = frozenset(
    ("steps", "max_steps", "num_steps", "total_steps", "train_steps", "max_train_steps", "num_train_steps", "max_iters")
)
_EPOCH_FLAGS = frozenset(("epochs", "num_epochs", "num_train_epochs", "max_epochs", "n_epochs"))
# Flags that say where things go, how often they are printed, or how a step changes the weights: never how many steps.
_NEUTRAL_FLAGS = frozenset(
    {
        "out",
        "output",
        "output_dir",
        "out_dir",
        "save",
        "save_dir",
        "run_dir",
        "log_dir",
        "logging_dir",
        "predictions",
        "logging_steps",
        "log_every",
        "log_interval",
        "run_name",
        "report_to",
        "verbose",
        "seed",
        "lr",
        "learning_rate",
        "weight_decay",
        "momentum",
        "warmup_steps",
    }
)
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e\d+)?\Z")


@dataclass(frozen=True)
class StepCount:
    """A number of optimizer steps with its source, or None with the reason."""

    num_steps: int | None
    why: str


def steps_seen(metrics: Sequence[SourcedMetric], events: Iterable[EventRecord]) -> int:
    """The number of optimizer steps that left a trace: the runtime's own count, else the highest step that a record
    names (plus one where steps are counted from 0), or the longest series of records without steps.

    A series that begins beyond its own length was resumed; then only its distinct steps count.
    """
    counted = [_whole(e.details.get("steps")) for e in events if e.event == "smoke_steps_done"]
    best = max((c for c in counted if c is not None), default=0)
    stepped: dict[tuple[str, str], set[int]] = {}
    without: dict[tuple[str, str], int] = {}
    for metric in metrics:
        key = (metric.file, metric.record.name)
        if metric.record.step is None:
            without[key] = without.get(key, 0) + 1
        else:
            stepped.setdefault(key, set()).add(metric.record.step)
    for steps in stepped.values():
        resumed = min(steps) > _largest_gap(steps)
        best = max(best, len(steps), 0 if resumed else max(steps) + (min(steps) == 0))
    return max([best, *without.values()])


def full_run_steps(plan: TrainingPlan, events: Sequence[EventRecord], state: TrainerState | None) -> StepCount:
    """The steps of the full run, from what the smoke run showed and from the arguments by which the two differ.

    In order: a step flag of the full run (--max_steps 500); the runtime's planned_steps, scaled by the epochs flag
    (unless a step flag limited the smoke run); the runtime's or Trainer's steps per epoch times the epochs flag. If
    the smoke arguments differ in any other flag that may change the number of steps, it is unknown.
    """
    full, smoke = parse_flags(plan.argv), parse_flags(plan.smoke.args)
    explicit = _flag_number(full, _STEP_FLAGS)
    if explicit:
        return StepCount(int(explicit[1]), f"argument --{explicit[0]} {explicit[1]:g} of the full run")
    differing = sorted(
        name
        for name in full.keys() | smoke.keys()
        if full.get(name) != smoke.get(name) and name not in _NEUTRAL_FLAGS | _STEP_FLAGS | _EPOCH_FLAGS
    )
    if differing:
        names = ", ".join(f"--{name}" if name else "positional arguments" for name in differing)
        return StepCount(
            None, f"the smoke run differs from the full run in {names}, which may change the number of steps"
        )
    return _scaled(full, smoke, events=events, state=state)


def total_steps(plan: TrainingPlan, events: Sequence[EventRecord], state: TrainerState | None) -> int | None:
    """The steps that a full run is going to take, as this very run says; else by its step flag; None if unknown."""
    planned = [_whole(e.details.get("optimizer_steps")) for e in events if e.event == "planned_steps"]
    if planned and planned[-1]:
        return planned[-1]
    if state and state.max_steps:
        return state.max_steps
    explicit = _flag_number(parse_flags(plan.argv), _STEP_FLAGS)
    return int(explicit[1]) if explicit else None


def _scaled(
    full: dict[str, tuple[str, ...]],
    smoke: dict[str, tuple[str, ...]],
    *,
    events: Sequence[EventRecord],
    state: TrainerState | None,
) -> StepCount:
    full_epochs, smoke_epochs = _flag_number(full, _EPOCH_FLAGS), _flag_number(smoke, _EPOCH_FLAGS)
    planned = [_whole(e.details.get("optimizer_steps")) for e in events if e.event == "planned_steps"]
    limited = _flag_number(smoke, _STEP_FLAGS)
    if planned and planned[-1] and not limited:
        if full_epochs == smoke_epochs:
            return StepCount(planned[-1], "planned_steps of the smoke run, whose epochs are the full run's")
        if full_epochs and smoke_epochs:
            total = round(planned[-1] * full_epochs[1] / smoke_epochs[1])
            return StepCount(total, f"planned_steps {planned[-1]} x {full_epochs[1]:g} / {smoke_epochs[1]:g} epochs")
    per_epoch = [_whole(e.details.get("optimizer_steps_per_epoch")) for e in events if e.event == "batch_arithmetic"]
    if per_epoch and per_epoch[-1] and full_epochs:
        total = round(per_epoch[-1] * full_epochs[1])
        return StepCount(total, f"{per_epoch[-1]} steps an epoch, as prepared; --{full_epochs[0]} {full_epochs[1]:g}")
    if state and state.epoch and full_epochs:
        total = round(round(state.global_step / state.epoch) * full_epochs[1])
        return StepCount(
            total, f"{state.global_step} steps made {state.epoch:g} epochs; --{full_epochs[0]} {full_epochs[1]:g}"
        )
    if state and state.max_steps and full == smoke:
        return StepCount(state.max_steps, "max_steps of trainer_state.json, written under the full run's arguments")
    if limited:
        return StepCount(None, f"the smoke run was limited by --{limited[0]} and shows no steps per epoch")
    return StepCount(None, "neither the arguments nor the smoke run say how many steps the full run takes")


def parse_flags(argv: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Flags with their values; dashes in names read as underscores, positional arguments under the empty name."""
    flags: dict[str, list[str]] = {}
    name = ""
    for word in argv:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            name = name.replace("-", "_")
            flags.setdefault(name, [])
            if equals:
                flags[name].append(value)
                name = ""
        else:
            flags.setdefault(name, []).append(word)
    return {key: tuple(values) for key, values in flags.items()}


def _flag_number(flags: dict[str, tuple[str, ...]], names: frozenset[str]) -> tuple[str, float] | None:
    for name in sorted(names & flags.keys()):
        values = flags[name]
        if len(values) == 1 and _NUMBER.match(values[0]) and float(values[0]) > 0:
            return name, float(values[0])
    return None


def _largest_gap(steps: set[int]) -> int:
    ordered = sorted(steps)
    return max((b - a for a, b in pairwise(ordered)), default=ordered[0])


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
