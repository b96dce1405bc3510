"""Loading another library's checkpoint into the prepared objects: all of it is compared before anything is changed."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from .checkpoint.foreign.contents import ForeignContents, ForeignOptimizer
from .checkpoint.foreign.recognise import read_foreign
from .errors import CheckpointError, ForerunError
from .optim.scheduler import PreparedScheduler
from .prepared import Prepared
from .seeding import restore_rng_state

_SHOWN = 5


@runtime_checkable
class ListsParameters(Protocol):
    """What a strategy offers whose optimizers hold something else than the model's parameters."""

    def parameter_groups(self, optimizer: torch.optim.Optimizer) -> list[list[nn.Parameter]]:
        """The parameters that each group was built over."""
        ...


def load_foreign(directory: Path, prepared: Prepared, *, models: Sequence[nn.Module]) -> ForeignContents:
    """Load what Accelerate or DeepSpeed saved; all ranks together.

    Args:
        models: the prepared ones without those that hooks have loaded.

    Returns:
        What was read, with everything in `left_out` that was not carried over.

    Raises:
        CheckpointError: on every rank, if one found it damaged, foreign or not fitting; then nothing was changed.
    """
    state = prepared.state
    error: ForerunError | None = None
    try:
        contents = read_foreign(directory, rank=state.process_index)
        plan = _plan(contents, prepared, models)
    except ForerunError as caught:
        error = caught
    _agree(error, directory, prepared)
    for model, weights in plan.models:
        prepared.strategy.load_state_dict(model, weights)
    for optimizer, values in zip(prepared.optimizers, plan.optimizers, strict=True):
        prepared.strategy.load_optimizer_state_dict(optimizer.optimizer, values)
        if contents.optimizer_steps is not None:
            optimizer.num_steps = contents.optimizer_steps
    for scheduler, values in zip(prepared.schedulers, plan.schedulers, strict=False):
        scheduler.load_state_dict(values)
    for thing, values in zip(prepared.custom, contents.custom, strict=False):
        thing.load_state_dict(values)
    if prepared.precision.scaler is not None and contents.scaler:
        prepared.precision.scaler.load_state_dict(contents.scaler)
    prepared.forget_gradients()
    if contents.rng is not None:
        restore_rng_state(contents.rng)
    return plan.told


class _Plan:
    """What is loaded into what.

    Attributes:
        told: the contents, with every note.
    """

    def __init__(self, contents: ForeignContents) -> None:
        self.models: list[tuple[nn.Module, dict[str, Any]]] = []
        self.optimizers: list[dict[str, Any]] = []
        self.schedulers: list[dict[str, Any]] = []
        self.told = contents


def _plan(contents: ForeignContents, prepared: Prepared, models: Sequence[nn.Module]) -> _Plan:
    plan, notes = _Plan(contents), list(contents.left_out)
    counts = [
        ("models", len(contents.models), len(prepared.models)),
        ("optimizers", len(contents.optimizers), len(prepared.optimizers)),
        ("schedulers", len(contents.schedulers), len(prepared.schedulers)),
        ("registered objects", len(contents.custom), len(prepared.custom)),
    ]
    wrong = [f"{held} {name}, and {here} are prepared" for name, held, here in counts if held != here]
    if wrong:
        raise CheckpointError(
            f"the checkpoint has {'; '.join(wrong)}",
            allowed="the same objects as when it was saved",
            next_step="prepare (and register) them before load_state",
        )
    inner = [prepared.strategy.unwrap_model(model) for model in prepared.models]
    for model, bare, weights in zip(prepared.models, inner, contents.models, strict=True):
        if any(model is wanted for wanted in models):
            plan.models.append((model, _fitting_model(bare, weights)))
    for wrapped, foreign in zip(prepared.optimizers, contents.optimizers, strict=True):
        groups = _parameter_groups(prepared, wrapped.optimizer)
        plan.optimizers.append(_fitting_optimizer(foreign, groups, inner))
    for scheduler, values in zip(prepared.schedulers, contents.schedulers, strict=True):
        plan.schedulers.append(_schedule(scheduler, values, contents, notes))
    if prepared.precision.scaler is not None and not contents.scaler:
        notes.append("loss scale: the checkpoint has none; it starts anew")
    if contents.scaler and prepared.precision.scaler is None:
        notes.append("scaler.pt: this run needs no loss scale")
    plan.told = ForeignContents(**{**vars(contents), "left_out": tuple(notes)})
    return plan


def _agree(error: ForerunError | None, directory: Path, prepared: Prepared) -> None:
    """Let all ranks load, or none."""
    guard = prepared.state.guard
    said = [str(error) if error else None]
    if guard is not None:
        said = guard.meet("load_state: what was read", details=said[0])
    if error is not None:
        raise error
    failed = [(rank, reason) for rank, reason in enumerate(said) if reason]
    if failed:
        rank, reason = failed[0]
        raise CheckpointError(
            f"rank {rank} could not load {directory}, so no rank did: {reason}", next_step=f"see rank {rank}'s log"
        )


def _fitting_model(model: nn.Module, weights: dict[str, Any]) -> dict[str, Any]:
    """The weights under the model's names; a name that is tied to one which is there has its value."""
    shapes = {name: _shape(value) for name, value in model.state_dict(keep_vars=True).items()}
    tied: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        tied.setdefault(id(parameter), []).append(name)
    filled = dict(weights)
    for names in tied.values():
        present = [name for name in names if name in filled]
        for name in names if present else ():
            filled.setdefault(name, filled[present[0]])
    wrong = [f"{name} is missing" for name in shapes if name not in filled]
    wrong += [f"{name} is not in the model" for name in filled if name not in shapes]
    for name, shape in shapes.items():
        given = _shape(filled.get(name))
        if name in filled and shape != given:
            wrong.append(f"{name} has shape {list(given or ())}, the model's {list(shape or ())}")
    if wrong:
        more = f" and {len(wrong) - _SHOWN} more" if wrong[_SHOWN:] else ""
        raise CheckpointError(
            f"the model does not fit: {'; '.join(wrong[:_SHOWN])}{more}",
            allowed="the state of the same model",
            next_step="build the same model as when it was saved",
        )
    return filled


def _parameter_groups(prepared: Prepared, optimizer: torch.optim.Optimizer) -> list[list[nn.Parameter]]:
    if isinstance(prepared.strategy, ListsParameters):
        return prepared.strategy.parameter_groups(optimizer)
    return [list(group["params"]) for group in optimizer.param_groups]


def _fitting_optimizer(
    foreign: ForeignOptimizer, groups: Sequence[Sequence[nn.Parameter]], models: Sequence[nn.Module]
) -> dict[str, Any]:
    """The state by the places of the parameters in the optimizer that is here."""
    saved = foreign.state["param_groups"]
    if len(saved) != len(groups):
        raise _misfit(f"it has {len(saved)} groups of parameters, the optimizer here {len(groups)}")
    names = _names(models) if foreign.by_name else {}
    places: dict[Any, int] = {}
    listed, place = [], 0
    for index, (group, parameters) in enumerate(zip(saved, groups, strict=True)):
        known = list(group["params"])
        if foreign.by_name:
            own = [next((n for n in names.get(id(p), ()) if n in known), None) for p in parameters]
            lacking = [
                names.get(id(p), ["?"])[0]
                for p, n in zip(parameters, own, strict=True)
                if n is None and p.requires_grad
            ]
            foreign_ones = [name for name in known if name not in own]
            if lacking or foreign_ones:
                differ = ", ".join([*lacking, *map(str, foreign_ones)][:_SHOWN])
                raise _misfit(f"in group {index}, {differ} belong to one of the two alone")
        else:
            own = known
            if len(known) != len(parameters):
                raise _misfit(f"group {index} has {len(known)} parameters, the one here {len(parameters)}")
        for key, parameter in zip(own, parameters, strict=True):
            if key is not None:
                places[key] = place
                _require_shapes(foreign.state["state"].get(key, {}), parameter, key)
            place += 1
        listed.append({**group, "params": list(range(place - len(parameters), place))})
    states = {places[key]: dict(values) for key, values in foreign.state["state"].items() if key in places}
    return {"state": states, "param_groups": listed}


def _require_shapes(values: Mapping[str, Any], parameter: torch.Tensor, key: Any) -> None:
    shape = _shape(parameter) or ()
    for name, value in values.items():
        given = _shape(value)
        if given and len(given) == len(shape) and any(n not in (1, m) for n, m in zip(given, shape, strict=True)):
            raise _misfit(f"{name} of {key} has shape {list(given)}, the parameter {list(shape)}")


def _misfit(what: str) -> CheckpointError:
    return CheckpointError(
        f"the optimizer does not fit: {what}",
        allowed="the same parameters in the same groups",
        next_step="build the same optimizer as when it was saved",
    )


def _names(models: Sequence[nn.Module]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for model in models:
        for name, parameter in model.named_parameters(remove_duplicate=False):
            found.setdefault(id(parameter), []).append(name)
    return found


def _schedule(
    scheduler: PreparedScheduler, values: dict[str, Any], contents: ForeignContents, notes: list[str]
) -> dict[str, Any]:
    """The schedule's state, counted in optimizer steps.

    Accelerate advances a schedule once a process. Where that is what was saved, the count becomes that of optimizer
    steps, and the schedule's own settings (its horizon, say) stay those of the script.
    """
    steps, ranks, count = contents.optimizer_steps, contents.num_ranks or 1, values.get("last_epoch")
    if ranks == 1 or not steps or count != steps * ranks:
        return values
    here: dict[str, Any] = copy.deepcopy(scheduler.state_dict())
    kept: dict[str, Any] = {name: values[name] for name in ("base_lrs", "_last_lr") if name in values}
    notes.append(
        f"the schedule's count {count} is {steps} optimizer steps on {ranks} processes: schedules count steps here and "
        "keep the settings of the script"
    )
    return {**here, **kept, "last_epoch": steps, "_step_count": steps + 1}


def _shape(value: Any) -> tuple[int, ...] | None:
    """Of a tensor, whole; None for what is none. Under ZeRO-3 a parameter says its own."""
    if not isinstance(value, torch.Tensor):
        return None
    return tuple(getattr(value, "ds_shape", value.shape))
