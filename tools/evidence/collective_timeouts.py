"""Which rank did not come: what the ranks that waited in a collective say about those that did not."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .failure_lines import FailureLine

_WATCHDOG = re.compile(r"\[Rank (?P<rank>\d+)\].*?SeqNum=(?P<number>\d+),\s*OpType=(?P<operation>\w+)")


@dataclass(frozen=True)
class CollectiveTimeout:
    """`waiting`: rank that reported -> (sequence number, operation). `silent` is None if the world size is unknown."""

    waiting: dict[int, tuple[int, str]]
    silent: tuple[int, ...] | None

    @property
    def words(self) -> str:
        """What can be said for certain, and what is only suspected."""
        if not self.waiting:
            return "a collective timed out; the log does not say which"
        operations = sorted(set(self.waiting.values()))
        number, operation = operations[0]
        collective = f"collective {number} ({operation})"
        if self.silent:
            who = f"rank {self.silent[0]}" if len(self.silent) == 1 else f"ranks {_listed(self.silent)}"
            return (
                f"{who} did not reach {collective}, where ranks {_listed(sorted(self.waiting))} waited; suspected: a "
                f"hang in user code or uneven data on {who}. A network fault is possible, but nothing here shows one"
            )
        if len(operations) > 1:
            each = ", ".join(f"rank {rank} in {n} ({o})" for rank, (n, o) in sorted(self.waiting.items()))
            return f"the ranks waited in different collectives: {each}; they took different paths through the code"
        return f"ranks {_listed(sorted(self.waiting))} timed out in {collective}; the log names no silent rank"

    @property
    def summary(self) -> str:
        number, operation = min(self.waiting.values())
        ranks = _listed(sorted(self.waiting))
        return f"{len(self.waiting)} ranks ({ranks}) timed out in collective {number} ({operation})"


def read_timeouts(lines: Sequence[FailureLine], *, world_size: int | None) -> CollectiveTimeout:
    """Put the watchdog's messages together; `world_size` tells who is missing."""
    waiting: dict[int, tuple[int, str]] = {}
    for line in lines:
        match = _WATCHDOG.search(line.text)
        if match:
            waiting.setdefault(int(match["rank"]), (int(match["number"]), match["operation"]))
    silent = None if world_size is None else tuple(rank for rank in range(world_size) if rank not in waiting)
    return CollectiveTimeout(waiting, silent)


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
