"""A model's weights alone, for other programs: safetensors where it is installed, else torch's own format."""

import os
import tempfile
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import CheckpointError
from ..files import fsync_directory
from .plain import plain


def save_weights(model: nn.Module, directory: Path, *, safe: bool) -> Path:
    """Write model.safetensors, or pytorch_model.bin where safetensors is absent or `safe` is False.

    Raises:
        CheckpointError: the file could not be written; a former one is intact.
    """
    use_safetensors = safe and find_spec("safetensors") is not None
    target = directory / ("model.safetensors" if use_safetensors else "pytorch_model.bin")
    temporary = ""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=directory, prefix=f".{target.name}.", suffix=".tmp")
        os.close(descriptor)
        if use_safetensors:
            library: Any = import_module("safetensors.torch")
            library.save_model(model, temporary, metadata={"format": "pt"})
        else:
            torch.save(plain(model.state_dict(), "model"), temporary)
        with open(temporary, "rb") as handle:
            os.fsync(handle.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
        fsync_directory(directory)
    except (OSError, RuntimeError) as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        raise CheckpointError(f"{target} could not be written: {error}", next_step="make room on the disk") from error
    return target
