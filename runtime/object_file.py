"""One object in one file, as torch or safetensors write it."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from .errors import CheckpointError, MissingDependencyError
from .files import fsync_directory


def save_object(obj: Any, path: Path, *, safe: bool) -> None:
    """Write an object under another name, and put it in place when it is complete.

    Args:
        safe: as safetensors, which hold a flat dict of tensors alone; else with torch.save.

    Raises:
        CheckpointError: safetensors cannot hold the object, or the file cannot be written.
        MissingDependencyError: safetensors is not installed.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        if safe:
            _save_tensors(obj, temporary)
        else:
            with temporary.open("wb") as file:
                torch.save(obj, file)
        descriptor = os.open(temporary, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(path)
        fsync_directory(path.parent)
    except OSError as error:
        raise CheckpointError(
            f"{path} could not be written: {error}", next_step="make room, or choose another path"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def _save_tensors(obj: Any, path: Path) -> None:
    if not isinstance(obj, dict) or not all(isinstance(value, torch.Tensor) for value in obj.values()):
        raise CheckpointError(
            f"safetensors cannot hold a {type(obj).__name__} with other values than tensors",
            allowed="a flat dict of tensors",
            next_step="save(..., safe_serialization=False)",
        )
    if find_spec("safetensors") is None:
        raise MissingDependencyError("safe_serialization needs safetensors", next_step='pip install "forerun[train]"')
    from safetensors.torch import save_file

    save_file({name: value.detach().clone().contiguous() for name, value in obj.items()}, path)
