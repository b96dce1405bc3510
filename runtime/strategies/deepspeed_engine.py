"""One DeepSpeed engine whose accumulation window is the runtime's: gradients wait on their rank, and are reduced once.

DeepSpeed divides by its own number of micro-batches and reduces in backward. Both are off here: the engine believes in
windows of one micro-batch, its hooks reduce nothing, and `reduce` does so once, before a step. The parts used of
DeepSpeed's private state are in this file and in deepspeed_state.py.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..errors import UsageError


@dataclass(frozen=True)
class Group:
    """One of the optimizer's groups as the script built it; `live` is its place in the engine's optimizer, if any."""

    parameters: tuple[nn.Parameter, ...]
    options: dict[str, Any]
    live: int | None


class WindowedEngine:
    """An engine with its optimizer.

    Args:
        engine: what deepspeed.initialize gave back.
        optimizer: the script's, whose groups now hold DeepSpeed's flat parts.
        groups: what those groups held before.
        clipping: norm that every step clips to; 0 for none.
    """

    def __init__(
        self, engine: Any, optimizer: torch.optim.Optimizer, groups: Sequence[Group], *, clipping: float
    ) -> None:
        self.engine = engine
        self.optimizer = optimizer
        self.groups = tuple(groups)
        self.stage = int(engine.zero_optimization_stage())
        self.zero = engine.optimizer if self.stage else None
        self._clipping = clipping
        self._asked: float = 0.0
        self._reduced = False
        engine.set_gradient_accumulation_boundary(True)
        engine._support_torch_style_backward = True  # stage 0 refuses it, since DeepSpeed reduces in engine.backward
        self._hold(True)

    @property
    def parameters(self) -> list[nn.Parameter]:
        return list(self.engine.module.parameters())

    def gradients(self) -> list[torch.Tensor]:
        """What this rank holds, unreduced."""
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]

    def reduce(self) -> None:
        """Average over the ranks, once a window; all ranks call it together.

        Raises:
            UsageError: a backward came after the window's gradients were reduced.
        """
        if self._reduced:
            if self.zero is not None and self.gradients():
                raise UsageError(
                    "backward() between clip_grad_norm_() and step() under DeepSpeed: gradients are reduced already",
                    allowed="backward, clip, step, in this order",
                    next_step="move backward() before clip_grad_norm_()",
                )
            return
        for parameter in self._trained():  # ranks must reduce the same tensors, also those that no loss has reached
            if parameter.grad is None:
                hold_gradient(parameter, torch.zeros(1, dtype=parameter.dtype).expand(_shape(parameter)))
        self._hold(False)
        try:
            if self.zero is None:
                self.engine.buffered_allreduce_fallback()
            else:
                self._begin_anew()
                self.zero.set_gradient_accumulation_boundary(True)
                flush = "zero3" if self.stage == 3 else "zero12"
                getattr(self.engine, f"_flush_coalesced_reduction_{flush}")(self.zero)
        finally:
            self._hold(True)
        self._reduced = True

    def norm(self) -> torch.Tensor:
        """The 2-norm of the window's gradients over the whole model; not finite where a gradient is not."""
        self.reduce()
        if self.zero is None:
            return nn.utils.get_total_norm(self.gradients(), 2.0)
        if self.stage == 3:
            groups = self.zero._get_norm_groups()
            norm = torch.stack([torch.as_tensor(one, dtype=torch.float32).cpu() for one in groups])
            norm = torch.full((), -1.0) if bool((norm < 0).any()) else norm.square().sum().sqrt()
        else:
            norm = torch.as_tensor(self.zero.scaled_global_norm(), dtype=torch.float32)
        return norm if float(norm) >= 0 else torch.full_like(norm, math.inf)  # DeepSpeed says -1

    def clip(self, max_norm: float) -> torch.Tensor:
        """Let the next step clip to this norm; returns the norm before."""
        norm = self.norm()
        if self.zero is None:
            nn.utils.clip_grads_with_norm_(self._trained(), max_norm, norm)
        else:
            self._asked = max_norm if not self._asked else min(self._asked, max_norm)
        return norm

    def step(self) -> bool:
        """Update; returns whether a gradient was not finite, so that nothing changed."""
        self.reduce()
        if self.zero is None:
            if self._clipping:
                self.clip(self._clipping)
        else:
            limits = [limit for limit in (self._clipping, self._asked) if limit > 0]
            self.zero.clip_grad = min(limits, default=0.0)
        self._hold(False)
        try:
            self.engine.step()
        finally:
            self._hold(True)
            self._asked, self._reduced = 0.0, False
        self._settle()
        return bool(getattr(self.zero, "overflow", False))

    def discard(self) -> None:
        """Forget all gradients, reduced or not."""
        for parameter in self.parameters:
            parameter.grad = None
            if getattr(parameter, "grad_accum", None) is not None:
                parameter.grad_accum = None  # type: ignore[attr-defined]  # DeepSpeed's
        if self.zero is not None and self._reduced:
            for held in (self.zero.averaged_gradients, getattr(self.zero, "all_grad_tensors", {})):
                for key in list(held):
                    held[key] = None
        self._asked, self._reduced = 0.0, False
        self._settle()

    def is_mine(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Whether these are all trained parameters of this engine, and no others."""
        return {id(parameter) for parameter in parameters if parameter.requires_grad} == {
            id(parameter) for parameter in self._trained()
        }

    def _trained(self) -> list[nn.Parameter]:
        return [parameter for group in self.groups for parameter in group.parameters if parameter.requires_grad]

    def _hold(self, held: bool) -> None:
        """While held, backward leaves gradients where they are."""
        self.engine.inside_no_sync_ctxt = held
        if self.zero is not None:
            self.zero._coalesce_grad_reduction = held

    def _begin_anew(self) -> None:
        """The reduction overwrites what an earlier window left, and does not add to it."""
        assert self.zero is not None
        self.zero.micro_step_id = 0 if self.stage == 3 else -1

    def _settle(self) -> None:
        """Leave nothing half-open: two forwards before one backward count as two in DeepSpeed."""
        if self.zero is not None:
            self._begin_anew()
            self.zero._epilogue_ran_this_backward = False
            self.zero._backward_active_depth = 0


def hold_gradient(parameter: nn.Parameter, gradient: torch.Tensor) -> None:
    """Set a whole gradient, also where DeepSpeed keeps a part of the parameter alone."""
    kept = parameter.data
    parameter.data = kept.new_empty(1).expand(gradient.shape)  # torch compares the shapes when a gradient is set
    parameter.grad = gradient.to(device=kept.device, dtype=kept.dtype, copy=True).contiguous()
    parameter.data = kept


def _shape(parameter: nn.Parameter) -> Sequence[int]:
    """The whole shape, also where DeepSpeed keeps a part alone."""
    whole: Sequence[int] = getattr(parameter, "ds_shape", parameter.shape)
    return whole
