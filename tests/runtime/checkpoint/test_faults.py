"""Every write, fsync and rename fails once: the newest complete checkpoint is found, and nothing is left behind."""

import importlib.util
import os
import resource
from pathlib import Path
from typing import Any

import pytest

from runtime.checkpoint.disk import Disk
from runtime.errors import CheckpointError
from runtime.options import ProjectConfiguration

_spec = importlib.util.spec_from_file_location("checkpoint_conftest", Path(__file__).with_name("conftest.py"))
assert _spec is not None
assert _spec.loader is not None
faults: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(faults)


@pytest.mark.parametrize("async_save", [False, True])
def test_an_error_at_any_operation_leaves_a_whole_checkpoint(numbered: Any, quick_path: Path, async_save: bool) -> None:
    training, target = numbered(), quick_path / "kept" / "checkpoint"
    counting = faults.FaultyDisk()
    training.use(counting)
    training.save(0, target)
    training.accelerator._saver.close()
    counting.seen.clear()
    training.save(0, target)
    training.accelerator._saver.close()
    names = list(counting.seen)
    assert {"make_directory", "create", "write", "fsync", "rename", "remove_tree"} <= set(names)
    failed = []
    for at in range(len(names)):
        number = at + 1
        training.use(faults.FaultyDisk(at, faults.failing))
        said = ""
        try:
            training.save(number, target, async_save=async_save)
            training.accelerator._saver.close()
        except CheckpointError as error:
            said = str(error)
            failed.append(names[at])
        assert not said or "Input/output error" in said
        training.use(Disk())
        found = training.load(target)
        assert found in (number - 1, number), names[at]
        assert names[at] in failed or found == number
        if names[at] in failed:
            assert os.listdir(target.parent) == ["checkpoint"] or names[at] == "remove_tree"
            training.save(number, target)
        assert os.listdir(target.parent) == ["checkpoint"] or names[at] == "remove_tree"
    training.save(0, target)
    assert os.listdir(target.parent) == ["checkpoint"]
    assert {"make_directory", "create", "write", "fsync", "rename"} <= set(failed)


def test_with_automatic_names_a_failed_save_costs_nothing(numbered: Any, quick_path: Path) -> None:
    project = ProjectConfiguration(str(quick_path), automatic_checkpoint_naming=True, total_limit=1)
    training = numbered(project_config=project)
    training.save(1, None)
    for at in range(60):
        disk = faults.FaultyDisk(at, faults.failing)
        training.use(disk)
        try:
            training.save(at + 2, None)
            training.accelerator._saver.close()
        except CheckpointError:
            assert training.load(None) == at + 1
            training.use(Disk())
            training.save(at + 2, None)
        training.use(Disk())
        assert training.load(None) == at + 2
        left = os.listdir(quick_path / "checkpoints")
        assert 1 <= len([name for name in left if not name.startswith(".")]) <= 2
        if len(disk.seen) <= at:
            break
    else:
        pytest.fail("a save takes more operations than were tried")
    training.save(99, None)
    assert len(os.listdir(quick_path / "checkpoints")) == 1


def test_a_limit_on_the_size_of_files_is_named_with_what_is_needed(numbered: Any, quick_path: Path) -> None:
    training = numbered()
    target = quick_path / "checkpoint"
    training.save(1, target)
    training.accelerator._saver.close()
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, former[1]))
    try:
        with pytest.raises(CheckpointError, match=r"File too large; it needs 3\d{5} bytes.*ulimit -f"):
            training.save(2, target)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)
    assert os.listdir(quick_path) == ["checkpoint"]
    assert training.load(target) == 1
    training.save(3, target)
    assert training.load(target) == 3


def test_an_error_in_the_background_comes_with_the_next_call(numbered: Any, quick_path: Path) -> None:
    training = numbered()
    training.save(1, quick_path / "a", async_save=True)
    training.use(faults.FaultyDisk(3, faults.failing))
    training.save(2, quick_path / "a", async_save=True)
    with pytest.raises(CheckpointError, match="Input/output error"):
        training.save(3, quick_path / "a")
    training.use(Disk())
    training.save(4, quick_path / "a", async_save=True)
    assert training.load(quick_path / "a") == 4
    training.use(faults.FaultyDisk(3, faults.failing))
    training.save(5, quick_path / "a", async_save=True)
    with pytest.raises(CheckpointError, match="Input/output error"):
        training.accelerator.end_training()


def test_what_is_saved_in_the_background_is_the_state_at_the_call(numbered: Any, quick_path: Path) -> None:
    training = numbered()
    for number in range(1, 4):
        training.save(number, quick_path / "a", async_save=True)
        training.model.weight.data.fill_(77)
        training.count = 78
        assert training.load(quick_path / "a") == number
