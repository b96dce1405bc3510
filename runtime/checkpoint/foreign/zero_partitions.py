"""Whole tensors from the flat partitions in which ZeRO keeps float32 weights and optimizer states.

Stages 1 and 2 lay the parameters of a group end to end, pad, and cut the whole into one partition a rank. Stage 3
cuts each parameter into one piece a rank, pads the last, and lays each rank's pieces end to end.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...errors import CheckpointError

Shapes = Mapping[str, Any]


@dataclass(frozen=True)
class Group:
    """One parameter group: names with shapes in the order of the flat tensor.

    Attributes:
        gaps: elements of padding after each parameter (stages 1 and 2).
    """

    shapes: Shapes
    gaps: Sequence[int] = ()

    @property
    def num_elements(self) -> int:
        return sum(_numel(shape) for shape in self.shapes.values()) + sum(self.gaps)


def join_flat(group: Group, partitions: Sequence[torch.Tensor], *, place: str) -> dict[str, torch.Tensor]:
    """The tensors of a group of stage 1 or 2 from each rank's partition; padding at the end may be there or not.

    Raises:
        CheckpointError: a partition is short or long.
    """
    whole_size = max((part.numel() for part in partitions), default=0)
    wanted = group.num_elements
    for rank, part in enumerate(partitions):
        needed = min(whole_size, max(0, wanted - rank * whole_size))
        if part.numel() < needed:
            raise _misfit(f"rank {rank}'s partition of {place} has {part.numel()} elements, not {needed}")
    flat = torch.cat([part.reshape(-1) for part in partitions]) if partitions else torch.empty(0)
    if flat.numel() < wanted or whole_size * len(partitions) - wanted > _most_padding(group, len(partitions)):
        raise _misfit(f"the partitions of {place} have {flat.numel()} elements for parameters of {wanted}")
    tensors, offset = {}, 0
    gaps = list(group.gaps) or [0] * len(group.shapes)
    for (name, shape), gap in zip(group.shapes.items(), gaps, strict=True):
        tensors[name] = flat.narrow(0, offset, _numel(shape)).reshape(tuple(shape)).clone()
        offset += _numel(shape) + gap
    return tensors


def join_pieces(shapes: Shapes, ranks: Sequence[Sequence[torch.Tensor]], *, place: str) -> dict[str, torch.Tensor]:
    """The tensors of stage 3 from each rank's flat tensors (of several sub-groups, end to end).

    Raises:
        CheckpointError: a rank's tensors are short or long.
    """
    flats = [torch.cat([part.reshape(-1) for part in parts]) if parts else torch.empty(0) for parts in ranks]
    wanted = sum(math.ceil(_numel(shape) / len(flats)) for shape in shapes.values())
    for rank, flat in enumerate(flats):
        if flat.numel() != wanted:
            raise _misfit(f"rank {rank}'s part of {place} has {flat.numel()} elements, not {wanted}")
    tensors, offset = {}, 0
    for name, shape in shapes.items():
        size = math.ceil(_numel(shape) / len(flats))
        tensors[name] = join_fragments(name, shape, [flat.narrow(0, offset, size) for flat in flats])
        offset += size
    return tensors


def join_fragments(name: str, shape: Any, fragments: Sequence[torch.Tensor]) -> torch.Tensor:
    """One parameter of stage 3 from each rank's piece of it.

    Raises:
        CheckpointError: the pieces are too short, or too long to be padding.
    """
    flat = torch.cat([fragment.reshape(-1) for fragment in fragments])
    surplus = flat.numel() - _numel(shape)
    if not 0 <= surplus < max(1, len(fragments)):
        raise _misfit(f"the pieces of {name} have {flat.numel()} elements for a shape of {list(shape)}")
    return flat.narrow(0, 0, _numel(shape)).reshape(tuple(shape)).clone()


def _most_padding(group: Group, num_ranks: int) -> int:
    """ZeRO aligns a group to a small multiple of the number of ranks; one rank less could never hold it."""
    return max(64 * num_ranks, 2 * num_ranks + sum(group.gaps))


def _numel(shape: Any) -> int:
    return math.prod(tuple(shape))


def _misfit(what: str) -> CheckpointError:
    return CheckpointError(
        what,
        allowed="partitions that hold all parameters, and padding at the end",
        next_step="the checkpoint is damaged or files of two saves are mixed: take another one",
    )
