"""A process group for a job of one process, for backends that cannot do without."""

import atexit

import torch.distributed as dist

from ..devices import communication_backend
from .base import StrategyContext


def require_group(context: StrategyContext) -> None:
    """Make one where a single process has none; it is left at exit."""
    if context.world_size == 1 and not dist.is_initialized():
        backend = communication_backend(context.device)
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]  # public, unlisted
        atexit.register(_leave_group)


def _leave_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
