"""What a checkpoint is made of: named parts of the training state, and the box of a tensor that one rank holds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Shard:
    """A box of a whole tensor.

    Attributes:
        local: the box's values.
        shape: of the whole tensor.
        offsets: the box's first index along each dimension.
        primary: this rank writes it; False where another rank holds the same box and does.
    """

    local: torch.Tensor
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    primary: bool = True


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a checkpoint that has not been read."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Wanted:
    """The box of a stored tensor that this rank needs; read, it is a Shard. A plain StoredTensor is read whole."""

    stored: StoredTensor
    offsets: tuple[int, ...]
    lengths: tuple[int, ...]


def _everything(stored: Any) -> Any:
    return stored


@dataclass(frozen=True)
class Part:
    """One object of the training state.

    Attributes:
        name: unique in the checkpoint, such as optimizer_0.
        save: plain data (see checkpoint.tree), with tensors, or Shards where this rank holds boxes.
        load: takes what save gave.
        choose: called before anything is loaded, with StoredTensors in place of tensors: raises CheckpointError if the
            data do not fit, and returns them with Wanted in place of those of which a box is enough.
        kind: what was saved, such as the optimizer's class; another kind is refused. Empty: not compared.
        own: every rank has its own; load takes None where there was nothing.
        merge: makes, from what each of the former ranks had, what each of another number of ranks gets.
    """

    name: str
    save: Callable[[], Any]
    load: Callable[[Any], None]
    choose: Callable[[Any], Any] = _everything
    kind: str = ""
    own: bool = False
    merge: Callable[[Sequence[Any], int], Any] | None = None
