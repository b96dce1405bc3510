"""Seeds and the states of random generators."""

import io
import random

import numpy as np
import pytest
import torch

from runtime.errors import CheckpointError
from runtime.seeding import derive_seed, restore_rng_state, rng_state, set_seed


def _draw() -> list[float]:
    return [
        random.random(),
        random.gauss(0, 1),
        float(np.random.rand()),
        float(np.random.randn()),
        torch.rand(1).item(),
    ]


def test_one_seed_decides_all_generators() -> None:
    set_seed(42)
    first = _draw()
    set_seed(43)
    other = _draw()
    set_seed(42)
    assert _draw() == first
    assert all(a != b for a, b in zip(first, other, strict=True))


def test_states_survive_a_file_of_plain_tensors() -> None:
    set_seed(1)
    _draw()
    file = io.BytesIO()
    torch.save(rng_state(), file)
    expected = [_draw(), _draw()]
    file.seek(0)
    restore_rng_state(torch.load(file, weights_only=True))
    assert [_draw(), _draw()] == expected


def test_a_foreign_state_is_refused() -> None:
    with pytest.raises(CheckpointError, match="'numpy'"):
        restore_rng_state({"python": [3, [1], None]})


def test_derived_seeds_differ_by_purpose_and_fit_every_generator() -> None:
    seeds = {derive_seed(7, epoch, rank) for epoch in range(20) for rank in range(20)}
    assert len(seeds) == 400
    assert all(0 <= seed < 2**63 for seed in seeds)
