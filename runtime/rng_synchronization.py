"""Making random generators of all ranks alike: they take rank 0's state."""

from collections.abc import Sequence
from typing import Any

import torch

from . import collectives
from .data.activity import LoaderLimit
from .errors import UsageError
from .options import rng_settings
from .state import PartialState


def synchronize_rng_states(rng_types: Sequence[Any], generator: torch.Generator | None = None) -> None:
    """Give every rank rank 0's state of these generators.

    Args:
        rng_types: torch, cuda, generator.
        generator: the one that `generator` means.

    Raises:
        ConfigurationError: a kind is unknown.
        UsageError: `generator` is asked for, and none is given.
    """
    for kind in rng_settings(rng_types):
        synchronize_rng_state(kind, generator)


def synchronize_rng_state(rng_type: Any = None, generator: torch.Generator | None = None) -> None:
    """The same for one kind."""
    (kind,) = rng_settings([rng_type])
    if kind == "torch":
        torch.set_rng_state(_from_rank_0(torch.get_rng_state()))
    elif kind == "cuda":
        torch.cuda.set_rng_state(_from_rank_0(torch.cuda.get_rng_state()))
    elif generator is None:
        raise UsageError(
            "rng_types with generator, and no generator",
            allowed="synchronize_rng_states([...], generator=...), or a loader with a generator of its own",
            next_step="pass the generator",
        )
    else:
        generator.set_state(_from_rank_0(generator.get_state()))


class SynchronizedStart:
    """Makes generators alike where an iteration over a loader begins; a loader without a generator has none to share.

    Args:
        kinds: torch, cuda, generator.
        limit: what else may end loaders early.
    """

    def __init__(self, kinds: Sequence[str], limit: LoaderLimit | None = None) -> None:
        self._kinds = kinds
        self._limit = limit

    def ends(self, loader: Any, num_yielded: int) -> bool:
        if num_yielded == 0:
            own = getattr(loader, "generator", None)
            synchronize_rng_states([kind for kind in self._kinds if kind != "generator" or own is not None], own)
        return self._limit is not None and self._limit.ends(loader, num_yielded)


def _from_rank_0(state: torch.Tensor) -> torch.Tensor:
    own: torch.Tensor = collectives.broadcast(state.to(PartialState().device))
    return own.to("cpu")
