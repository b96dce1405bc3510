"""Sharding one loader without an Accelerator's prepare()."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader

from . import collectives
from .data.loader import PreparedLoader, loader_seed, prepare_loader
from .errors import UsageError
from .gradient_state import GradientState
from .options import DataLoaderConfiguration, rng_settings
from .rng_synchronization import SynchronizedStart
from .state import PartialState


def prepare_data_loader(
    dataloader: DataLoader[Any],
    device: torch.device | None = None,
    num_processes: int | None = None,
    process_index: int | None = None,
    split_batches: bool = False,
    put_on_device: bool = False,
    rng_types: Sequence[Any] | None = None,
    dispatch_batches: bool | None = None,
    even_batches: bool = True,
    slice_fn_for_dispatch: Callable[..., Any] | None = None,
    use_seedable_sampler: bool = True,
    data_seed: int | None = None,
    non_blocking: bool = False,
    use_stateful_dataloader: bool = False,
    torch_device_mesh: Any = None,
) -> PreparedLoader:
    """The share of `dataloader` that one process takes; gather_for_metrics and GradientState know of it.

    Args:
        device: where batches go if put_on_device; None means this process's device.
        num_processes, process_index: None means this process's place among all.
        rng_types: random generators that are made alike on all ranks where an iteration begins.
        torch_device_mesh: accepted; every process is data-parallel.
        dispatch_batches, even_batches, ...: as in DataLoaderConfiguration.

    Raises:
        ConfigurationError: the settings do not fit the loader.
        UsageError: the place is outside of the processes, or slice_fn_for_dispatch is given.
    """
    del torch_device_mesh  # no axis of a mesh that exists here sees the same batch twice
    refuse_slicing(slice_fn_for_dispatch)
    state = PartialState()
    world_size = state.num_processes if num_processes is None else num_processes
    rank = state.process_index if process_index is None else process_index
    if not 0 <= rank < world_size:
        raise UsageError(
            f"process_index={rank} of num_processes={world_size}",
            allowed=f"0 to {world_size - 1}",
            next_step="correct them, or leave both out",
        )
    seed = loader_seed(dataloader, data_seed) % 2**63
    if world_size == state.num_processes:
        seed = int(collectives.broadcast(torch.tensor([seed], device=state.device)))
    generators = rng_settings(rng_types)
    return prepare_loader(
        dataloader,
        rank=rank,
        world_size=world_size,
        device=(device or state.device) if put_on_device else None,
        configuration=DataLoaderConfiguration(
            split_batches=split_batches,
            dispatch_batches=dispatch_batches,
            even_batches=even_batches,
            use_seedable_sampler=use_seedable_sampler,
            non_blocking=non_blocking,
            use_stateful_dataloader=use_stateful_dataloader,
        ),
        seed=seed,
        index=0,
        activity=GradientState().activity,
        limit=SynchronizedStart(generators) if generators else None,
    )


def refuse_slicing(function: Callable[..., Any] | None) -> None:
    """Batches are dealt out by samples, before they are collated.

    Raises:
        UsageError: a function that cuts batches was given.
    """
    if function is not None:
        raise UsageError(
            "slice_fn_for_dispatch: rank 0 deals out samples, and batches are collated afterwards",
            allowed="None",
            next_step="remove it; a collate_fn sees the samples of one rank's batch",
        )
