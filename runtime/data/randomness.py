"""Random numbers that data draws from the global generators, kept apart from those of the training."""

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any, TypeVar

import numpy as np
import torch

T = TypeVar("T")
_EMPTY: Any = object()


def apart(things: Iterable[T], seed: int) -> Iterator[T]:
    """The same elements, each produced with python's, numpy's and torch's generators in a state of its own.

    What is drawn depends on the seed alone, so ranks that read one stream read the same, and a training that draws
    in between is not disturbed.
    """
    own: Any = None
    iterator: Iterator[T] | None = None
    while True:
        before = _states()
        if own is None:
            _begin(seed)
        else:
            _restore(own)
        try:
            if iterator is None:
                iterator = iter(things)
            item = next(iterator, _EMPTY)
        finally:
            own = _states()
            _restore(before)
        if item is _EMPTY:
            return
        yield item


@contextmanager
def seeded_generators(seed: int) -> Iterator[None]:
    """While inside, the global generators begin at `seed`; afterwards they stand where they stood."""
    before = _states()
    _begin(seed)
    try:
        yield
    finally:
        _restore(before)


def seed_generators(seed: int) -> None:
    """Seed python's, numpy's and torch's generators of this process (the CPU's alone)."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)


def reseeded(sampler: Any, seed: int) -> Any:
    """A copy of a sampler whose own generators begin at the seed."""
    own = copy(sampler)
    for name, value in vars(own).items() if hasattr(own, "__dict__") else ():
        if isinstance(value, torch.Generator) or name == "generator":
            setattr(own, name, torch.Generator().manual_seed(seed))
        elif isinstance(value, np.random.Generator):
            setattr(own, name, np.random.default_rng(seed))
        elif isinstance(value, np.random.RandomState):
            setattr(own, name, np.random.RandomState(seed % 2**32))
        elif isinstance(value, random.Random):
            setattr(own, name, random.Random(seed))
    return own


def _begin(seed: int) -> None:
    """Like seed_generators, but with another bit generator for numpy, so that the former keeps its state.

    Reading the state out would cost more than a batch. Exchanging loses the second value of a pair of normal ones where
    only one was drawn; that happens at the same batches in every run.
    """
    np.random.set_bit_generator(np.random.MT19937(seed))  # type: ignore[attr-defined]  # public, unlisted
    random.seed(seed)
    torch.default_generator.manual_seed(seed)


def _states() -> tuple[Any, Any, torch.Tensor]:
    return random.getstate(), np.random.get_bit_generator(), torch.default_generator.get_state()  # type: ignore[attr-defined]  # likewise


def _restore(states: tuple[Any, Any, torch.Tensor]) -> None:
    python, numpy, of_torch = states
    random.setstate(python)
    np.random.set_bit_generator(numpy)  # type: ignore[attr-defined]  # likewise
    torch.default_generator.set_state(of_torch)
