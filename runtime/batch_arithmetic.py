"""Batch sizes that must agree: the same verdict before a launch, in a dry run and at run time. Standard library alone.

train = micro x accumulation x data-parallel ranks, as DeepSpeed defines them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from .errors import ConfigurationError


@dataclass(frozen=True)
class BatchNumber:
    """One of the numbers, None if it was left open ("auto", or not given); `place` is who said it."""

    value: int | None = None
    place: str = ""


OPEN = BatchNumber()


@dataclass(frozen=True)
class BatchSettings:
    """What was asked for.

    Attributes:
        train: samples of one optimizer step, over all data-parallel ranks.
        micro: samples of one rank's micro-batch.
        accumulation: micro-batches of one optimizer step.
        dataloader: batch size of the script's loader, if it is known already.
        ranks: data-parallel ranks, if they are known already.
    """

    train: BatchNumber = OPEN
    micro: BatchNumber = OPEN
    accumulation: BatchNumber = OPEN
    dataloader: BatchNumber = OPEN
    ranks: BatchNumber = OPEN


@dataclass(frozen=True)
class BatchVerdict:
    """The numbers that agree; None where nothing says them yet. `derived` tells which were worked out, and how."""

    train: int | None
    micro: int | None
    accumulation: int | None
    ranks: int | None
    derived: tuple[str, ...] = field(default=())

    @property
    def formula(self) -> str:
        """Such as "24 = 3 x 4 x 2" (train = micro x accumulation x ranks); empty if a number is open."""
        numbers = (self.train, self.micro, self.accumulation, self.ranks)
        if None in numbers:
            return ""
        return "{} = {} x {} x {}".format(*numbers)


def settle_batches(settings: BatchSettings) -> BatchVerdict:
    """Fill in what follows from the rest.

    A micro-batch that nobody gives is the loader's; an accumulation that nobody gives follows from the others, and is
    1 if the train batch is open too.

    Raises:
        ConfigurationError: the numbers contradict each other; it shows the sum.
    """
    _require_positive(settings)
    given, loader, ranks = settings.micro, settings.dataloader, settings.ranks.value
    if given.value is not None and loader.value is not None and given.value != loader.value:
        raise ConfigurationError(
            f"the micro-batch is {given.value} ({given.place}), but the loader's batch is {loader.value} "
            f"({loader.place})",
            allowed="one number",
            next_step="set one of them to the other, or the micro-batch to auto",
        )
    derived: list[str] = []
    micro, accumulation, train = given.value, settings.accumulation.value, settings.train.value
    if micro is None and loader.value is not None:
        micro = loader.value
        derived.append(f"micro-batch {micro}: the loader's")
    if micro is None and None not in (train, accumulation, ranks):
        micro = _divide(settings, train, accumulation, ranks, "micro-batch")
        derived.append(f"micro-batch {micro} = {train} / ({accumulation} x {ranks})")
    if accumulation is None and None not in (train, micro, ranks):
        accumulation = _divide(settings, train, micro, ranks, "accumulation")
        derived.append(f"accumulation {accumulation} = {train} / ({micro} x {ranks})")
    elif accumulation is None and train is None:
        accumulation = 1
        derived.append("accumulation 1: the default")
    if train is None and None not in (micro, accumulation, ranks):
        train = _product(micro, accumulation, ranks)
        derived.append(f"train batch {train} = {micro} x {accumulation} x {ranks}")
    verdict = BatchVerdict(train, micro, accumulation, ranks, tuple(derived))
    _require_sum(settings, verdict)
    return verdict


def _product(*numbers: int | None) -> int:
    product = 1
    for number in numbers:
        assert number is not None
        product *= number
    return product


def _divide(settings: BatchSettings, train: int | None, first: int | None, second: int | None, what: str) -> int:
    assert train is not None
    divisor = _product(first, second)
    quotient, rest = divmod(train, divisor)
    if rest or not quotient:
        raise ConfigurationError(
            f"train_batch_size {train} ({settings.train.place}) is no multiple of {first} x {second} = {divisor}, "
            f"so that no {what} fits",
            allowed="train batch = micro-batch x accumulation x data-parallel processes",
            next_step="change the train batch, the micro-batch or the number of processes",
        )
    return quotient


def _require_sum(settings: BatchSettings, verdict: BatchVerdict) -> None:
    factors = (verdict.micro, verdict.accumulation, verdict.ranks)
    if verdict.train is None or None in factors:
        return
    product = _product(*factors)
    if verdict.train == product:
        return
    said = [
        f"{name} {number.value} ({number.place})"
        for name, number in (
            ("train batch", settings.train),
            ("micro-batch", settings.micro if settings.micro.value is not None else settings.dataloader),
            ("accumulation", settings.accumulation),
            ("data-parallel processes", settings.ranks),
        )
        if number.value is not None and number.place
    ]
    raise ConfigurationError(
        f"{verdict.train} != {verdict.micro} x {verdict.accumulation} x {verdict.ranks} = {product}: "
        + ", ".join(said),
        allowed="train batch = micro-batch x accumulation x data-parallel processes",
        next_step="change one of them, or set it to auto",
    )


def _require_positive(settings: BatchSettings) -> None:
    wrong = [f"{name} {number.value} ({number.place})" for name, number in _named(settings) if _is_wrong(number)]
    if wrong:
        raise ConfigurationError(", ".join(wrong), allowed="whole numbers of at least 1, or auto")


def _named(settings: BatchSettings) -> Iterator[tuple[str, BatchNumber]]:
    yield "train batch", settings.train
    yield "micro-batch", settings.micro
    yield "accumulation", settings.accumulation
    yield "loader's batch", settings.dataloader
    yield "data-parallel processes", settings.ranks


def _is_wrong(number: BatchNumber) -> bool:
    return number.value is not None and number.value < 1
