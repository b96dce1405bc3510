"""DistributedDataParallel: every rank holds the whole model, gradients are averaged in backward."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join, Joinable
from torch.nn.parallel import DistributedDataParallel

from ..errors import UsageError
from .base import WholeModel


class DdpStrategy(WholeModel):
    """torch's DistributedDataParallel; `options` are its keyword arguments."""

    name = "ddp"

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
        return DistributedDataParallel(model, device_ids=indices, **self._context.options)

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
        with Join(joinable):
            yield

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
