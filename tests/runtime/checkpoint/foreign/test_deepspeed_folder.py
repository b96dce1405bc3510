"""DeepSpeed's folders: whole values bit for bit, ties, frozen parameters, and what is short or missing is refused."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from runtime import Accelerator
from runtime.checkpoint.foreign.recognise import foreign_kind, read_foreign
from runtime.errors import CheckpointError
from tests.runtime.conftest import RunRanks

pytestmark = [pytest.mark.multiprocess, pytest.mark.usefixtures("fresh_process")]

STEPS = 3
Train = Callable[..., Any]


def optimizer_state(model: Any, optimizer: Any) -> dict[str, dict[str, Any]]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(parameter)]: dict(values) for parameter, values in optimizer.state.items()}


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_weights_are_those_that_deepspeed_makes_whole(deepspeed_folders: Path, net: ModuleType, stage: int) -> None:
    directory = deepspeed_folders / f"stage{stage}"
    assert foreign_kind(directory) == "deepspeed"
    contents = read_foreign(directory, rank=0)
    (weights,) = contents.models
    expected = torch.load(deepspeed_folders / f"stage{stage}.pt", weights_only=True)
    assert set(weights) == {
        *("words.weight", "last.weight", "other.weight", "odd", "three", "frozen"),
        *(f"norm.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")),
    }
    assert set(weights) - set(expected) <= {"frozen"}, "DeepSpeed's own loses it in stage 1"
    assert all(torch.equal(weights[name], value) for name, value in expected.items())
    assert weights["frozen"].dtype == torch.bfloat16
    assert torch.equal(weights["frozen"], net.build(torch.bfloat16)[0].frozen)
    assert weights["last.weight"] is weights["words.weight"]
    assert weights["other.weight"] is not weights["words.weight"]
    assert (contents.num_ranks, contents.optimizer_steps) == (3, STEPS)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_training_goes_on_as_if_never_interrupted(
    deepspeed_folders: Path, net: ModuleType, trained: Train, stage: int, capsys: pytest.CaptureFixture[str]
) -> None:
    dtype = torch.bfloat16 if stage else torch.float32
    reference, reference_optimizer, losses = trained(5, dtype)
    accelerator = Accelerator(cpu=True)
    model, optimizer, schedule = net.build(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    accelerator.load_state(deepspeed_folders / f"stage{stage}")
    assert "random states: DeepSpeed saves none" in capsys.readouterr().err
    assert schedule.get_last_lr() == [0.01 / 4, 0.5 / 4]
    assert optimizer.num_steps == 3
    went_on = []
    for step in (3, 4):
        loss = net.loss_of(model, step)
        accelerator.backward(loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        went_on.append(float(loss.detach()))
    assert went_on == pytest.approx(losses[3:], rel=1e-5)
    expected = optimizer_state(reference, reference_optimizer)
    held = optimizer_state(model, optimizer.optimizer)
    assert held.keys() == expected.keys()
    for name, values in expected.items():
        for key, value in values.items():
            torch.testing.assert_close(held[name][key], value, rtol=1e-4, atol=1e-6)
    assert model.last.weight is model.words.weight


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_rank_s_missing_or_short_file_is_refused(deepspeed_folders: Path, tmp_path: Path, stage: int) -> None:
    name = "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    for case in ("missing", "cut", "short"):
        directory = tmp_path / case
        shutil.copytree(deepspeed_folders / f"stage{stage}", directory)
        path = directory / "global_step3" / name
        if case == "missing":
            path.unlink()
        elif case == "cut":
            path.write_bytes(path.read_bytes()[:-100])
        else:
            content = torch.load(path, weights_only=False)
            key = "fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups"
            groups = content["optimizer_state_dict"][key]
            content["optimizer_state_dict"][key] = [groups[0][:-1], *groups[1:]]
            torch.save(content, path)
        with pytest.raises(CheckpointError) as caught:
            read_foreign(directory, rank=0)
        expected = {"missing": "saved by 3 ranks", "cut": name, "short": "elements, not"}[case]
        assert expected in str(caught.value)


def test_latest_must_name_a_step_that_is_there(deepspeed_folders: Path, tmp_path: Path) -> None:
    for tag in ("global_step9", "../stage1", "", "."):
        directory = tmp_path / f"case{len(tag)}"
        shutil.copytree(deepspeed_folders / "stage2", directory)
        (directory / "latest").write_text(tag)
        with pytest.raises(CheckpointError, match="latest"):
            foreign_kind(directory)
    step = deepspeed_folders / "stage2" / "global_step3"
    assert torch.equal(read_foreign(step, rank=0).models[0]["odd"], read_foreign(step.parent, rank=0).models[0]["odd"])


def test_a_refused_checkpoint_changes_nothing(deepspeed_folders: Path, net: ModuleType) -> None:
    accelerator = Accelerator(cpu=True)
    model, optimizer, schedule = net.build(torch.bfloat16)
    model.extra = torch.nn.Linear(2, 2)
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(CheckpointError, match=r"extra\.weight is missing"):
        accelerator.load_state(deepspeed_folders / "stage2")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not optimizer.optimizer.state
    assert schedule.get_last_lr() == [0.01, 0.5]


def test_what_accelerate_wrote_beside_deepspeed_s_states_is_read(
    deepspeed_folders: Path, tmp_path: Path, net: ModuleType
) -> None:
    """Accelerate names the folder of DeepSpeed's states itself, and adds files of its own."""
    shutil.copytree(deepspeed_folders / "stage2" / "global_step3", tmp_path / "pytorch_model")
    (tmp_path / "latest").write_text("pytorch_model")
    _, _, schedule = net.build()
    torch.save(schedule.state_dict() | {"last_epoch": 9, "_step_count": 10}, tmp_path / "scheduler.bin")
    torch.save({"n": 7}, tmp_path / "custom_checkpoint_0.pkl")
    for rank in range(3):
        states = {
            "random_state": random.getstate(),
            "numpy_random_seed": np.random.get_state(),
            "torch_manual_seed": torch.get_rng_state(),
        }
        torch.save(states, tmp_path / f"random_states_{rank}.pkl")
    drawn = (random.random(), float(np.random.rand()), float(torch.rand(())))
    accelerator = Accelerator(cpu=True)
    _, optimizer, schedule = accelerator.prepare(*net.build(torch.bfloat16))
    loaded: list[dict[str, int]] = []
    keeper = SimpleNamespace(state_dict=dict, load_state_dict=loaded.append)
    accelerator.register_for_checkpointing(keeper)
    accelerator.load_state(tmp_path)
    assert (random.random(), float(np.random.rand()), float(torch.rand(()))) == drawn
    assert loaded == [{"n": 7}]
    assert schedule.scheduler.last_epoch == 3, "9 is 3 steps of 3 processes"
    assert optimizer.num_steps == 3


GOES_ON_UNDER_ZERO = """
sys.path.insert(0, FOLDERS)
from net import build, loss_of

said = {}
for stage in (2, 3):
    accelerator = Accelerator(cpu=True, deepspeed_plugin={"zero_stage": stage, "gradient_clipping": 0.0})
    model, optimizer, schedule = build(torch.bfloat16)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    accelerator.load_state(FOLDERS + f"/stage{5 - stage}")
    losses = []
    for step in (3, 4):
        loss = loss_of(model, step)
        accelerator.backward(loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    said[stage] = losses
say(**{str(stage): losses for stage, losses in said.items()})
"""


def test_zero_takes_up_another_stage_on_another_number_of_ranks(
    deepspeed_folders: Path, trained: Train, run_ranks: RunRanks
) -> None:
    ended = run_ranks(f"FOLDERS = {str(deepspeed_folders)!r}\n{GOES_ON_UNDER_ZERO}", ranks=2)
    _, _, losses = trained(5, torch.bfloat16)
    for said in ended.said:
        assert said["2"] == pytest.approx(losses[3:], rel=1e-4)
        assert said["3"] == pytest.approx(losses[3:], rel=1e-4)
