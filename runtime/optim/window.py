"""The accumulation window: which micro-batches form one optimizer step, and by what their gradients are divided.

Mean losses are divided by the length of a full window as they come, so that a full window's gradients are right as
they are. In the last micro-batch, whose place is known only then, gradients that were divided by another number than
there were micro-batches are corrected once. Losses that are sums are scaled there too: by ranks / number of items.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ContextDecorator
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import torch
from torch import nn

from ..errors import CheckpointError, UsageError

LocalGradients = Callable[[Iterable[nn.Parameter]], list[torch.Tensor]]


@dataclass(frozen=True)
class _LeftOver:
    """What a parameter's gradient held when a window began."""

    parameter: nn.Parameter
    held_in: torch.Tensor
    value: torch.Tensor

    @property
    def is_there(self) -> bool:
        """False once the gradient was cleared and begun anew."""
        return self.parameter.grad is self.held_in


@dataclass
class _Window:
    """One window of one set of models."""

    micro_steps: int = 0
    contributed: int = 0
    items: float | None = None
    divisor: int = 1
    """What its losses before the last micro-batch were divided by."""
    is_last: bool = False
    factor: float | None = None
    """Of the last micro-batch's losses."""
    correction: float = 1.0
    """Of the gradients from before it."""
    step_items: float | None = None
    step_has_backward: bool = False
    left_over: list[_LeftOver] = field(default_factory=list)
    """Gradients of windows before that nobody has cleared: they are added to, as in torch, and not corrected again."""


class AccumulationWindows:
    """The windows of one Accelerator, one for each set of models given to accumulate().

    Args:
        num_steps: micro-batches of a full window.
        data_parallel: ranks over which backward averages gradients.
        sum_items: adds a number over these ranks (a collective).
        local_gradients: the gradients of parameters as this rank holds them.
    """

    def __init__(
        self,
        num_steps: int,
        *,
        data_parallel: int,
        sum_items: Callable[[float], float],
        local_gradients: LocalGradients | None = None,
    ) -> None:
        self.num_steps = num_steps
        self.backward_count = 0
        self._data_parallel = data_parallel
        self._sum_items = sum_items
        self._local_gradients = local_gradients or _own_gradients
        self._windows: dict[tuple[int, ...], _Window] = {}
        self._current: _Window | None = None
        self._inside = False

    @property
    def sync_gradients(self) -> bool:
        """Whether the current micro-batch is its window's last, so that optimizers step."""
        return self._current is None or self._current.is_last

    @property
    def is_inside(self) -> bool:
        """Whether a micro-batch has begun, by accumulate()."""
        return self._inside

    @property
    def open_micro_batches(self) -> int:
        """Micro-batches whose gradients still wait for their window's end."""
        return 0 if self.sync_gradients or self._current is None else self._current.contributed

    def enter(self, models: Iterable[nn.Module], *, at_end: bool) -> bool:
        """Begin a micro-batch; returns sync_gradients.

        Args:
            at_end: no further micro-batch comes from the loader.
        """
        if self._inside:
            raise UsageError(
                "accumulate() inside accumulate()",
                allowed="one block for each micro-batch",
                next_step="pass all models to one call: accumulate(generator, discriminator)",
            )
        key = tuple(id(model) for model in models)
        window = self._windows.get(key)
        if window is None or window.is_last:
            window = self._windows[key] = _Window()
        window.micro_steps += 1
        window.is_last = window.micro_steps >= self.num_steps or at_end
        window.step_items, window.step_has_backward = None, False
        self._current, self._inside = window, True
        return window.is_last

    def reset(self) -> None:
        """Forget all windows, as if none had been opened."""
        self._windows.clear()
        self._current = None

    def leave(self) -> None:
        """End the micro-batch."""
        self._inside = False

    @property
    def has_open(self) -> bool:
        """Whether a window has begun and not ended."""
        return any(window.micro_steps and not window.is_last for window in self._windows.values())

    def state_dict(self, places: Mapping[int, int]) -> dict[str, Any]:
        """The open windows as plain data.

        Args:
            places: by id, each model's place among the prepared ones.

        Raises:
            CheckpointError: a window's model is not among them.
        """
        kept = [(key, window) for key, window in self._windows.items() if window.micro_steps and not window.is_last]
        foreign = [key for key, _ in kept if any(model not in places for model in key)]
        if foreign:
            raise CheckpointError(
                "an open accumulation window belongs to a model that was not prepared",
                allowed="accumulate() with what prepare() gave back",
                next_step="pass the prepared model to accumulate(), or save when sync_gradients is true",
            )
        current = [place for place, (_, window) in enumerate(kept) if window is self._current]
        counts = ("micro_steps", "contributed", "items", "divisor")
        windows = [{"models": [places[m] for m in key]} | {n: getattr(w, n) for n in counts} for key, w in kept]
        return {"windows": windows, "current": current[0] if current else None}

    def load_state_dict(self, state: Mapping[str, Any], models: Sequence[nn.Module]) -> None:
        """The inverse of state_dict, with the prepared models in the same places."""
        self.reset()
        opened = []
        for saved in state["windows"]:
            key = tuple(id(models[place]) for place in saved["models"])
            # Without a divisor: saved when gradients were kept as sums.
            window = _Window(saved["micro_steps"], saved["contributed"], saved["items"], saved.get("divisor", 1))
            self._windows[key] = window
            opened.append(window)
        self._current = None if state["current"] is None else opened[state["current"]]
        self.backward_count += 1

    def loss_factor(self, parameters: Iterable[nn.Parameter], num_items: float | None) -> float:
        """What to multiply the next loss by; corrects the gradients that the window already holds, where it must.

        Args:
            num_items: number of items that the loss is a sum over; None where it is a mean.

        Raises:
            UsageError: sums and means in one window, or a window without items.
        """
        if num_items is not None:
            _require_number(num_items)
        self.backward_count += 1
        if not self._inside:
            self._current = None
            return 1.0 / self.num_steps if num_items is None else self._over_items(num_items)
        window = self._current
        assert window is not None, "enter() sets it"
        is_first = not window.contributed
        self._count(window, num_items)
        if not window.is_last:
            if is_first:
                window.divisor = self.num_steps if num_items is None else 1
                window.left_over = [
                    _LeftOver(p, p.grad, p.grad.detach().clone()) for p in parameters if p.grad is not None
                ]
            return 1.0 / window.divisor
        if window.factor is None:
            self._settle(window)
            if window.contributed > 1:
                if window.correction != 1.0:
                    scale_gradients(self._local_gradients(parameters), window.correction)
                self.restore_left_over()
        assert window.factor is not None, "settled"
        return window.factor

    def restore_left_over(self) -> None:
        """Undo the correction of what was there before the window: called once, after its gradients were corrected."""
        window = self._current
        if window is None or window.factor is None:
            return
        for left in window.left_over:
            if left.is_there and window.correction != 1.0:
                left.held_in.add_(left.value, alpha=1.0 - window.correction)
        window.left_over.clear()

    def forget_left_over(self, parameters: Iterable[nn.Parameter]) -> None:
        """These parameters' gradients are cleared."""
        open_windows = [window for window in self._windows.values() if window.left_over]
        if open_windows:
            cleared = {id(parameter) for parameter in parameters}
            for window in open_windows:
                window.left_over = [left for left in window.left_over if id(left.parameter) not in cleared]

    def unfinished_correction(self) -> float | None:
        """What gradients are still to be multiplied by, where the window's last micro-batch had no backward."""
        window = self._current
        if window is None or not window.is_last or window.factor is not None or not window.contributed:
            return None
        self._settle(window)
        return window.correction

    def protects(self, *, cleared_at: int, stepped: bool) -> bool:
        """Whether clearing gradients now would wipe out a part of an open window.

        Args:
            cleared_at: backward_count when the optimizer last cleared its gradients.
            stepped: whether it has stepped since then.
        """
        window = self._current
        if window is None or stepped or self.num_steps == 1:
            return False
        if window.is_last and window.micro_steps == 1:
            return False
        return window.contributed > 0 and self.backward_count > cleared_at

    def _settle(self, window: _Window) -> None:
        """Its length is known now."""
        if window.items is None:
            window.factor, window.correction = 1.0 / window.contributed, window.divisor / window.contributed
        else:
            window.factor = window.correction = self._over_items(window.items)

    def _count(self, window: _Window, num_items: float | None) -> None:
        if window.contributed and (window.items is None) != (num_items is None):
            raise UsageError(
                "backward() with and without num_items in one accumulation window",
                allowed="num_items in every backward of a window, or in none",
                next_step="pass num_items everywhere and let the loss be the sum over them",
            )
        if window.step_has_backward:
            if num_items != window.step_items:
                raise UsageError(
                    f"two backward() of one micro-batch with num_items {window.step_items} and {num_items}",
                    allowed="the same num_items: they count the items of the micro-batch",
                    next_step="pass the same number to both",
                )
            return
        window.step_has_backward, window.step_items = True, num_items
        window.contributed += 1
        if num_items is not None:
            window.items = (window.items or 0.0) + num_items

    def _over_items(self, own_items: float) -> float:
        total = self._sum_items(own_items)
        if not 0 < total < math.inf:
            raise UsageError(
                f"num_items of the whole window is {total:g}",
                allowed="at least one item over all micro-batches and ranks",
                next_step="skip micro-batches without items",
            )
        return self._data_parallel / total


class MicroBatch(ContextDecorator):
    """A micro-batch as a block; a class of its own, since each micro-batch pays for what stands around it.

    Args:
        begin: called at its start; gives a context for the block, or None.
        end: called at its end, whatever happens inside.
    """

    def __init__(self, begin: Callable[[], AbstractContextManager[Any] | None], end: Callable[[], None]) -> None:
        self._begin = begin
        self._end = end
        self._inner: AbstractContextManager[Any] | None = None

    def __enter__(self) -> None:
        inner = self._begin()
        if inner is not None:
            try:
                inner.__enter__()
            except BaseException:
                self._end()
                raise
        self._inner = inner

    def __exit__(self, *error: Any) -> bool | None:
        inner, self._inner = self._inner, None
        self._end()
        return None if inner is None else inner.__exit__(*error)


def scale_gradients(gradients: Sequence[torch.Tensor], factor: float) -> None:
    """Multiply in place."""
    if not gradients or factor == 1.0:
        return
    dense = [gradient for gradient in gradients if not gradient.is_sparse]
    with torch.no_grad():
        if dense:
            torch._foreach_mul_(dense, factor)
        for gradient in gradients:
            if gradient.is_sparse:
                gradient.mul_(factor)


def _require_number(given: Any) -> None:
    # What a tensor holds is looked at with the window's sum: it may be on a device.
    count: Any = 1 if isinstance(given, torch.Tensor) and given.numel() == 1 else given
    if not isinstance(count, Real) or not bool(count >= 0):  # type: ignore[operator]  # of every kind of number
        raise UsageError(
            f"num_items={given!r}",
            allowed="how many items (tokens, say) the loss is a sum over: a number, or a tensor of one",
            next_step="count them: int((labels != -100).sum())",
        )


def _own_gradients(parameters: Iterable[nn.Parameter]) -> list[torch.Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]
