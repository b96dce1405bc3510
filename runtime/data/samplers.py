"""How batches are dealt out to ranks: pure arithmetic over batches of indices (or of samples)."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, cycle, islice, repeat
from typing import Generic, NamedTuple, TypeVar

from ..errors import ConfigurationError, UsageError

T = TypeVar("T")


@dataclass(frozen=True)
class Sharding:
    """How one rank takes its share.

    Attributes:
        batch_size: nominal size of the batches that are dealt out; None if sizes vary.
        split: every batch is cut into one piece per rank; else ranks take whole batches in turn.
        even: all ranks take the same number of full batches, filled with the epoch's first samples.
        drop_last: an incomplete last round is dropped (even) or dealt out as it is (not even).
    """

    rank: int
    world_size: int
    batch_size: int | None
    split: bool = False
    even: bool = True
    drop_last: bool = False

    def __post_init__(self) -> None:
        if not self.split or self.world_size == 1:
            return
        if self.batch_size is None or self.batch_size % self.world_size:
            raise ConfigurationError(
                f"split_batches with batch size {self.batch_size} on {self.world_size} processes",
                allowed="a fixed batch size that the number of processes divides",
                next_step="change the loader's batch size, or set split_batches=False",
            )

    @property
    def per_device(self) -> int | None:
        """Samples that one rank takes in a full micro-batch."""
        if self.batch_size is None or not self.split:
            return self.batch_size
        return self.batch_size // self.world_size

    def base_batches(self, rank_batches: int) -> int:
        """Dealt-out batches that all ranks together have taken after `rank_batches` steps."""
        return rank_batches if self.split else rank_batches * self.world_size


class Share(NamedTuple, Generic[T]):
    """One rank's batch: only the first `num_valid` items count; the others are repetitions."""

    items: list[T]
    num_valid: int


def shard_batches(batches: Iterable[Sequence[T]], sharding: Sharding, *, start: int = 0) -> Iterator[Share[T]]:
    """This rank's batches of one epoch.

    Args:
        start: number of dealt-out batches to pass over (for all ranks together).

    Raises:
        UsageError: a batch is larger than the nominal size that is to be split.
    """
    # Copies, for a sampler may fill one list again and again, and batches are held until the next ones are known.
    owned: Iterator[list[T]] = map(list, batches)
    if sharding.world_size == 1:
        return map(_whole, islice(owned, start, None))
    return (_own_pieces if sharding.split else _own_turns)(owned, sharding, start)


def deal_rounds(
    batches: Iterable[Sequence[T]], sharding: Sharding, *, start: int = 0
) -> Iterator[list[Share[T] | None]]:
    """What each rank takes in each round of one epoch; None for a rank without a batch in the last round.

    Args:
        sharding: of any rank.
        start: number of dealt-out batches to pass over (for all ranks together).
    """
    owned: Iterator[list[T]] = map(list, batches)
    if sharding.world_size == 1:
        return ([_whole(items)] for items in islice(owned, start, None))
    if sharding.split:
        return (_pieces(items, head, sharding) for items, head in _to_split(owned, sharding, start))
    dealt = (_round(current, head, sharding) for current, head in _rounds(owned, sharding, start))
    return (shares for shares in dealt if shares)


def count_batches(num_batches: int, last_size: int | None, sharding: Sharding) -> int:
    """How many batches shard_batches yields for this rank from `start` 0.

    Args:
        num_batches: batches that are dealt out.
        last_size: size of the last one; None if unknown, which is enough unless batches are split unevenly.
    """
    world, rank = sharding.world_size, sharding.rank
    if world == 1 or num_batches == 0:
        return num_batches
    if sharding.split:
        piece = sharding.per_device or 0
        short = not sharding.even and last_size is not None and last_size <= rank * piece
        return num_batches - short
    if not sharding.even:
        return (num_batches - rank + world - 1) // world if num_batches > rank else 0
    full, rest = divmod(num_batches, world)
    return full + (rest > 0 and not sharding.drop_last)


def _own_pieces(batches: Iterator[list[T]], sharding: Sharding, start: int) -> Iterator[Share[T]]:
    piece = sharding.per_device or 0
    begin, end = sharding.rank * piece, (sharding.rank + 1) * piece
    for items, head in _to_split(batches, sharding, start):
        if len(items) == sharding.batch_size:
            yield Share(items[begin:end], piece)
        elif (share := _pieces(items, head, sharding)[sharding.rank]) is not None:
            yield share


def _own_turns(batches: Iterator[list[T]], sharding: Sharding, start: int) -> Iterator[Share[T]]:
    rank, world, size = sharding.rank, sharding.world_size, sharding.batch_size
    for current, head in _rounds(batches, sharding, start):
        if len(current) == world and (not sharding.even or size is None or len(current[rank]) == size):
            yield _whole(current[rank])
        elif (shares := _round(current, head, sharding)) and (share := shares[rank]) is not None:
            yield share


def _to_split(batches: Iterator[list[T]], sharding: Sharding, start: int) -> Iterator[tuple[list[T], list[T]]]:
    """Each batch from `start` on, and the epoch's first one that is not empty."""
    whole = sharding.batch_size or 0
    head: list[T] = []
    for number, items in enumerate(batches):
        head = head or [*items]
        if number < start:
            continue
        if len(items) > whole:
            raise UsageError(
                f"split_batches of a batch of {len(items)} samples, where the batch sampler's batch_size is {whole}",
                allowed="batches of at most that size",
                next_step="correct the sampler's batch_size, or set split_batches=False",
            )
        yield items, head


def _pieces(items: list[T], head: list[T], sharding: Sharding) -> list[Share[T] | None]:
    """A batch cut into one piece for each rank, filled up from `head` where that is asked for."""
    whole, piece, size = sharding.batch_size or 0, sharding.per_device or 0, len(items)
    if sharding.even and size < whole:
        items = [*items, *islice(cycle(head), whole - size)]
    pieces = [items[begin : begin + piece] for begin in range(0, whole, piece)]
    return [Share(own, max(0, min(len(own), size - rank * piece))) if own else None for rank, own in enumerate(pieces)]


def _rounds(
    batches: Iterator[list[T]], sharding: Sharding, start: int
) -> Iterator[tuple[list[list[T]], list[list[T]]]]:
    """As many batches as there are ranks, the last time perhaps fewer, and the epoch's first ones."""
    first = list(islice(batches, sharding.world_size))
    head = [[*items] for items in first]
    left = islice(chain(first, batches), start, None)
    while current := list(islice(left, sharding.world_size)):
        yield current, head


def _round(current: list[list[T]], head: list[list[T]], sharding: Sharding) -> list[Share[T] | None]:
    """One batch for every rank, filled up where that is asked for; empty if the round is dropped.

    The same on every rank.
    """
    missing = sharding.world_size - len(current)
    if not sharding.even:
        return [*map(_whole, current), *repeat(None, missing)]
    if missing and sharding.drop_last:
        return []
    if sharding.batch_size is None:
        repeated = islice(cycle(head), missing)
        return [*map(_whole, current), *(Share([*items], 0) for items in repeated)]
    filling = cycle(chain.from_iterable(head))
    shares: list[Share[T] | None] = []
    for items in [*current, *([] for _ in range(missing))]:
        num_valid = len(items)
        shares.append(Share(items + list(islice(filling, sharding.batch_size - num_valid)), num_valid))
    return shares


def _whole(items: list[T]) -> Share[T]:
    return Share(items, len(items))
