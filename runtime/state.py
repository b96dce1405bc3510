"""Who this process is: rank, world, device, and the one process group, from its start to its orderly end."""

import atexit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from typing import Any, ClassVar, ParamSpec, TypeVar

import torch
import torch.distributed as dist

from .devices import communication_backend, pick_device, synchronize
from .env import WorkerEnvironment, read_environment
from .errors import UsageError
from .guard import Guard

P = ParamSpec("P")
R = TypeVar("R")

GROUP_TIMEOUT_S = 1800.0
COLLECTIVE_DEADLINE_S = 300.0


@dataclass
class _Process:
    """What all PartialState objects of a process share."""

    environment: WorkerEnvironment
    device: torch.device
    guard: Guard | None
    owns_group: bool
    closed: bool = False


class PartialState:
    """Rank, world size and device of this process; every instance shows the same state.

    Args:
        cpu: use the CPU even where an accelerator is present.
        device: device kind; empty to take FORERUN_DEVICE or else the fastest.
        backend: torch.distributed backend; empty to take the device's own.
        timeout_s: after which the process group itself gives up (backward's all-reduce included).
        collective_deadline_s: how long a rank waits for the others before a collective of ours is an error.
    """

    _process: ClassVar[_Process | None] = None

    def __init__(
        self,
        cpu: bool = False,
        *,
        device: str = "",
        backend: str = "",
        timeout_s: float = GROUP_TIMEOUT_S,
        collective_deadline_s: float = COLLECTIVE_DEADLINE_S,
    ) -> None:
        shared = type(self)._process
        if shared is None:
            environment = read_environment()
            kind = "cpu" if cpu else device or environment.device
            type(self)._process = _start(
                environment, kind=kind, backend=backend, timeout_s=timeout_s, deadline_s=collective_deadline_s
            )
            atexit.register(self.destroy_process_group)
            return
        wanted = "cpu" if cpu else device
        if wanted and shared.device.type != wanted:
            raise UsageError(
                f"device {wanted} was asked for, but this process already uses {shared.device.type}",
                allowed="one device kind in a process",
                next_step="pass the same cpu/device to the first Accelerator or PartialState of the script",
            )

    @property
    def environment(self) -> WorkerEnvironment:
        return self._shared.environment

    @property
    def device(self) -> torch.device:
        return self._shared.device

    @property
    def guard(self) -> Guard | None:
        """None where there is one process."""
        if self._shared.closed:
            raise UsageError(
                "a collective after the process group was closed",
                allowed="collectives before end_training()",
                next_step="move end_training() to the end of the script",
            )
        return self._shared.guard

    @property
    def num_processes(self) -> int:
        return self.environment.world_size

    @property
    def process_index(self) -> int:
        return self.environment.rank

    @property
    def local_process_index(self) -> int:
        return self.environment.local_rank

    @property
    def distributed_type(self) -> str:
        """NO, or MULTI_ and the device kind."""
        if self.num_processes == 1:
            return "NO"
        return {"cuda": "MULTI_GPU", "cpu": "MULTI_CPU"}.get(self.device.type, f"MULTI_{self.device.type.upper()}")

    @property
    def use_distributed(self) -> bool:
        return self.num_processes > 1

    @property
    def is_main_process(self) -> bool:
        return self.process_index == 0

    @property
    def is_local_main_process(self) -> bool:
        return self.local_process_index == 0

    @property
    def is_last_process(self) -> bool:
        return self.process_index == self.num_processes - 1

    def wait_for_everyone(self) -> None:
        """Return when every rank has come here.

        Raises:
            DistributedError: a rank did not come within the deadline; it is named.
        """
        if self.guard is not None:
            synchronize(self.device)
            self.guard.meet("wait_for_everyone")

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """The main process runs the block before the others; they go on even if it raises."""
        with self._first(self.is_main_process):
            yield

    @contextmanager
    def local_main_process_first(self) -> Iterator[None]:
        """On each machine, the first process runs the block before the others."""
        with self._first(self.is_local_main_process):
            yield

    @contextmanager
    def _first(self, first: bool) -> Iterator[None]:
        guard = self.guard
        if guard is None:
            yield
            return
        if not first:
            guard.meet("main_process_first")
            yield
            return
        try:
            with guard.busy():
                yield
        finally:
            guard.meet("main_process_first")

    @contextmanager
    def split_between_processes(self, inputs: Any, apply_padding: bool = False) -> Iterator[Any]:
        """This rank's share of a list, tuple, tensor or dict of them; the first ranks take the remainder.

        Args:
            apply_padding: repeat the last element so that all shares have the same length.
        """
        if isinstance(inputs, dict):
            lengths = {len(value) for value in inputs.values()}
            if len(lengths) > 1:
                raise UsageError(
                    f"split_between_processes of a dict with values of lengths {sorted(lengths)}",
                    allowed="values of one length",
                    next_step="cut or fill the values to the same length",
                )
            yield {key: self._share(value, apply_padding) for key, value in inputs.items()}
            return
        yield self._share(inputs, apply_padding)

    def _share(self, values: Any, apply_padding: bool) -> Any:
        base, extra = divmod(len(values), self.num_processes)
        rank = self.process_index
        start = rank * base + min(rank, extra)
        share = values[start : start + base + (rank < extra)]
        if not apply_padding or not extra or rank < extra:
            return share
        last = values[-1:]
        if isinstance(values, torch.Tensor):
            return torch.cat([share, last.to(share.device)])
        return share + last

    def on_main_process(self, function: Callable[P, R]) -> Callable[P, R | None]:
        """Decorate: the function runs on the main process alone, the others get None."""
        return self._only(lambda: self.is_main_process, function)

    def on_local_main_process(self, function: Callable[P, R]) -> Callable[P, R | None]:
        """Decorate: the function runs on the first process of each machine alone."""
        return self._only(lambda: self.is_local_main_process, function)

    def on_last_process(self, function: Callable[P, R]) -> Callable[P, R | None]:
        """Decorate: the function runs on the last process alone."""
        return self._only(lambda: self.is_last_process, function)

    def on_process(self, function: Callable[P, R], process_index: int) -> Callable[P, R | None]:
        """Wrap: the function runs on the process with this index alone."""
        return self._only(lambda: self.process_index == process_index, function)

    def _only(self, condition: Callable[[], bool], function: Callable[P, R]) -> Callable[P, R | None]:
        @wraps(function)
        def wrapped(*args: P.args, **kwargs: P.kwargs) -> R | None:
            return function(*args, **kwargs) if condition() else None

        return wrapped

    def print(self, *args: Any, **kwargs: Any) -> None:
        """print() on the first process of each machine."""
        if self.is_local_main_process:
            print(*args, **kwargs)  # noqa: T201  # to print is what it is for

    def destroy_process_group(self) -> None:
        """Close the group if this process opened it. Runs by itself at exit, so that a run that worked ends with 0."""
        shared = type(self)._process
        if shared is None or shared.closed:
            return
        shared.closed = True
        if shared.guard is None:
            return
        try:
            shared.guard.leave()
        except RuntimeError:
            # The store's host may be gone already; there is nobody left to tell.
            return
        finally:
            if shared.owns_group and dist.is_initialized():
                dist.destroy_process_group()

    @property
    def _shared(self) -> _Process:
        shared = type(self)._process
        assert shared is not None, "PartialState.__init__ sets it"
        return shared

    def __repr__(self) -> str:
        return (
            f"PartialState(rank {self.process_index} of {self.num_processes}, "
            f"local rank {self.local_process_index}, device {self.device})"
        )


def _start(environment: WorkerEnvironment, *, kind: str, backend: str, timeout_s: float, deadline_s: float) -> _Process:
    device = pick_device(kind, local_rank=environment.local_rank, local_world_size=environment.local_world_size)
    if environment.world_size == 1:
        return _Process(environment, device, guard=None, owns_group=False)
    owns_group = not dist.is_initialized()
    if owns_group:
        dist.init_process_group(backend=backend or communication_backend(device), timeout=timedelta(seconds=timeout_s))
    elif dist.get_world_size() != environment.world_size:
        raise UsageError(
            f"the process group has {dist.get_world_size()} ranks, but WORLD_SIZE={environment.world_size}",
            allowed="one group over all processes",
            next_step="let Accelerator start the process group",
        )
    store = dist.PrefixStore("forerun", dist.distributed_c10d._get_default_store())  # type: ignore[attr-defined]  # public, unlisted
    guard = Guard(
        store, rank=environment.rank, world_size=environment.world_size, deadline_s=min(deadline_s, timeout_s)
    )
    return _Process(environment, device, guard, owns_group)
