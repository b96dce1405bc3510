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
    if sharding.world_size == 1:
        return (Share(b if type(b) is list else list(b), len(b)) for b in islice(batches, start, None))
    own = (shares[sharding.rank] for shares in deal_rounds(batches, sharding, start=start))
    return (share for share in own if share is not None)


def deal_rounds(
    batches: Iterable[Sequence[T]], sharding: Sharding, *, start: int = 0
) -> Iterator[list[Share[T] | None]]:
    """What each rank takes in each round of one epoch; None for a rank without a batch in the last round.

    Args:
        sharding: of any rank.
        start: number of dealt-out batches to pass over (for all ranks together).
    """
    if sharding.world_size == 1:
        return ([Share(list(batch), len(batch))] for batch in islice(batches, start, None))
    return (_split if sharding.split else _in_turn)(batches, sharding, start)


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


def _split(batches: Iterable[Sequence[T]], sharding: Sharding, start: int) -> Iterator[list[Share[T] | None]]:
    whole, piece = sharding.batch_size or 0, sharding.per_device or 0
    head: list[T] = []
    for number, batch in enumerate(batches):
        items = list(batch)
        head = head or items
        if number < start:
            continue
        size = len(items)
        if size > whole:
            raise UsageError(
                f"split_batches of a batch of {size} samples, where the batch sampler's batch_size is {whole}",
                allowed="batches of at most that size",
                next_step="correct the sampler's batch_size, or set split_batches=False",
            )
        if sharding.even and size < whole:
            items += islice(cycle(head), whole - size)
        pieces = [items[begin : begin + piece] for begin in range(0, whole, piece)]
        yield [
            Share(own, max(0, min(len(own), size - rank * piece))) if own else None for rank, own in enumerate(pieces)
        ]


def _in_turn(batches: Iterable[Sequence[T]], sharding: Sharding, start: int) -> Iterator[list[Share[T] | None]]:
    head: list[list[T]] = []
    current: list[list[T]] = []
    for number, batch in enumerate(batches):
        items = list(batch)
        if len(head) < sharding.world_size:
            head.append(items)
        if number < start:
            continue
        current.append(items)
        if len(current) == sharding.world_size:
            yield _round(current, head, sharding)
            current = []
    if not current:
        return
    if not sharding.even:
        yield [*_whole(current), *repeat(None, sharding.world_size - len(current))]
    elif not sharding.drop_last:
        yield _round(current, head, sharding)


def _round(current: list[list[T]], head: list[list[T]], sharding: Sharding) -> list[Share[T] | None]:
    """One batch for every rank, filled up where that is asked for. The same on every rank."""
    if not sharding.even:
        return [*_whole(current)]
    missing = sharding.world_size - len(current)
    if sharding.batch_size is None:
        repeated = islice(cycle(head), missing)
        return [*_whole(current), *(Share(list(items), 0) for items in repeated)]
    filling = cycle(chain.from_iterable(head))
    shares: list[Share[T] | None] = []
    for items in [*current, *([] for _ in range(missing))]:
        num_valid = len(items)
        shares.append(Share(items + list(islice(filling, sharding.batch_size - num_valid)), num_valid))
    return shares


def _whole(batches: list[list[T]]) -> list[Share[T]]:
    return [Share(items, len(items)) for items in batches]
