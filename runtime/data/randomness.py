"""Random numbers that data draws from the global generators, kept apart from those of the training."""

import random
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from typing import Any, TypeVar

import numpy as np
import torch

T = TypeVar("T")
_EMPTY: Any = object()
_DRAW_NO_MORE: tuple[type, ...] = (type(iter([])), type(iter(())), type(iter(range(0))))
"""Iterators whose elements are all there when they begin, as samplers that draw an epoch's order give them."""


def apart(
    things: Iterable[T],
    seed: int,
    *,
    through: Callable[[Iterator[T]], Iterator[Any]] = iter,
    finish: Callable[[Any], Any] | None = None,
) -> Iterator[Any]:
    """The same elements, each produced with python's, numpy's and torch's generators in a state of its own.

    What is drawn depends on the seed alone, so ranks that read one stream read the same, and a training that draws
    in between is not disturbed.

    Args:
        through: makes other elements of the things, and draws nothing itself.
        finish: makes what is yielded of an element, and may draw, but leaves no trace in what later elements draw.
    """
    before = _states()
    _begin(seed)
    try:
        iterator = iter(things)
        own = _states()
    finally:
        _restore(before)
    elements = through(iterator)
    if type(iterator) in _DRAW_NO_MORE and finish is None:
        yield from elements
        return
    while True:
        before = _states()
        _restore(own)
        try:
            element = next(elements, _EMPTY)
            if element is _EMPTY:
                return
            own = _states()
            finished = element if finish is None else finish(element)
        finally:
            _restore(before)
        yield finished


class SpareGenerators:
    """For what is to draw from the global generators while apart() has put them aside."""

    def __init__(self) -> None:
        self._numpy = np.random.MT19937(0)  # made once, since that takes longer than a batch

    def seed(self, seed: int) -> None:
        """Let the global generators begin at the seed; their states of now are lost, but for numpy's."""
        np.random.set_bit_generator(self._numpy)  # type: ignore[attr-defined]  # public, unlisted
        seed_generators(seed)


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
