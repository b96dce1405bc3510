"""The one-rank guard: ranks that meet for a collective agree on it first, or learn within a deadline who is missing."""

import json
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from .errors import DistributedError

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_FIRST_PAUSE_S = 0.0002
_LONGEST_PAUSE_S = 0.02


class KeyValueStore(Protocol):
    """What the guard needs of a torch.distributed store."""

    def set(self, key: str, value: Any, /) -> Any: ...
    def check(self, keys: list[str], /) -> bool: ...
    def multi_get(self, keys: list[str], /) -> list[bytes]: ...
    def delete_key(self, key: str, /) -> bool: ...


def call_site() -> str:
    """File and line of the nearest caller outside this package: the user's own code."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        name = frame.f_code.co_filename
        if not name.startswith((_PACKAGE, "<frozen")) and not name.endswith(os.sep + "contextlib.py"):
            break
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


class Guard:
    """Lets all ranks come to the same operation, at the cost of two round trips to the store.

    Args:
        store: shared by all ranks.
        deadline_s: how long a rank waits for the others; time in which a missing rank says that it is busy is free.
        notice_s: after this long, a line on stderr names who is waited for.
    """

    def __init__(
        self, store: KeyValueStore, *, rank: int, world_size: int, deadline_s: float, notice_s: float = 30.0
    ) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._deadline_s = deadline_s
        self._notice_s = notice_s
        self._sequence = 0
        self.calls: Counter[str] = Counter()
        """How often this process has come to a call site: the same on every rank that is there, whoever counts."""
        self._interruption: str | None = None

    @property
    def num_meetings(self) -> int:
        """How often the ranks have met: the same number on every rank after a meeting."""
        return self._sequence

    @property
    def deadline_s(self) -> float:
        return self._deadline_s

    def copy(self) -> "Guard":
        """One for another thread, over a connection of its own: it may post and look, but not meet."""
        clone = getattr(self._store, "clone", None)
        store = self._store if clone is None else clone()
        return Guard(store, rank=self._rank, world_size=self._world_size, deadline_s=self._deadline_s)

    def interrupt(self, reason: str | None) -> None:
        """Let every wait end with an error that says why, one that goes on already included; None ends that.

        Another thread may call it.
        """
        self._interruption = reason

    def meet(self, operation: str, *, details: Any = None, deadline_s: float | None = None) -> list[Any]:
        """Wait for every rank to come to `operation`.

        Args:
            details: plain JSON data; every rank receives all of them, in rank order.
            deadline_s: how long to wait, where the others cannot be far away; at most the guard's own deadline.

        Raises:
            DistributedError: a rank did not come, has ended, or came to another operation.
        """
        site = call_site()
        self._sequence += 1
        self._store.set(self._key(self._sequence, self._rank), json.dumps([operation, site, details]))
        keys = [self._key(self._sequence, rank) for rank in range(self._world_size)]
        limit_s = None if deadline_s is None else min(deadline_s, self._deadline_s)
        self._await(keys, f"{operation} at {site}", deadline_s=limit_s)
        arrived = [json.loads(raw) for raw in self._store.multi_get(keys)]
        if self._sequence > 2:
            self._store.delete_key(self._key(self._sequence - 2, self._rank))
        if len({name for name, _, _ in arrived}) > 1:
            raise DistributedError(
                "the ranks came to different collectives: "
                + ", ".join(f"rank {rank} to {name} at {where}" for rank, (name, where, _) in enumerate(arrived)),
                allowed="the same collective on every rank, in the same order",
                next_step="call it on all ranks, outside of `if is_main_process`",
            )
        return [detail for _, _, detail in arrived]

    def post(self, key: str, value: str) -> None:
        """Leave a word for the other ranks under a name that both sides know."""
        self._store.set(f"post/{key}", value)

    def fetch(self, key: str, *, operation: str, source: int) -> str:
        """Wait for the word that rank `source` posts under `key`.

        Raises:
            DistributedError: it did not come within the deadline.
        """
        name = f"post/{key}"
        self._await([name], f"{operation} at {call_site()}", ranks=[source])
        return self._store.multi_get([name])[0].decode()

    def look(self, keys: Sequence[str]) -> list[str] | None:
        """The words posted under all of these keys; None while one is missing."""
        names = [f"post/{key}" for key in keys]
        return [raw.decode() for raw in self._store.multi_get(names)] if self._store.check(names) else None

    def withdraw(self, key: str) -> None:
        """Take back a word that was posted."""
        self._store.delete_key(f"post/{key}")

    def next_meeting(self) -> tuple[str, Any] | None:
        """The operation to which another rank has come and this one has not yet, and that rank's details."""
        for rank in range(self._world_size):
            key = self._key(self._sequence + 1, rank)
            if rank != self._rank and self._store.check([key]):
                operation, _, details = json.loads(self._store.multi_get([key])[0])
                return operation, details
        return None

    def has_left(self, rank: int) -> bool:
        """Whether this rank comes to no further collective."""
        return self._store.check([f"left/{rank}"])

    def wait_for_words(self, keys: Sequence[str], *, operation: str) -> list[str]:
        """Wait for the words under these keys, one of each rank, as long as it takes: what comes first may be long.

        Raises:
            DistributedError: a rank has ended without its word.
        """
        names = [f"post/{key}" for key in keys]
        self._await(names, f"{operation} at {call_site()}", deadline_s=math.inf)
        return [raw.decode() for raw in self._store.multi_get(names)]

    @contextmanager
    def busy(self) -> Iterator[None]:
        """While inside, the others wait for this rank without a deadline (it writes a checkpoint, say)."""
        key = f"busy/{self._rank}"
        self._store.set(key, "1")
        try:
            yield
        finally:
            self._store.delete_key(key)

    def leave(self) -> None:
        """Say that this rank comes to no further collective."""
        self._store.set(f"left/{self._rank}", "1")

    def _await(
        self, keys: Sequence[str], what: str, *, ranks: Sequence[int] = (), deadline_s: float | None = None
    ) -> None:
        limit_s = self._deadline_s if deadline_s is None else deadline_s
        started = last_seen_busy = time.monotonic()
        pause_s, noticed = _FIRST_PAUSE_S, False
        while not self._store.check(list(keys)):
            if self._interruption is not None:
                raise self._interrupted(what)
            now = time.monotonic()
            if pause_s >= _LONGEST_PAUSE_S:
                missing = self._missing(keys, ranks)
                if any(self._store.check([f"busy/{rank}"]) for rank in missing):
                    last_seen_busy = now
                gone = [rank for rank in missing if self._store.check([f"left/{rank}"])]
                if gone and not self._store.check(list(keys)):
                    raise self._alone(what, gone, "has ended")
                if now - last_seen_busy > limit_s:
                    raise self._alone(what, missing, f"did not come within {limit_s:g} s")
                if now - started > self._notice_s and not noticed:
                    noticed = True
                    print(f"forerun: rank {self._rank} waits in {what} for ranks {missing}", file=sys.stderr)  # noqa: T201
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)

    def _missing(self, keys: Sequence[str], ranks: Sequence[int]) -> list[int]:
        if ranks:
            return list(ranks)
        return [rank for rank, key in enumerate(keys) if not self._store.check([key])]

    def _alone(self, what: str, missing: list[int], how: str) -> DistributedError:
        names = ", ".join(str(rank) for rank in missing)
        return DistributedError(
            f"rank {self._rank} is in {what}, but rank {names} {how}",
            allowed="the same collective on every rank, in the same order",
            next_step="call it on all ranks, outside of `if is_main_process`, and look at the missing rank's own log",
        )

    def _interrupted(self, what: str) -> DistributedError:
        return DistributedError(
            f"rank {self._rank} waits in {what}, but {self._interruption}",
            allowed="the same collective on every rank, in the same order",
        )

    def _key(self, sequence: int, rank: int) -> str:
        return f"meet/{sequence}/{rank}"
