"""A model's weights alone, for other programs: safetensors where it is installed, else torch's own format."""

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from ..errors import CheckpointError
from ..files import fsync_directory
from .plain import plain


@dataclass(frozen=True)
class _Holder:
    """What safetensors asks of a model: of tensors that are tied it writes one, with the others' names beside it."""

    state: Mapping[str, Any]

    def state_dict(self) -> Mapping[str, Any]:
        return self.state


def save_weights(state: Mapping[str, Any], directory: Path, *, safe: bool) -> Path:
    """Write model.safetensors, or pytorch_model.bin where safetensors is absent or `safe` is False.

    Args:
        state: whole tensors by name, as a model's state_dict() has them.

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
            library.save_model(_Holder(state), temporary, metadata={"format": "pt"})
        else:
            torch.save(plain(state, "model"), temporary)
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
