"""Who and where this process is, and what runs on some processes alone."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from .base import Duty


class ProcessDuty(Duty):
    """Rank, world and device; waiting for others; decorators."""

    @property
    def device(self) -> torch.device:
        return self.state.device

    @property
    def distributed_type(self) -> str:
        return self._prepared.strategy.distributed_type or self.state.distributed_type

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

    def wait_for_everyone(self) -> None:
        self.state.wait_for_everyone()

    def main_process_first(self) -> AbstractContextManager[None]:
        return self.state.main_process_first()

    def local_main_process_first(self) -> AbstractContextManager[None]:
        return self.state.local_main_process_first()

    def split_between_processes(self, inputs: Any, apply_padding: bool = False) -> AbstractContextManager[Any]:
        return self.state.split_between_processes(inputs, apply_padding)

    def on_main_process(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return self.state.on_main_process(function)

    def on_local_main_process(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return self.state.on_local_main_process(function)

    def on_last_process(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return self.state.on_last_process(function)

    def print(self, *args: Any, **kwargs: Any) -> None:
        """print() on the main process alone."""
        if self.is_main_process:
            print(*args, **kwargs)  # noqa: T201  # to print is what it is for
