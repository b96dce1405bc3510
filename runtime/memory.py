"""Finding the batch size that fits into memory, and giving memory back."""

import gc
import inspect
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from .attempts import Attempt
from .devices import release_cached_memory
from .env import read_environment
from .errors import BatchSizeSignatureError, ConfigurationError, NoExecutableBatchSizeError, UsageError
from .out_of_memory import is_out_of_memory
from .state import PartialState

__all__ = ["clear_device_cache", "find_executable_batch_size", "release_memory", "should_reduce_batch_size"]


def find_executable_batch_size(
    function: Callable[..., Any] | None = None,
    starting_batch_size: int = 128,
    reduce_batch_size_fn: Callable[[], int] | None = None,
) -> Any:
    """Decorate: function(batch_size, ...) is called with ever smaller sizes until it does not run out of memory.

    All ranks try the same size. When one runs out of memory, the others are fetched out of the collective in which
    they wait for it, and all begin the function anew with the same smaller size. So the function makes everything
    that depends on the size: it begins with accelerator.free_memory(), and builds and prepares model, optimizer and
    loaders inside. What is not for want of memory is raised as it is, and so is a want of memory in evaluation, where
    another training batch would not help and would change the result.

    Args:
        starting_batch_size: the first size; a later call begins with the size that was found.
        reduce_batch_size_fn: gives the next size, smaller than the last; by default nine tenths, rounded down.
            Ranks that name different sizes try the smallest.

    Raises:
        BatchSizeSignatureError: the caller passes the batch size itself, or the function cannot take it.
        NoExecutableBatchSizeError: not even a batch of one fits.
        ConfigurationError: the starting size is no positive number, or reduce_batch_size_fn does not reduce.
        UsageError: several processes, and no Accelerator or PartialState yet.
    """
    if function is None:
        return partial(
            find_executable_batch_size,
            starting_batch_size=starting_batch_size,
            reduce_batch_size_fn=reduce_batch_size_fn,
        )
    _check_size(starting_batch_size)
    size = starting_batch_size

    @wraps(function)
    def search(*args: Any, **kwargs: Any) -> Any:
        nonlocal size
        _check_call(function, args, kwargs)
        _require_state()
        clear_device_cache(garbage_collection=True)
        while True:
            attempt = Attempt(size)
            size = attempt.size
            worked, result = attempt.run(lambda chosen: function(chosen, *args, **kwargs))
            if worked:
                return result
            size = _smaller(size, reduce_batch_size_fn, reason=attempt.last_error)

    return search


def should_reduce_batch_size(exception: Exception) -> bool:
    """Whether this exception says that memory ran out (out_of_memory.is_out_of_memory)."""
    return is_out_of_memory(exception)


def release_memory(*objects: Any) -> list[None]:
    """None for each object, to be assigned to their names; then what only they held is given back."""
    clear_device_cache(garbage_collection=True)
    return [None for _ in objects]


def clear_device_cache(garbage_collection: bool = False) -> None:
    """Give unused memory back to the device's allocator.

    Args:
        garbage_collection: collect unreachable objects first, which takes time.
    """
    if garbage_collection:
        gc.collect()
    if PartialState._process is not None:
        release_cached_memory(PartialState().device)


def _check_size(size: Any) -> None:
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ConfigurationError(f"starting_batch_size={size!r}", allowed="an integer of at least 1")


def _check_call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    signature = inspect.signature(function)
    try:
        signature.bind(0, *args, **kwargs)
    except TypeError as error:
        names = list(signature.parameters)[1:]
        rest = args[1:] if len(args) >= len(signature.parameters) else args
        shown = ", ".join([f"{name}={value!r}" for name, value in zip(names, rest, strict=False)])
        name = getattr(function, "__name__", "function")
        raise BatchSizeSignatureError(
            f"{name} cannot be called with a batch size and these arguments ({error}). Batch size was passed into "
            f"`{name}` as the first argument when called, or it takes none",
            allowed=f"{name}(batch_size, ...), called without the batch size",
            next_step=f"Remove this as the decorator already does so: `{name}({shown})`",
        ) from error


def _require_state() -> None:
    if PartialState._process is not None and PartialState().use_distributed and PartialState._group is None:
        raise UsageError(
            "find_executable_batch_size over a process group that the script opened: a rank that runs out of memory "
            "could not fetch the others out of it",
            allowed="a process group that Accelerator opens",
            next_step="let Accelerator start the process group",
        )
    if PartialState._process is None and read_environment().world_size > 1:
        raise UsageError(
            "find_executable_batch_size on several processes, before they know of each other",
            allowed="a call after the Accelerator was made",
            next_step="make the Accelerator outside of the decorated function",
        )


def _smaller(size: int, reduce: Callable[[], int] | None, *, reason: str) -> int:
    new = int(size * 0.9) if reduce is None else reduce()
    if new >= size:
        raise ConfigurationError(
            f"reduce_batch_size_fn gave {new} after {size}", allowed="a smaller size", next_step="correct the function"
        )
    if new < 1:
        raise NoExecutableBatchSizeError(
            f"No executable batch size found, reached zero. The smallest that was tried is {size}: {reason}",
            allowed="a batch of at least 1 that fits into memory",
            next_step="use a smaller model, lower precision, activation checkpointing, or shard the model",
        )
    return new
