"""Who this process is: rank, world, device, and the one process group, from its start to its orderly end."""

import atexit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial, wraps
from typing import Any, ClassVar, ParamSpec, TypeVar

import torch
import torch.distributed as dist

from .devices import communication_backend, pick_device, synchronize
from .env import WorkerEnvironment, read_environment
from .errors import StateResetError, UsageError
from .guard import Guard
from .process_group import OpenGroup, let_threads_rest, open_group

P = ParamSpec("P")
R = TypeVar("R")

GROUP_TIMEOUT_S = 1800.0
COLLECTIVE_DEADLINE_S = 300.0


class DistributedType(StrEnum):
    """How processes work together, in the words of the Accelerate API. Only some of them occur here."""

    NO = "NO"
    MULTI_CPU = "MULTI_CPU"
    MULTI_GPU = "MULTI_GPU"
    MULTI_NPU = "MULTI_NPU"
    MULTI_MLU = "MULTI_MLU"
    MULTI_SDAA = "MULTI_SDAA"
    MULTI_MUSA = "MULTI_MUSA"
    MULTI_XPU = "MULTI_XPU"
    MULTI_HPU = "MULTI_HPU"
    MULTI_NEURON = "MULTI_NEURON"
    DEEPSPEED = "DEEPSPEED"
    FSDP = "FSDP"
    XLA = "XLA"
    MEGATRON_LM = "MEGATRON_LM"


_TYPES = {"cuda": DistributedType.MULTI_GPU, "cpu": DistributedType.MULTI_CPU, "xla": DistributedType.XLA}


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
        init_method: where the ranks meet; None takes what the launcher says.
        timeout_s: after which the process group itself gives up (backward's all-reduce included).
        collective_deadline_s: how long a rank waits for the others before a collective of ours is an error.

    Attributes:
        debug: accepted for either value; shapes and keys are always compared before a collective.
    """

    _process: ClassVar[_Process | None] = None
    _num_starts: ClassVar[int] = 0
    _group: ClassVar[OpenGroup | None] = None  # the one that we opened
    debug = False

    def __init__(
        self,
        cpu: bool = False,
        *,
        device: str = "",
        backend: str = "",
        init_method: str | None = None,
        timeout_s: float = GROUP_TIMEOUT_S,
        collective_deadline_s: float = COLLECTIVE_DEADLINE_S,
    ) -> None:
        shared = PartialState._process
        if shared is None:
            environment = read_environment()
            kind = "cpu" if cpu else device or environment.device
            PartialState._process = _start(
                environment,
                kind=kind,
                backend=backend,
                init_method=init_method,
                timeout_s=timeout_s,
                deadline_s=collective_deadline_s,
            )
            atexit.register(let_threads_rest)  # runs after what was registered later, so after the group's end
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
    def distributed_type(self) -> DistributedType:
        """NO where there is one process, else what follows from the device."""
        return DistributedType.NO if self.num_processes == 1 else _TYPES[self.device.type]

    @property
    def backend(self) -> str | None:
        """The process group's backend; None where there is one process."""
        return dist.get_backend() if self.use_distributed and dist.is_initialized() else None

    @property
    def initialized(self) -> bool:
        """Whether this process has its state; False after a reset."""
        return PartialState._process is not None

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
        end = start + base + (rank < extra)
        filled = bool(apply_padding and extra and rank >= extra)
        if hasattr(values, "column_names"):  # a Hugging Face data set is cut by rows; slicing gives columns
            return values.select([*range(start, end), *([len(values) - 1] if filled else [])])
        share = values[start:end]
        if not filled:
            return share
        last = values[-1:]
        return torch.cat([share, last.to(share.device)]) if isinstance(values, torch.Tensor) else share + last

    def on_main_process(self, function: Callable[P, R]) -> Callable[P, R | None]:
        """Decorate: the function runs on the main process alone, the others get None."""
        return _only(lambda: self.is_main_process, function)

    def on_local_main_process(self, function: Callable[P, R]) -> Callable[P, R | None]:
        """Decorate: the function runs on the first process of each machine alone."""
        return _only(lambda: self.is_local_main_process, function)

    def on_last_process(self, function: Callable[P, R]) -> Callable[P, R | None]:
        """Decorate: the function runs on the last process alone."""
        return _only(lambda: self.is_last_process, function)

    def on_process(self, function: Callable[..., Any] | None = None, process_index: int | None = None) -> Any:
        """Decorate: the function runs on the process with this index alone. Without a function, a decorator."""
        index = _index(process_index, "on_process(process_index=...)")
        if function is None:
            return partial(self.on_process, process_index=index)
        return _only(lambda: self.process_index == index, function)

    def on_local_process(
        self, function: Callable[..., Any] | None = None, local_process_index: int | None = None
    ) -> Any:
        """Decorate: the function runs on the process with this index of each machine alone."""
        index = _index(local_process_index, "on_local_process(local_process_index=...)")
        if function is None:
            return partial(self.on_local_process, local_process_index=index)
        return _only(lambda: self.local_process_index == index, function)

    def print(self, *args: Any, **kwargs: Any) -> None:
        """print() on the first process of each machine."""
        if self.is_local_main_process:
            print(*args, **kwargs)  # noqa: T201  # to print is what it is for

    def destroy_process_group(self) -> None:
        """Close the group if this process opened it. Runs by itself at exit, so that a run that worked ends with 0."""
        shared = PartialState._process
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
                PartialState._group = None

    @staticmethod
    def restart_group() -> None:
        """Open the group anew, after a collective that cannot be finished; on all ranks together.

        What was made for the old group (a model in DDP, a mesh) is of no use afterwards.
        """
        shared, group = PartialState._process, PartialState._group
        assert shared is not None, "the caller asks first"
        assert shared.guard is not None, "the caller asks first"
        assert group is not None, "the caller asks first"
        deadline_s = shared.guard.deadline_s
        PartialState._group = group.reopen(PartialState._num_starts)
        shared.guard = _new_guard(shared.environment, deadline_s=deadline_s)

    @staticmethod
    def _reset_state() -> None:
        """Forget rank and device, as a test does between two scripts; an open process group stays open."""
        PartialState._process = None

    @property
    def _shared(self) -> _Process:
        shared = PartialState._process
        if shared is None:
            raise StateResetError(type(self).__name__)
        return shared

    def __repr__(self) -> str:
        return (
            f"PartialState(rank {self.process_index} of {self.num_processes}, "
            f"local rank {self.local_process_index}, device {self.device})"
        )


def _only(condition: Callable[[], bool], function: Callable[P, R]) -> Callable[P, R | None]:
    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R | None:
        return function(*args, **kwargs) if condition() else None

    return wrapped


def _index(given: int | None, call: str) -> int:
    if given is None:
        raise UsageError(f"{call} without a number", allowed="the index of a process", next_step="name the process")
    return given


def _start(
    environment: WorkerEnvironment,
    *,
    kind: str,
    backend: str,
    init_method: str | None,
    timeout_s: float,
    deadline_s: float,
) -> _Process:
    device = pick_device(kind, local_rank=environment.local_rank, local_world_size=environment.local_world_size)
    if environment.world_size == 1:
        return _Process(environment, device, guard=None, owns_group=False)
    if not dist.is_initialized():
        where: dict[str, Any] = {}
        if init_method is not None:
            where = {"init_method": init_method, "rank": environment.rank, "world_size": environment.world_size}
        PartialState._group = open_group(backend or communication_backend(device), timeout_s=timeout_s, **where)
    elif dist.get_world_size() != environment.world_size:
        raise UsageError(
            f"the process group has {dist.get_world_size()} ranks, but WORLD_SIZE={environment.world_size}",
            allowed="one group over all processes",
            next_step="let Accelerator start the process group",
        )
    guard = _new_guard(environment, deadline_s=min(deadline_s, timeout_s))
    return _Process(environment, device, guard, PartialState._group is not None)


def _new_guard(environment: WorkerEnvironment, *, deadline_s: float) -> Guard:
    # A new guard begins anew at the first meeting, so its keys must differ from those of the guard before.
    PartialState._num_starts += 1
    prefix = f"forerun/{PartialState._num_starts}"
    store = dist.PrefixStore(prefix, dist.distributed_c10d._get_default_store())  # type: ignore[attr-defined]  # public, unlisted
    return Guard(store, rank=environment.rank, world_size=environment.world_size, deadline_s=deadline_s)
