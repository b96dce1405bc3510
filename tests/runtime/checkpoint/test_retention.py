"""Names, numbers and limits: remains of killed saves, names that are taken, and what a limit lets go."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from runtime.checkpoint.manifest import read_manifest
from runtime.checkpoint.selection import newest_checkpoint
from runtime.errors import CheckpointError, ConfigurationError
from runtime.options import ProjectConfiguration


def _project(root: Path, **options: Any) -> ProjectConfiguration:
    return ProjectConfiguration(str(root), automatic_checkpoint_naming=True, **options)


def _partial(path: Path, kind: str) -> None:
    """What a killed save might leave, by name."""
    if kind == "file":
        path.write_text("a note")
        return
    whole = path.parent / "checkpoint_0"
    shutil.copytree(whole, path)
    if kind == "no manifest":
        (path / "manifest.json").unlink()
    elif kind == "cut manifest":
        (path / "manifest.json").write_text("{")
    elif kind == "missing file":
        (path / "state.rank0.safetensors").unlink()
    elif kind == "empty":
        for file in path.iterdir():
            file.unlink()
    elif kind == "something else":
        for file in path.iterdir():
            file.unlink()
        (path / "optimizer.bin").write_bytes(b"half")


@pytest.mark.parametrize("kind", ["no manifest", "cut manifest", "missing file", "empty", "something else"])
def test_an_unfinished_checkpoint_of_the_next_name_is_replaced(
    numbered: Any, quick_path: Path, capfd: pytest.CaptureFixture[str], kind: str
) -> None:
    first = numbered(project_config=_project(quick_path))
    for number in range(5):
        first.save(number, None)
    root = quick_path / "checkpoints"
    _partial(root / "checkpoint_5", kind)
    assert newest_checkpoint(root) == root / "checkpoint_4"
    resumed = numbered(project_config=_project(quick_path))
    assert resumed.load(None) == 4
    assert resumed.save(5, None) == root / "checkpoint_5"
    resumed.accelerator._saver.close()
    assert resumed.load(None) == 5
    assert ("checkpoint_5" in capfd.readouterr().err) == (kind != "empty")
    others = [name for name in os.listdir(root) if not name.removeprefix("checkpoint_").isdigit()]
    assert len(others) == (kind == "something else")


def test_a_file_of_the_next_name_is_left_alone(numbered: Any, quick_path: Path) -> None:
    training = numbered(project_config=_project(quick_path))
    training.save(0, None)
    _partial(quick_path / "checkpoints" / "checkpoint_1", "file")
    with pytest.raises(CheckpointError, match="checkpoint_1 is a file"):
        training.save(1, None)
    assert (quick_path / "checkpoints" / "checkpoint_1").read_text() == "a note"
    assert training.load(None) == 0


def test_a_complete_checkpoint_is_never_overwritten_by_an_automatic_name(numbered: Any, quick_path: Path) -> None:
    first = numbered(project_config=_project(quick_path))
    for number in range(3):
        first.save(number, None)
    anew = numbered(project_config=_project(quick_path))
    assert anew.save(9, None).name == "checkpoint_3"
    assert anew.accelerator.save_iteration == 4
    again = numbered(project_config=_project(quick_path))
    assert again.load(quick_path / "checkpoints" / "checkpoint_1") == 1
    assert again.save(10, None).name == "checkpoint_4"


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(limit: int, quick_path: Path) -> None:
    from runtime.options import project_settings

    with pytest.raises(ConfigurationError, match=f"total_limit={limit}"):
        project_settings(None, _project(quick_path, total_limit=limit))


def test_a_limit_lets_go_only_after_success_and_only_automatic_names(numbered: Any, quick_path: Path) -> None:
    training = numbered(project_config=_project(quick_path, total_limit=1))
    root = quick_path / "checkpoints"
    training.save(1, None)
    training._best = True
    shutil.copytree(root / "checkpoint_0", root / "best")
    training.count = training  # nothing that could be saved
    with pytest.raises(CheckpointError, match="cannot be loaded without unpickling"):
        training.accelerator.save_state()
    assert training.load(root / "checkpoint_0") == 1
    for number in (2, 3):
        training.save(number, None)
    training.accelerator._saver.close()
    assert sorted(os.listdir(root)) == ["best", "checkpoint_2"]
    assert training.load(None) == 3
    assert training.load(root / "best") == 1


def test_the_newest_is_known_by_its_manifest_and_not_by_name_or_time(numbered: Any, quick_path: Path) -> None:
    training = numbered()
    for number, name in enumerate(("zzz", "aaa", "mmm")):
        training.save(number, quick_path / name)
    training.accelerator._saver.close()
    for age, name in enumerate(("mmm", "aaa", "zzz")):
        for path in (quick_path / name, *(quick_path / name).iterdir()):
            os.utime(path, (1e9 + age, 1e9 + age))
    assert newest_checkpoint(quick_path) == quick_path / "mmm"
    assert training.load(quick_path) == 2
    os.rename(quick_path / "mmm", quick_path / ".mmm.previous")
    assert training.load(quick_path) == 2


def test_remains_of_other_names_go_unless_a_living_process_writes_them(numbered: Any, quick_path: Path) -> None:
    from runtime.checkpoint.directory import Replacement
    from runtime.checkpoint.disk import Disk

    living = Replacement(quick_path / "checkpoint_7", disk=Disk())
    for name in (".checkpoint_3.tmp-0a1b", ".checkpoint_4.tmp-deleted", ".other.tmp-0a1b", "notes"):
        (quick_path / name).mkdir()
        (quick_path / name / "state.rank0.json").write_text("half")
    training = numbered()
    training.save(1, quick_path / "checkpoint_8")
    training.accelerator._saver.close()
    assert sorted(os.listdir(quick_path)) == sorted([living.directory.name, ".other.tmp-0a1b", "notes", "checkpoint_8"])
    living.abandon()


def test_numbers_go_on_after_loading_a_checkpoint_of_any_name(numbered: Any, quick_path: Path) -> None:
    first = numbered()
    for number in range(3):
        first.save(number, quick_path / "mine")
    second = numbered()
    second.load(quick_path / "mine")
    second.save(7, quick_path / "mine")
    manifest = read_manifest(quick_path / "mine")
    assert manifest is not None
    assert manifest.iteration == 3


def test_an_automatic_name_passes_over_a_checkpoint_of_another_version(numbered: Any, quick_path: Path) -> None:
    training = numbered(project_dir=str(quick_path))
    newer = quick_path / "checkpoints" / "checkpoint_0"
    newer.mkdir(parents=True)
    (newer / "manifest.json").write_text('{"format": "forerun-checkpoint", "schema_version": 3}')
    assert training.save(1, None).name == "checkpoint_1"
    assert [item.name for item in newer.iterdir()] == ["manifest.json"]


def test_of_a_link_the_limit_lets_go_the_link_alone(numbered: Any, quick_path: Path) -> None:
    training = numbered(project_config=ProjectConfiguration(project_dir=str(quick_path), total_limit=1))
    first = training.save(1, None)
    os.rename(first, quick_path / "kept")
    first.symlink_to(quick_path / "kept")
    training.save(2, None)
    assert sorted(os.listdir(first.parent)) == ["checkpoint_1"]
    assert training.load(quick_path / "kept") == 1
