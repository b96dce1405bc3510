"""Handing over models, optimizers, loaders and schedulers, and letting go of them."""

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from ..data.loader import PreparedLoader, SkippedLoader, skip_first_batches
from ..devices import release_cached_memory
from ..errors import UsageError
from ..loader_sharding import refuse_slicing
from ..optim.optimizer import PreparedOptimizer
from ..optim.scheduler import PreparedScheduler
from ..options import DataLoaderConfiguration
from ..strategies.compilation import uncompiled
from .base import Duty


class PreparingDuty(Duty):
    """Wraps objects for the strategy, and unwraps them."""

    @property
    def dataloader_config(self) -> DataLoaderConfiguration:
        """How loaders are sharded that are prepared from now on; another one may be assigned."""
        return self._prepared.configuration

    @dataloader_config.setter
    def dataloader_config(self, configuration: DataLoaderConfiguration) -> None:
        self._prepared.configuration = configuration

    @property
    def split_batches(self) -> bool:
        return self.dataloader_config.split_batches

    @property
    def dispatch_batches(self) -> bool | None:
        return self.dataloader_config.dispatch_batches

    @property
    def even_batches(self) -> bool:
        return self.dataloader_config.even_batches

    @even_batches.setter
    def even_batches(self, even: bool) -> None:
        self.dataloader_config = replace(self.dataloader_config, even_batches=even)

    @property
    def use_seedable_sampler(self) -> bool:
        return self.dataloader_config.use_seedable_sampler

    @property
    def non_blocking(self) -> bool:
        return self.dataloader_config.non_blocking

    @property
    def use_stateful_dataloader(self) -> bool:
        return self.dataloader_config.use_stateful_dataloader

    def prepare(self, *args: Any, device_placement: Sequence[bool] | None = None) -> Any:
        """Wrap models, optimizers, loaders and schedulers; same order back, one object alone comes back alone.

        Objects of other types pass through.
        """
        self.state.require()
        places = list(device_placement or [self._device_placement] * len(args))
        if len(places) != len(args):
            raise UsageError(f"{len(places)} values of device_placement for {len(args)} objects")
        result = self._prepared.add_all(args, places, with_optimizer=self._step_scheduler_with_optimizer)
        return result[0] if len(result) == 1 else tuple(result)

    def select_deepspeed_plugin(self, name: str) -> None:
        """Which of several plugins, given by name as deepspeed_plugin, the next prepare() uses; the first at first."""
        self._prepared.strategy.select_options(name)

    def prepare_model(
        self, model: nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> nn.Module:
        place = self._place(device_placement)
        prepared = self._prepared.add_model(model, place=place, evaluation=evaluation_mode)
        self._prepared.strategy.end_prepare()
        return prepared

    def prepare_optimizer(
        self, optimizer: torch.optim.Optimizer, device_placement: bool | None = None
    ) -> PreparedOptimizer:
        return self._prepared.add_optimizer(optimizer, place=self._place(device_placement))

    def prepare_data_loader(
        self,
        data_loader: DataLoader[Any],
        device_placement: bool | None = None,
        slice_fn_for_dispatch: Callable[..., Any] | None = None,
    ) -> PreparedLoader:
        """Shard a loader.

        Raises:
            UsageError: slice_fn_for_dispatch is given; samples are dealt out before they are collated.
        """
        refuse_slicing(slice_fn_for_dispatch)
        return self._prepared.add_loader(data_loader, place=self._place(device_placement))

    def prepare_scheduler(self, scheduler: Any) -> PreparedScheduler:
        return self._prepared.add_scheduler(scheduler, with_optimizer=self._step_scheduler_with_optimizer)

    def unwrap_model(
        self, model: nn.Module, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True
    ) -> nn.Module:
        """The model that was prepared.

        Args:
            keep_fp32_wrapper: False takes the autocasting forward away (and the compiled one, which holds it).
            keep_torch_compile: False takes the compiled forward away.
        """
        inner = self._prepared.strategy.unwrap_model(model)
        if not (keep_torch_compile and keep_fp32_wrapper):
            inner = uncompiled(inner)
        return inner if keep_fp32_wrapper else self._prepared.precision.unwrap_model(inner)

    def skip_first_batches(self, dataloader: PreparedLoader, num_batches: int = 0) -> SkippedLoader:
        return skip_first_batches(dataloader, num_batches)

    def free_memory(self, *objects: Any) -> Any:
        """Forget all prepared objects; returns None for each of `objects`, to be assigned to their names."""
        self._prepared.clear()
        gc.collect()
        release_cached_memory(self.state.device)
        return tuple(None for _ in objects)

    def clear(self, *objects: Any) -> Any:
        """The same as free_memory."""
        return self.free_memory(*objects)

    def _place(self, wanted: bool | None) -> bool:
        return self._device_placement if wanted is None else wanted
