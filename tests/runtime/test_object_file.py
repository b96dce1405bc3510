"""accelerator.save(): one object, whole or not at all, on the main process."""

from pathlib import Path

import pytest
import torch

from runtime.accelerator import Accelerator
from runtime.errors import CheckpointError, UsageError

pytestmark = pytest.mark.usefixtures("fresh_process")


@pytest.mark.parametrize("safe", [True, False])
def test_an_object_is_written_and_read_again(tmp_path: Path, safe: bool) -> None:
    accelerator = Accelerator(cpu=True)
    accelerator.save({"weight": torch.eye(3).T[:, ::2]}, tmp_path / "object", safe_serialization=safe)
    if safe:
        from safetensors.torch import load_file

        read = load_file(tmp_path / "object")
    else:
        read = torch.load(tmp_path / "object", weights_only=True)
    assert torch.equal(read["weight"], torch.eye(3)[:, ::2])
    assert [path.name for path in tmp_path.iterdir()] == ["object"]


def test_what_cannot_be_written_leaves_the_former_file(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True)
    accelerator.save([1, 2], tmp_path / "object")
    before = (tmp_path / "object").read_bytes()
    with pytest.raises(CheckpointError, match="flat dict of tensors"):
        accelerator.save({"a": 1}, tmp_path / "object", safe_serialization=True)
    with pytest.raises((AttributeError, TypeError)):
        accelerator.save(lambda: None, tmp_path / "object")
    assert (tmp_path / "object").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["object"]
    with pytest.raises(CheckpointError, match="could not be written"):
        accelerator.save([1], tmp_path / "nowhere" / "object")


@pytest.mark.multiprocess
def test_the_main_process_alone_writes(run_ranks, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]  # a fixture
    script = """
    accelerator = Accelerator()
    accelerator.save([accelerator.process_index], HERE / "object.pt")
    accelerator.wait_for_everyone()
    say(content=torch.load(HERE / "object.pt"), mine=accelerator.should_save_model)
    """
    said = run_ranks(script).said
    assert [one["content"] for one in said] == [[0], [0]]
    assert [one["mine"] for one in said] == [True, False]


def test_other_arguments_of_saving_and_loading_are_refused_by_name(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True)
    with pytest.raises(UsageError, match="save_state with is_main_process"):
        accelerator.save_state(tmp_path / "a", is_main_process=True)
    assert not (tmp_path / "a").exists()
    accelerator.save_state(tmp_path / "b", safe_serialization=False)
    with pytest.raises(UsageError, match="load_state with strict"):
        accelerator.load_state(tmp_path / "b", load_kwargs={"strict": False})
    accelerator.load_state(tmp_path / "b")
