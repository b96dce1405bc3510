"""DistributedDataParallel: every rank holds the whole model, gradients are averaged in backward."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join, Joinable
from torch.nn.parallel import DistributedDataParallel

from ..errors import UsageError
from .base import StrategyContext, WholeModel

_AWAITS_BACKWARD = "_forerun_awaits_backward"


def _saw_forward(model: nn.Module, _inputs: Any) -> None:
    """DDP is ready to average in the next backward. No method, so that models can still be copied and pickled."""
    if torch.is_grad_enabled():
        vars(model)[_AWAITS_BACKWARD] = True


class DdpStrategy(WholeModel):
    """torch's DistributedDataParallel; `options` are its keyword arguments."""

    name = "ddp"

    def __init__(self, context: StrategyContext) -> None:
        super().__init__(context)
        self._wrapped: WeakSet[DistributedDataParallel] = WeakSet()
        self._joining = False

    def requirements(self) -> list[str]:
        missing = []
        if self._context.world_size < 2:
            missing.append("strategy ddp needs at least 2 processes")
        if not dist.is_available():
            missing.append("this torch was built without torch.distributed")
        return missing

    def prepare_model(self, model: nn.Module) -> nn.Module:
        if not any(parameter.requires_grad for parameter in model.parameters()):
            return model
        model = self.apply_passes(model)
        indices = [self._context.device.index] if self._context.device.type == "cuda" else None
        wrapped = DistributedDataParallel(model, device_ids=indices, **self._context.options)
        wrapped.register_forward_pre_hook(_saw_forward)
        self._wrapped.add(wrapped)
        return wrapped

    def finish_backward(self, parameters: Iterator[nn.Parameter], *, synchronized: bool) -> None:
        """Average again after a backward that DDP knows nothing of.

        It averages in the first backward after a forward of its own, once. The second one of two losses, or that of a
        loss which came from a method of the inner model, would leave the ranks apart. Gradients that were averaged
        before are alike on all ranks and stay what they are.
        """
        expected = False
        for model in self._wrapped:
            expected = vars(model).pop(_AWAITS_BACKWARD, False) or expected
        if expected or not synchronized or not self._wrapped:
            return
        if self._joining:
            raise UsageError(
                "a second backward() after one forward, inside join_uneven_inputs",
                allowed="one backward() after each forward there: ranks that have ended cannot join in another",
                next_step="add the losses and call backward() once",
            )
        in_ddp = {id(parameter) for model in self._wrapped for parameter in model.parameters()}
        own = [parameter for parameter in parameters if id(parameter) in in_ddp]
        present = torch.tensor([p.grad is not None for p in own], dtype=torch.uint8, device=self._context.device)
        dist.all_reduce(present, dist.ReduceOp.MAX)
        self.reduce_gradients(p for p, somewhere in zip(own, present.tolist(), strict=True) if somewhere)

    def unwrap_model(self, model: nn.Module) -> nn.Module:
        return model.module if isinstance(model, DistributedDataParallel) else model

    def no_sync(self, model: nn.Module) -> AbstractContextManager[None]:
        return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()

    @contextmanager
    def join(self, models: Sequence[nn.Module]) -> Iterator[None]:
        joinable: list[Joinable] = [model for model in models if isinstance(model, DistributedDataParallel)]
        if len(joinable) != len(models):
            raise UsageError(
                "join_uneven_inputs of a model that prepare() did not wrap for DDP",
                allowed="prepared models with trainable parameters",
                next_step="pass what prepare() gave back",
            )
        self._joining = True
        try:
            with Join(joinable):
                yield
        finally:
            self._joining = False

    def reduce_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        for parameter in parameters:
            if not parameter.requires_grad:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad /= self._context.world_size

    def state_dict(self, model: nn.Module) -> dict[str, Any]:
        return self.unwrap_model(model).state_dict()

    def load_state_dict(self, model: nn.Module, state: dict[str, Any]) -> None:
        self.unwrap_model(model).load_state_dict(state)
