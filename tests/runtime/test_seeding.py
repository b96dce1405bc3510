"""Seeds and the states of random generators."""

import io
import os
import random
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from runtime.errors import CheckpointError, UsageError
from runtime.seeding import derive_seed, restore_rng_state, rng_state, set_seed
from tests.runtime.conftest import RunRanks


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


@pytest.fixture
def deterministic_flags(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    yield
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
    torch.use_deterministic_algorithms(before[0])
    torch.backends.cudnn.benchmark = before[1]


def test_deterministic_refuses_what_cannot_be_and_sets_the_libraries(deterministic_flags: None) -> None:
    torch.backends.cudnn.benchmark = True
    set_seed(1)
    assert not torch.are_deterministic_algorithms_enabled()
    set_seed(1, deterministic=True)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert not torch.backends.cudnn.benchmark
    with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
        torch.zeros(4).put_(torch.tensor([0, 0]), torch.ones(2))


def test_a_workspace_of_the_users_stays(deterministic_flags: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    set_seed(1, deterministic=True)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


@pytest.mark.parametrize("seed", ["42", 1.5, 2**63, None])
def test_what_is_no_seed_changes_nothing(seed: object) -> None:
    set_seed(7)
    expected = _draw()
    set_seed(7)
    with pytest.raises(UsageError, match="an integer of 64 bits"):
        set_seed(seed)  # type: ignore[arg-type]  # on purpose
    assert _draw() == expected


def test_an_xla_generator_is_seeded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    monkeypatch.setitem(sys.modules, "torch_xla", SimpleNamespace(manual_seed=seeds.append))
    set_seed(5)
    assert seeds == [5]


@pytest.mark.multiprocess
def test_device_specific_seeds_differ_by_rank_and_others_do_not(run_ranks: RunRanks) -> None:
    script = """
    accelerator = Accelerator(cpu=True)
    set_seed(3)
    same = torch.rand(1).item()
    set_seed(3, device_specific=True)
    say(same=same, own=torch.rand(1).item())
    """
    first, second = run_ranks(script).said
    assert first["same"] == second["same"] == first["own"] != second["own"]
