"""Who and where this process is, and what runs on some processes alone."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from ..state import DistributedType
from .base import Duty


class ProcessDuty(Duty):
    """Rank, world and device; waiting for others; decorators."""

    @property
    def device(self) -> torch.device:
        return self.state.device

    @property
    def distributed_type(self) -> DistributedType:
        return DistributedType(self._prepared.strategy.distributed_type or self.state.distributed_type)

    @property
    def use_distributed(self) -> bool:
        """Whether there are several processes."""
        return self.state.use_distributed

    @property
    def multi_device(self) -> bool:
        """Whether several processes each have an accelerator of their own and hold the whole model."""
        return self.distributed_type.startswith("MULTI_") and self.distributed_type is not DistributedType.MULTI_CPU

    @property
    def num_processes(self) -> int:
        return self.state.num_processes

    @property
    def process_index(self) -> int:
        return self.state.process_index

    @property
    def local_process_index(self) -> int:
        return self.state.local_process_index

    @property
    def is_main_process(self) -> bool:
        return self.state.is_main_process

    @property
    def is_local_main_process(self) -> bool:
        return self.state.is_local_main_process

    @property
    def is_last_process(self) -> bool:
        return self.state.is_last_process

    @property
    def torch_device_mesh(self) -> Any:
        """The strategy's DeviceMesh; None where it has none."""
        return getattr(self._prepared.strategy, "device_mesh", None)

    @property
    def data_parallel_rank(self) -> int:
        """Which replica of the model this process belongs to."""
        return self.process_index // (self.state.num_processes // self._dims.data_replicate)

    @property
    def data_parallel_shard_rank(self) -> int:
        """Which shard of its replica this process holds; 0 where nothing is sharded."""
        return self.process_index % self._dims.data_shard

    @property
    def tensor_parallel_rank(self) -> int:
        """0: this version has no tensor parallelism, so each process holds whole tensors."""
        return 0

    @property
    def pipeline_parallel_rank(self) -> int:
        """0: this version has no pipeline parallelism."""
        return 0

    @property
    def context_parallel_rank(self) -> int:
        """0: this version has no context parallelism."""
        return 0

    @property
    def is_composable_parallelism_enabled(self) -> bool:
        """Whether more than one axis of the mesh is in use."""
        return self._dims.data_replicate > 1 and self._dims.data_shard > 1

    @property
    def is_fsdp2(self) -> bool:
        return self.distributed_type is DistributedType.FSDP

    @property
    def deepspeed_plugin(self) -> Any:
        """What deepspeed_plugin was; None without one."""
        return self.state.deepspeed_plugin

    @property
    def fp8_backend(self) -> None:
        """None: this version has no fp8."""
        return

    def wait_for_everyone(self) -> None:
        self.state.wait_for_everyone()

    def main_process_first(self) -> AbstractContextManager[None]:
        return self.state.main_process_first()

    def local_main_process_first(self) -> AbstractContextManager[None]:
        return self.state.local_main_process_first()

    def split_between_processes(self, inputs: Any, apply_padding: bool = False) -> AbstractContextManager[Any]:
        return self.state.split_between_processes(inputs, apply_padding)

    def on_main_process(self, function: Callable[..., Any] | None = None) -> Any:
        """Decorate: the function runs on the main process alone, the others get None."""
        return self.on_main_process if function is None else self.state.on_main_process(function)

    def on_local_main_process(self, function: Callable[..., Any] | None = None) -> Any:
        """Decorate: the function runs on the first process of each machine alone."""
        return self.on_local_main_process if function is None else self.state.on_local_main_process(function)

    def on_last_process(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate: the function runs on the last process alone."""
        return self.state.on_last_process(function)

    def on_process(self, function: Callable[..., Any] | None = None, process_index: int | None = None) -> Any:
        """Decorate: the function runs on one process alone. Without a function, a decorator."""
        return self.state.on_process(function, process_index)

    def on_local_process(
        self, function: Callable[..., Any] | None = None, local_process_index: int | None = None
    ) -> Any:
        """Decorate: the function runs on one process of each machine alone. Without a function, a decorator."""
        return self.state.on_local_process(function, local_process_index)

    def print(self, *args: Any, **kwargs: Any) -> None:
        """print() on the main process alone."""
        if self.is_main_process:
            print(*args, **kwargs)  # noqa: T201  # to print is what it is for
