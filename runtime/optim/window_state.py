"""An open accumulation window as plain data: its counts, and the gradients that this rank holds until it ends."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ..errors import CheckpointError
from .optimizer import PreparedOptimizer
from .window import AccumulationWindows

State = dict[str, Any]
Held = dict[str, torch.Tensor]
"""One parameter's gradient on this rank: `sum` is a sum over whole micro-batches that is not averaged over the ranks
yet, `shard` this rank's part of one that is; empty where there is none."""


class WindowKeeper:
    """Takes down what waits for the next optimizer step, and puts it back in another process.

    Args:
        held: the strategy's held_gradients.
        hold: the strategy's hold_gradients.
    """

    def __init__(
        self,
        windows: AccumulationWindows,
        optimizers: Sequence[PreparedOptimizer],
        *,
        held: Callable[[Sequence[nn.Parameter]], list[Held]],
        hold: Callable[[Sequence[nn.Parameter], Sequence[Held]], None],
    ) -> None:
        self._windows = windows
        self._optimizers = optimizers
        self._held = held
        self._hold = hold

    def take(self, models: Sequence[Iterable[nn.Module]], parameters: Mapping[str, nn.Parameter]) -> State | None:
        """What waits for the next step; None between windows.

        Args:
            models: the forms in which each prepared model may have been given to accumulate().
            parameters: everything that may have a gradient, by a name that another process gives it too.

        Raises:
            CheckpointError: a window's model is none of `models`.
        """
        waiting = [optimizer.has_waiting_gradients for optimizer in self._optimizers]
        if not self._windows.has_open and not any(waiting):
            return None
        places = {id(form): place for place, forms in enumerate(models) for form in forms}
        held = zip(parameters, self._held(list(parameters.values())), strict=True)
        return {
            **self._windows.state_dict(places),
            "waiting": waiting,
            "gradients": {name: gradient for name, gradient in held if gradient},
        }

    def put_back(
        self, state: State | None, models: Sequence[nn.Module], parameters: Mapping[str, nn.Parameter]
    ) -> None:
        """The inverse, in a process whose windows and gradients are empty.

        Raises:
            CheckpointError: it was taken down with other models or optimizers; nothing is put back.
        """
        if state is None:
            return
        foreign = sorted(set(state["gradients"]) - set(parameters))
        if foreign or len(state["waiting"]) != len(self._optimizers):
            raise CheckpointError(
                f"the open accumulation window has gradients of {', '.join(foreign[:5]) or 'other optimizers'}",
                allowed="the models and optimizers with which it was saved",
                next_step="prepare the same objects in the same order",
            )
        names = list(state["gradients"])
        self._windows.load_state_dict(state, models)
        self._hold([parameters[name] for name in names], [state["gradients"][name] for name in names])
        for optimizer, waits in zip(self._optimizers, state["waiting"], strict=True):
            optimizer.expect_gradients(waits)


def merge_windows(states: Sequence[State | None], world_size: int) -> State | None:
    """What each of `world_size` ranks holds, so that the window ends with the same mean.

    Each former micro-step counts as much as a later one, whatever the number of ranks that took part in it; where
    losses are sums over items, each item counts the same.

    Args:
        states: one for each rank that held a part of the window, in rank order.

    Raises:
        CheckpointError: the parts do not fit together, or are shards of what was averaged already.
    """
    present = [state for state in states if state is not None]
    if not present:
        return None
    first = present[0]
    counts = [
        [(w["models"], w["micro_steps"], w["contributed"], w.get("divisor", 1)) for w in state["windows"]]
        for state in present
    ]
    if len(present) != len(states) or any(count != counts[0] for count in counts):
        raise _unmergeable("its ranks stood at different micro-batches")
    by_items = {window["items"] is not None for window in first["windows"]}
    if len(by_items) > 1:
        raise _unmergeable("some windows count items and others do not")
    divisor = world_size if by_items == {True} else len(present)
    windows = [
        window | {"items": _total([state["windows"][place]["items"] for state in present], world_size)}
        for place, window in enumerate(first["windows"])
    ]
    names = {name: None for state in present for name in state["gradients"]}
    gradients = {name: _merged([state["gradients"].get(name, {}) for state in present], divisor) for name in names}
    return first | {"windows": windows, "gradients": gradients}


def _total(items: Sequence[float | None], world_size: int) -> float | None:
    known = [item for item in items if item is not None]
    return sum(known) / world_size if known else None


def _merged(parts: Sequence[Held], divisor: int) -> Held:
    if any("shard" in part for part in parts):
        raise _unmergeable("its gradients are sharded (sync_each_batch)")
    sums = [part["sum"] for part in parts if part]
    total = sums[0].clone()
    for other in sums[1:]:
        total += other
    return {"sum": total / divisor}


def _unmergeable(why: str) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint lies inside an accumulation window that another number of ranks cannot go on with: {why}",
        allowed="the number of ranks with which it was saved",
        next_step="resume on as many ranks, or from a checkpoint between two optimizer steps",
    )
