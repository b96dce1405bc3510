"""Flat partitions: padding is no value, and what is short or long is refused (parameters of 3 and 5 on 3 ranks)."""

from pathlib import Path
from typing import Any

import pytest
import torch

from runtime.checkpoint.foreign.recognise import read_foreign
from runtime.checkpoint.foreign.zero_partitions import Group, join_flat, join_fragments, join_pieces
from runtime.errors import CheckpointError

SHAPES = {"three": torch.Size([3]), "five": torch.Size([5])}
VALUES = {"three": torch.arange(3.0), "five": torch.arange(10.0, 15.0)}
FROZEN = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.bfloat16)
PADDING = 99.0


def flat_parts(ranks: int, *, lean: bool = False) -> list[torch.Tensor]:
    """As stages 1 and 2 cut them; lean: the padding is left out, as DeepSpeed writes it."""
    flat = torch.cat([*VALUES.values()])
    size = -(-flat.numel() // ranks)
    padded = torch.cat([flat, torch.full((size * ranks - flat.numel(),), PADDING)])
    parts = list(padded.split(size))
    if lean:
        parts[-1] = parts[-1][: flat.numel() - size * (ranks - 1)]
    return parts


def piece_parts(ranks: int) -> list[list[torch.Tensor]]:
    """As stage 3 cuts them."""
    found: list[list[torch.Tensor]] = [[] for _ in range(ranks)]
    for value in VALUES.values():
        size = -(-value.numel() // ranks)
        padded = torch.cat([value, torch.full((size * ranks - value.numel(),), PADDING)])
        for rank, part in enumerate(padded.split(size)):
            found[rank].append(part)
    return [[torch.cat(parts)] for parts in found]


def folder(directory: Path, stage: int, *, ranks: int = 3, short: int | None = None) -> Path:
    """What DeepSpeed writes, by hand; `short`: this rank's partition lacks its last element."""
    step = directory / "global_step1"
    step.mkdir(parents=True)
    (directory / "latest").write_text("global_step1")
    empty = {name: torch.zeros(0) for name in SHAPES}
    for rank in range(ranks if stage == 3 else 1):
        fragment = torch.cat([FROZEN, torch.zeros(2, dtype=torch.bfloat16)])[rank * 2 : rank * 2 + 2]
        frozen = fragment if stage == 3 else FROZEN
        module: dict[str, Any] = dict(VALUES) if stage != 3 else dict(empty)
        content = {
            "module": module | {"frozen": frozen if stage != 3 else torch.zeros(0, dtype=torch.bfloat16)},
            "param_shapes": [SHAPES],
            "frozen_param_shapes": {"frozen": torch.Size([4])},
            "frozen_param_fragments": {"frozen": frozen},
            "buffer_names": [],
            "shared_params": {},
        }
        prefix = f"zero_pp_rank_{rank}_" if stage == 3 else ""
        torch.save(content, step / f"{prefix}mp_rank_00_model_states.pt")
    for rank in range(ranks):
        parts = piece_parts(ranks)[rank] if stage == 3 else [flat_parts(ranks)[rank]]
        if rank == short:
            parts = [parts[0][:-1]]
        state = {
            "zero_stage": stage,
            "partition_count": ranks,
            "fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups": parts,
        }
        torch.save({"optimizer_state_dict": state}, step / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    return directory


def same(joined: dict[str, torch.Tensor]) -> bool:
    return joined.keys() == VALUES.keys() and all(torch.equal(joined[name], value) for name, value in VALUES.items())


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8])
def test_padding_is_left_out(ranks: int) -> None:
    assert same(join_flat(Group(SHAPES), flat_parts(ranks), place="weights"))
    assert same(join_pieces(SHAPES, piece_parts(ranks), place="weights"))
    if ranks <= 4:
        assert same(join_flat(Group(SHAPES), flat_parts(ranks, lean=True), place="weights"))


def test_gaps_between_parameters_are_left_out() -> None:
    flat = torch.cat([VALUES["three"], torch.tensor([PADDING]), VALUES["five"], torch.tensor([PADDING] * 3)])
    assert same(join_flat(Group(SHAPES, (1, 3)), list(flat.split(6)), place="weights"))


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_short_partition_is_refused(rank: int) -> None:
    parts = flat_parts(3)
    parts[rank] = parts[rank][:-2]
    with pytest.raises(CheckpointError, match=f"rank {rank}'s partition of weights has"):
        join_flat(Group(SHAPES), parts, place="weights")
    pieces = [[part[:-1] if index == rank else part for part in own] for index, own in enumerate(piece_parts(3))]
    with pytest.raises(CheckpointError, match=f"rank {rank}'s part of weights has"):
        join_pieces(SHAPES, pieces, place="weights")


def test_far_too_much_is_refused_too() -> None:
    with pytest.raises(CheckpointError, match="elements"):
        join_flat(Group(SHAPES), [torch.zeros(1000)] * 3, place="weights")
    with pytest.raises(CheckpointError, match="elements"):
        join_pieces(SHAPES, [[torch.zeros(9)]] * 3, place="weights")
    with pytest.raises(CheckpointError, match="pieces of frozen"):
        join_fragments("frozen", torch.Size([4]), [torch.zeros(4)] * 3)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_folder_gives_every_value_and_the_frozen_ones_as_they_are(tmp_path: Path, stage: int) -> None:
    (weights,) = read_foreign(folder(tmp_path / "whole", stage), rank=0).models
    assert torch.equal(weights["frozen"], FROZEN)
    assert weights["frozen"].dtype == torch.bfloat16
    assert same({name: weights[name] for name in VALUES})
    for rank in (0, 1):
        with pytest.raises(CheckpointError, match="elements, not"):
            read_foreign(folder(tmp_path / f"short{rank}", stage, short=rank), rank=0)
