"""Whose checkpoint a folder is, by its files."""

from pathlib import Path

from ...errors import CheckpointError
from ..manifest import MANIFEST
from .accelerate_folder import is_accelerate_folder, read_accelerate_folder
from .contents import ForeignContents, Kind
from .deepspeed_folder import find_deepspeed_folder, read_deepspeed_folder


def foreign_kind(directory: Path) -> Kind | None:
    """The library that wrote a checkpoint; None for one of ours, and for what is none.

    Raises:
        CheckpointError: it is DeepSpeed's, and names a step that is not there.
    """
    if not directory.is_dir() or (directory / MANIFEST).exists():
        return None
    if find_deepspeed_folder(directory) is not None:
        return "deepspeed"
    return "accelerate" if is_accelerate_folder(directory) else None


def read_foreign(directory: Path, *, rank: int) -> ForeignContents:
    """Everything of another library's checkpoint that this runtime can use, with the random states of `rank`.

    Raises:
        CheckpointError: it is not recognised, is damaged, or holds objects that only unpickling would bring back.
    """
    kind = foreign_kind(directory)
    if kind == "deepspeed":
        return read_deepspeed_folder(directory, rank=rank)
    if kind == "accelerate":
        return read_accelerate_folder(directory, rank=rank)
    raise CheckpointError(
        f"{directory} is no checkpoint of a library that is known here",
        allowed="what Accelerate's save_state or DeepSpeed's save_checkpoint wrote",
        next_step="give the folder with model.safetensors and optimizer.bin, or the one with the file `latest`",
    )
