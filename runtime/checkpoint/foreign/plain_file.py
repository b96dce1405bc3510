"""Reading a pickled file of another library: tensors, plain data, and a short list of harmless classes.

The listed classes of other libraries are replaced by stand-ins of this module, so that no code of theirs runs.
"""

import io
import pickle
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...errors import CheckpointError

Allowed = tuple[Callable[..., Any], str]


class Record:
    """Stands for an object whose attributes alone are of interest."""

    def __new__(cls, *args: Any) -> "Record":
        record = super().__new__(cls)
        record.args = args
        return record

    args: tuple[Any, ...]


def number(value: Any) -> Any:
    """Stands for an enumeration: its value."""
    return value


def _numpy() -> list[Allowed]:
    """What arrays and numbers of plain types need; both spellings of numpy's modules occur in files."""
    multiarray: Any = import_module("numpy._core.multiarray" if find_spec("numpy._core") else "numpy.core.multiarray")
    names: list[Allowed] = [(np.ndarray, "numpy.ndarray"), (np.dtype, "numpy.dtype")]
    for package in ("numpy._core", "numpy.core"):
        names += [
            (multiarray._reconstruct, f"{package}.multiarray._reconstruct"),
            (multiarray.scalar, f"{package}.multiarray.scalar"),
        ]
    kinds = (bool, np.int32, np.int64, np.uint8, np.uint32, np.uint64, np.float32, np.float64)
    names += [(kind, f"numpy.dtypes.{kind.__name__}") for kind in {type(np.dtype(kind)) for kind in kinds}]
    return names


NUMPY: tuple[Allowed, ...] = tuple(_numpy())
DEEPSPEED: tuple[Allowed, ...] = (
    (number, "deepspeed.runtime.zero.config.ZeroStageEnum"),
    (Record, "deepspeed.runtime.fp16.loss_scaler.LossScaler"),
    (Record, "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler"),
    (Record, "deepspeed.utils.tensor_fragment.fragment_address"),
)


def load_plain(file: Path | bytes, *, place: str = "", allowed: Sequence[Allowed] = ()) -> Any:
    """Load what torch.save wrote onto the CPU.

    Args:
        place: name of the file in errors; the path itself by default.
        allowed: classes that may occur, each with what stands for it.

    Raises:
        CheckpointError: it is cut or damaged, or holds an object of another class, which is named; that was not
            unpickled.
    """
    name = place or str(file)
    try:
        with torch.serialization.safe_globals(list(allowed)):
            source = io.BytesIO(file) if isinstance(file, bytes) else file
            return torch.load(source, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise CheckpointError(f"{name} is missing", next_step="give a folder that is whole") from error
    except pickle.UnpicklingError as error:
        raise _refusal(file, name, allowed, error) from error
    except Exception as error:
        # torch.load raises many kinds (RuntimeError, EOFError, zip errors, KeyError) for a cut or damaged file.
        reason = (str(error).splitlines() or [""])[0]
        raise CheckpointError(
            f"{name} does not load: {type(error).__name__}: {reason}",
            allowed="a whole file that torch.save wrote",
            next_step="copy it again, or take another checkpoint",
        ) from error


def _refusal(file: Path | bytes, name: str, allowed: Sequence[Allowed], error: Exception) -> CheckpointError:
    classes = _unknown_classes(file, {known for _, known in allowed})
    if not classes:
        reason = (str(error).splitlines() or [""])[0]
        return CheckpointError(
            f"{name} holds more than tensors and plain data, and was not unpickled: {reason}",
            allowed="tensors, numbers, texts, lists, tuples and dicts",
            next_step="save it again without objects of your own",
        )
    listed = ", ".join(sorted(known for _, known in allowed))
    return CheckpointError(
        f"{name} holds objects of {', '.join(classes)}, and was not unpickled: that could run anything",
        allowed=f"tensors and plain data{', and ' if allowed else ''}{listed}",
        next_step="load it with the library that wrote it and save what you need as plain data",
    )


def _unknown_classes(file: Path | bytes, known: set[str]) -> list[str]:
    try:
        source = io.BytesIO(file) if isinstance(file, bytes) else file
        found = torch.serialization.get_unsafe_globals_in_checkpoint(source)
    except Exception:  # an old format, or not even a pickle: then there are no names to tell
        return []
    return sorted(set(found) - known)
