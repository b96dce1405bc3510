"""Checkpoint directories: whole or not at all, whatever happens in between."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from runtime.checkpoint.directory import previous_path, replacing
from runtime.checkpoint.disk import Disk
from runtime.checkpoint.manifest import MANIFEST, Manifest, describe, read_manifest, verify, write_digests
from runtime.checkpoint.selection import find_checkpoint, newest_checkpoint, prune
from runtime.errors import CheckpointError


def _write(target: Path, content: bytes, *, iteration: int = 0) -> None:
    with replacing(target) as directory:
        (directory / "model_0.pt").write_bytes(content)
        manifest = Manifest(
            save_id="x",
            iteration=iteration,
            optimizer_steps=1,
            world_size=1,
            strategy="single",
            replicated=True,
            saved_at_s=0.0,
            needed_own=(),
            plan_digest=None,
            versions={},
            files=(describe(directory / "model_0.pt"),),
        )
        (directory / MANIFEST).write_text(json.dumps(manifest.as_dict()))


def _content(target: Path) -> bytes:
    return (target / "model_0.pt").read_bytes()


def test_a_failed_save_leaves_the_older_checkpoint_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "checkpoint"
    _write(target, b"old")

    def fail() -> None:
        with replacing(target) as directory:
            (directory / "model_0.pt").write_bytes(b"new")
            raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError, match="disk is full"):
        fail()
    assert _content(find_checkpoint(target)) == b"old"
    assert os.listdir(tmp_path) == ["checkpoint"]


def test_a_new_checkpoint_replaces_the_old_one_whole(tmp_path: Path) -> None:
    target = tmp_path / "checkpoint"
    _write(target, b"old")
    (target / "notes.txt").write_text("mine")
    _write(target, b"new")
    assert _content(target) == b"new"
    assert (target / "notes.txt").read_text() == "mine"
    assert os.listdir(tmp_path) == ["checkpoint"]


@pytest.mark.parametrize("moment", [1, 2])
def test_a_process_killed_between_the_renames_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    target = tmp_path / "checkpoint"
    _write(target, b"old")
    real, calls = os.replace, []

    def dying(source: Path, destination: Path) -> None:
        calls.append(source)
        if len(calls) >= moment:
            raise KeyboardInterrupt
        real(source, destination)

    monkeypatch.setattr("runtime.checkpoint.disk.os.replace", dying)
    with pytest.raises(KeyboardInterrupt):
        _write(target, b"new")
    monkeypatch.undo()
    assert _content(find_checkpoint(target)) == b"old"
    _write(target, b"newer")
    assert _content(find_checkpoint(target)) == b"newer"
    assert os.listdir(tmp_path) == ["checkpoint"]


def test_a_former_checkpoint_put_aside_is_found(tmp_path: Path) -> None:
    target = tmp_path / "checkpoint"
    _write(target, b"old")
    target.rename(previous_path(target))
    assert _content(find_checkpoint(target)) == b"old"


def test_leftovers_of_a_killed_save_are_swept_and_do_not_stop_the_next(tmp_path: Path) -> None:
    leftover = tmp_path / ".checkpoint.tmp-abc"
    leftover.mkdir()
    (leftover / "model_0.pt").write_bytes(b"half")
    _write(tmp_path / "checkpoint", b"new")
    assert os.listdir(tmp_path) == ["checkpoint"]


def test_a_directory_with_other_files_is_never_replaced(tmp_path: Path) -> None:
    target = tmp_path / "results"
    target.mkdir()
    (target / "thesis.tex").write_text("years of work")
    with pytest.raises(CheckpointError, match=r"holds thesis\.tex"):
        _write(target, b"new")
    assert (target / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("damage", ["missing", "short", "changed"])
def test_damage_is_found_and_named(tmp_path: Path, damage: str) -> None:
    target = tmp_path / "checkpoint"
    _write(target, b"12345678")
    file = target / "model_0.pt"
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(b"1234" if damage == "short" else b"12345679")
    manifest = read_manifest(target)
    assert manifest is not None
    with pytest.raises(CheckpointError, match=r"model_0\.pt"):
        verify(target, manifest.files)
    if damage != "changed":
        with pytest.raises(CheckpointError, match="is damaged"):
            find_checkpoint(target)


def test_the_newest_is_the_highest_iteration_that_is_complete(tmp_path: Path) -> None:
    for iteration in (2, 10, 11):
        _write(tmp_path / f"checkpoint_{iteration}", b"x" * iteration, iteration=iteration)
    (tmp_path / "checkpoint_11" / "model_0.pt").unlink()
    (tmp_path / "checkpoint_12").mkdir()
    assert newest_checkpoint(tmp_path) == tmp_path / "checkpoint_10"
    assert find_checkpoint(tmp_path) == tmp_path / "checkpoint_10"


def test_pruning_keeps_the_newest_and_what_is_not_automatic(tmp_path: Path) -> None:
    for iteration in (1, 2, 10):
        _write(tmp_path / f"checkpoint_{iteration}", b"x", iteration=iteration)
    _write(tmp_path / "best", b"x", iteration=0)
    prune(tmp_path, keep=2)
    assert sorted(os.listdir(tmp_path)) == ["best", "checkpoint_10", "checkpoint_2"]


@pytest.mark.parametrize("number", [1, 99])
def test_another_schema_is_refused_by_number(tmp_path: Path, number: int) -> None:
    (tmp_path / MANIFEST).write_text(json.dumps({"format": "forerun-checkpoint", "schema_version": number}))
    for refusing in (read_manifest, find_checkpoint):
        with pytest.raises(CheckpointError, match=f"schema {number}"):
            refusing(tmp_path)


def test_where_there_is_none_the_error_says_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"holds model\.bin"):
        find_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="does not exist"):
        find_checkpoint(tmp_path / "nowhere")


def test_a_link_stays_and_what_it_names_is_replaced(tmp_path: Path) -> None:
    for name in ("real", "absent"):
        (tmp_path / f"to_{name}").symlink_to(tmp_path / name)
    _write(tmp_path / "real", b"old")
    for name in ("real", "absent"):
        _write(tmp_path / f"to_{name}", b"new")
        assert (tmp_path / f"to_{name}").is_symlink()
        assert _content(find_checkpoint(tmp_path / name)) == b"new"
    os.rename(tmp_path / "real", previous_path(tmp_path / "to_real"))  # as a kill between the renames leaves it
    assert _content(find_checkpoint(tmp_path / "to_real")) == b"new"
    assert sorted(os.listdir(tmp_path)) == [".real.previous", "absent", "to_absent", "to_real"]


@pytest.mark.parametrize("path", [".", "..", ""])
def test_the_working_directory_is_never_replaced(tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    with pytest.raises(CheckpointError, match="directory that the process works in"):
        _write(Path(path), b"new")
    assert os.listdir(tmp_path) == ["inner"]


def test_two_savers_of_one_name_leave_each_other_s_files_alone(tmp_path: Path) -> None:
    target = tmp_path / "last[1]"
    mine = tmp_path / ".last[1].tmp-notes"
    killed = tmp_path / ".last[1].tmp-0123abcd"
    mine.mkdir()
    killed.mkdir()
    with replacing(target) as first:
        (first / "model_0.pt").write_bytes(b"first")
        _write(target, b"second")
        assert (first / "model_0.pt").read_bytes() == b"first"
        (first / MANIFEST).write_bytes((target / MANIFEST).read_bytes())
    assert _content(target) == b"first"
    assert mine.is_dir()
    assert not killed.exists()


def test_digests_of_a_former_save_never_get_into_the_next(tmp_path: Path) -> None:
    target = tmp_path / "last"
    _write(target, b"new")
    former = read_manifest(target)
    assert former is not None
    write_digests(target, replace(former, save_id="another"), {"model_0.pt": "0" * 64}, disk=Disk())
    assert read_manifest(target) == former


def test_a_checkpoint_of_another_version_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "state.rank0.json").write_text("{}")
    (tmp_path / MANIFEST).write_text(json.dumps({"format": "forerun-checkpoint", "schema_version": 3}))
    with pytest.raises(CheckpointError, match="another version of forerun wrote it"):
        _write(tmp_path, b"new")
    assert sorted(os.listdir(tmp_path)) == [MANIFEST, "state.rank0.json"]
