"""Disks on which one operation fails, and a small training whose every checkpoint says which one it is."""

import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from runtime.accelerator import Accelerator
from runtime.checkpoint.disk import Buffer, Disk


class FaultyDisk(Disk):
    """Does something else at its `at`-th operation; counts them all."""

    def __init__(self, at: int = -1, fault: Callable[[], None] = lambda: None) -> None:
        self.at = at
        self.fault = fault
        self.seen: list[str] = []

    def _step(self, name: str) -> None:
        self.seen.append(name)
        if len(self.seen) - 1 == self.at:
            self.fault()

    def make_directory(self, path: Path) -> None:
        self._step("make_directory")
        super().make_directory(path)

    def create(self, path: Path) -> int:
        self._step("create")
        return super().create(path)

    def write(self, descriptor: int, pieces: Sequence[Buffer], offset: int) -> None:
        self._step("write")
        if len(self.seen) - 1 == self.at:
            super().write(descriptor, [b"".join(pieces)[:7]], offset)
        super().write(descriptor, pieces, offset)

    def fsync(self, descriptor: int) -> None:
        self._step("fsync")
        super().fsync(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        self._step("rename")
        super().rename(source, target)

    def remove_tree(self, path: Path) -> None:
        self._step("remove_tree")
        super().remove_tree(path)


def failing() -> None:
    raise OSError(5, "Input/output error")


def dying() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Numbered:
    """A model all of whose values, and a counter beside it, are the number of its last save."""

    def __init__(self, **options: Any) -> None:
        self.accelerator = Accelerator(cpu=True, **options)
        self.model = self.accelerator.prepare(nn.Linear(300, 300, bias=False))
        self.count = 0
        self.accelerator.register_for_checkpointing(self)

    def use(self, disk: Disk) -> None:
        saver = self.accelerator._saver
        saver.close()
        saver._disk = saver._checkpointer._disk = saver._checkpointer._digester._disk = disk

    def save(self, number: int, path: Path | None, *, async_save: bool = False) -> Path:
        torch.nn.init.constant_(self.model.weight, number)
        self.count = number
        return self.accelerator.save_state(path, async_save=async_save)

    def load(self, path: Path | None) -> int:
        """The number in the checkpoint, which must be one."""
        torch.nn.init.constant_(self.model.weight, -1)
        self.count = -1
        self.accelerator.load_state(path)
        values = self.model.weight.unique().tolist()
        assert values == [self.count], values
        return self.count

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


@pytest.fixture
def numbered(fresh_process: None) -> type[Numbered]:
    return Numbered


@pytest.fixture
def quick_path() -> Iterator[Path]:
    """A directory where fsync costs nothing, if there is one: for tests with many saves."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as directory:
        yield Path(directory)
