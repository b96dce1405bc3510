"""Data directories: each file is known by name, and a change inside is named at launch."""

from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.config.plan import DataFile
from runtime.snapshots import data_manifest
from runtime.snapshots.data_manifest import data_drift, describe_data, read_manifest, store_manifest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "images"
    (made / "a").mkdir(parents=True)
    (made / "a" / "1.png").write_bytes(b"first")
    (made / "a" / "2.png").write_bytes(b"second")
    (made / "labels.csv").write_bytes(b"id,label\n")
    return made


def kept(folder: Path, tmp_path: Path) -> DataFile:
    """The folder as it is now, with its manifest stored."""
    file, entries = describe_data("train", folder)
    store_manifest(tmp_path / "manifests", entries)
    return file


CHANGES: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "nothing": (lambda f: (f / "a" / "1.png").touch(), []),
    "a byte": (lambda f: (f / "a" / "1.png").write_bytes(b"First"), ["a/1.png changed (5 -> 5 bytes, "]),
    "added": (lambda f: (f / "b.png").write_bytes(b"new"), ["b.png added"]),
    "removed": (lambda f: (f / "labels.csv").unlink(), ["labels.csv removed"]),
    "renamed": (lambda f: (f / "a" / "2.png").rename(f / "a" / "3.png"), ["a/2.png renamed to a/3.png"]),
    "moved away": (lambda f: f.rename(f.with_name("old")), ["missing"]),
}


@pytest.mark.parametrize("change", sorted(CHANGES))
def test_each_change_inside_a_data_directory_is_named(folder: Path, tmp_path: Path, change: str) -> None:
    file = kept(folder, tmp_path)
    assert (file.num_files, file.size_bytes, file.mode) == (3, 20, "full")
    alter, expected = CHANGES[change]
    alter(folder)
    found = data_drift([file], manifests=tmp_path / "manifests")
    assert len(found) == len(expected), found
    for line, words in zip(found, expected, strict=True):
        assert line.startswith(f"data train {folder}: {words}")


def test_without_its_manifest_a_directory_is_named_as_a_whole(folder: Path, tmp_path: Path) -> None:
    file = kept(folder, tmp_path)
    (folder / "a" / "1.png").write_bytes(b"First")
    for place in (None, tmp_path / "nowhere"):
        (line,) = data_drift([file], manifests=place)
        assert line.startswith(f"data train {folder}: content changed")


def test_a_manifest_that_was_edited_is_none(folder: Path, tmp_path: Path) -> None:
    file = kept(folder, tmp_path)
    path = tmp_path / "manifests" / f"{file.sha256}.jsonl"
    assert read_manifest(path.parent, file.sha256) is not None
    path.write_text(path.read_text().replace("2.png", "9.png"))
    assert read_manifest(path.parent, file.sha256) is None
    assert data_drift([file], manifests=path.parent) == []  # the folder itself is as it was


def test_many_changes_are_counted(folder: Path, tmp_path: Path) -> None:
    file = kept(folder, tmp_path)
    for number in range(30):
        (folder / f"new{number:02}").write_bytes(bytes([number]))
    lines = data_drift([file], manifests=tmp_path / "manifests")
    assert len(lines) == 21
    assert lines[-1].endswith("and 10 more files differ")


def test_a_linked_directory_is_followed_and_a_loop_ends(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "x.png").write_bytes(b"x")
    (folder / "linked").symlink_to(tmp_path / "more")
    (folder / "loop").symlink_to(folder)
    file = kept(folder, tmp_path)
    assert file.num_files == 4
    (tmp_path / "more" / "x.png").write_bytes(b"y")
    (line,) = data_drift([file], manifests=tmp_path / "manifests")
    assert "linked/x.png changed" in line


def test_only_large_files_of_a_large_directory_are_sampled(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_manifest, "FULL_LIMIT_BYTES", 1000)
    with (folder / "big.bin").open("wb") as handle:
        handle.truncate(65 * 2**20)
    file = kept(folder, tmp_path)
    entries = read_manifest(tmp_path / "manifests", file.sha256)
    assert entries is not None
    assert file.mode == "sampled"
    assert [entry.path for entry in entries if entry.mode == "sampled"] == ["big.bin"]
    with (folder / "big.bin").open("r+b") as handle:
        handle.write(b"!")
    (line,) = data_drift([file], manifests=tmp_path / "manifests")
    assert "big.bin changed" in line
