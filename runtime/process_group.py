"""The process group's opening, and how to break a collective in which ranks wait for one that will not come."""

import contextlib
import os
import socket
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from .procfs import thread_activity

_DESCRIPTORS = "/proc/self/fd"
_GLOO_THREAD = "pt_gloo_runloop"
_YIELD_S = 0.001


@dataclass(frozen=True)
class OpenGroup:
    """The default process group as it was opened.

    Attributes:
        connections: the sockets over which gloo's ranks talk, as (descriptor, inode); empty where the system has no
            /proc, or another backend is used.
    """

    backend: str
    timeout_s: float
    connections: frozenset[tuple[int, str]]

    def break_collectives(self) -> None:
        """Let every collective of this rank fail now, one in which it waits already included. Any thread may call it.

        gloo has no way to give up an operation before its timeout, so its connections are shut; NCCL is aborted.
        """
        for descriptor, inode in self.connections:
            _shut(descriptor, inode)
        if "nccl" in self.backend and dist.is_initialized():
            group: Any = dist.group.WORLD
            group._get_backend(torch.device("cuda")).abort()

    def reopen(self, number: int) -> "OpenGroup":
        """Close the group and open it anew; on all ranks together. What was made for the old one is of no use then.

        Args:
            number: of this opening, the same on every rank.
        """
        store = distributed_c10d._get_default_store()
        rank, world_size = dist.get_rank(), dist.get_world_size()
        dist.destroy_process_group()
        return open_group(
            self.backend,
            timeout_s=self.timeout_s,
            store=distributed_c10d.PrefixStore(f"group/{number}", store),
            rank=rank,
            world_size=world_size,
        )


def open_group(backend: str, *, timeout_s: float, **where: Any) -> OpenGroup:
    """Open the default process group.

    Args:
        where: store or init_method, rank and world_size; without them the environment says where, as torchrun sets it.
    """
    before = _sockets()
    dist.init_process_group(backend=backend, timeout=timedelta(seconds=timeout_s), **where)
    store_port = _store_port(distributed_c10d._get_default_store())
    opened = [entry for entry in _sockets() - before if _is_connection(*entry, but_not=store_port)]
    return OpenGroup(backend, timeout_s, frozenset(opened) if "gloo" in backend else frozenset())


def let_threads_rest(deadline_s: float = 5.0) -> None:
    """Wait until gloo's threads hold nothing of Python any more; the last thing before the interpreter is torn down.

    A thread lets go of a collective's tensors a moment after the collective ended, and needs the interpreter for it. If
    that is being torn down by then, the process dies of SIGABRT ("terminate called without an active exception") though
    all its work was done. Closing the group does not help while a model in DDP still refers to it.

    A thread is at rest if it sleeps and does not run although this one gives the interpreter away. One that waits for
    another rank is at rest too. Where the system has no /proc, nothing is waited for.
    """
    end = time.monotonic() + deadline_s
    before = thread_activity(_GLOO_THREAD)
    while before and time.monotonic() < end:
        time.sleep(_YIELD_S)
        after = thread_activity(_GLOO_THREAD)
        if after == before and all(state == "S" for state, _ in after.values()):
            return
        before = after


def _sockets() -> set[tuple[int, str]]:
    found = set()
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(_DESCRIPTORS):
            target = _target(int(name))
            if target.startswith("socket:"):
                found.add((int(name), target))
    return found


def _target(descriptor: int) -> str:
    try:
        return os.readlink(f"{_DESCRIPTORS}/{descriptor}")
    except OSError:
        return ""


def _is_connection(descriptor: int, inode: str, *, but_not: int | None) -> bool:
    """Whether it is a connection of this group to another rank, and not one to the store."""
    with _opened(descriptor, inode) as found:
        if found is None:
            return False
        try:
            ports = {found.getsockname()[1], found.getpeername()[1]}
        except (OSError, IndexError):
            return False  # it listens, or belongs to no network
        return but_not not in ports


def _shut(descriptor: int, inode: str) -> None:
    with _opened(descriptor, inode) as found, contextlib.suppress(OSError):
        if found is not None:
            found.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def _opened(descriptor: int, inode: str) -> Any:
    """A socket object over a copy of the descriptor, if it still is that socket; closing it leaves the original."""
    try:
        copy = os.dup(descriptor)
    except OSError:
        yield None
        return
    if _target(copy) != inode:
        os.close(copy)
        yield None
        return
    with socket.socket(fileno=copy) as found:
        yield found


def _store_port(store: Any) -> int | None:
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return getattr(store, "port", None)
