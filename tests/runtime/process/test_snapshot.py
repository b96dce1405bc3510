"""Code snapshots: what is taken, what is refused, and that one changed byte is named."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime.config.plan import DataFile
from runtime.errors import ConfigurationError, LaunchError
from runtime.snapshots.data_manifest import data_digest, data_drift
from runtime.snapshots.snapshot import code_drift, collect, materialise, origin_drift, store


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A directory with code, without git."""
    root = tmp_path / "project"
    for name, text in {
        "train.py": "import package.part",
        "package/__init__.py": "",
        "package/part.py": "x = 1",
        "__pycache__/train.cpython-311.pyc": "junk",
        ".venv/pyvenv.cfg": "",
        ".venv/lib/big.py": "y = 2",
        "env/conda-meta/history": "",
        "data/train.csv": "a,b\n1,2\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def git(directory: Path, *arguments: str) -> None:
    subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "protocol.file.allow=always", *arguments],
        cwd=directory,
        check=True,
        capture_output=True,
        env={"PATH": os.environ["PATH"], "HOME": str(directory), "GIT_CONFIG_NOSYSTEM": "1"},
    )


def paths(root: Path, script: str = "train.py", data: tuple[str, ...] = ()) -> list[str]:
    snapshot, _ = collect(root / script, data_paths=[root / name for name in data])
    return [file.path for file in snapshot.files]


def test_without_git_the_directory_is_taken_less_environments_caches_and_data(tree: Path) -> None:
    snapshot, notes = collect(tree / "train.py", data_paths=[tree / "data"])
    assert [file.path for file in snapshot.files] == ["package/__init__.py", "package/part.py", "train.py"]
    assert (snapshot.origin, snapshot.entry) == (str(tree), "train.py")
    assert any(".venv" in note for note in notes)
    assert paths(tree)[0] == "data/train.csv"


def test_with_git_tracked_and_untracked_files_are_taken_and_ignored_ones_are_not(tree: Path) -> None:
    git(tree, "init", "-q")
    (tree / ".gitignore").write_text("secret.txt\nbuild/\n")
    git(tree, "add", "train.py", ".gitignore", "package/__init__.py")
    (tree / "secret.txt").write_text("token")
    (tree / "b\u00e4ume.py").write_text("")
    expected = [".gitignore", "b\u00e4ume.py", "package/__init__.py", "package/part.py", "train.py"]
    assert paths(tree, data=("data/train.csv",)) == expected
    assert paths(tree, "package/part.py", data=("data",)) == expected  # from the top of the work tree
    (tree / "build").mkdir()
    (tree / "build" / "made.py").write_text("")
    snapshot, notes = collect(tree / "build" / "made.py", data_paths=[])
    assert "build/made.py" in [file.path for file in snapshot.files]
    assert any("ignored by git" in note for note in notes)


def test_git_configuration_of_the_tree_runs_nothing(tree: Path, tmp_path: Path) -> None:
    git(tree, "init", "-q")
    trap = tmp_path / "trap.sh"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\n")
    trap.chmod(0o755)
    git(tree, "config", "core.fsmonitor", str(trap))
    assert "train.py" in paths(tree)
    assert not (tmp_path / "sprung").exists()


def test_submodules_are_taken_or_refused(tree: Path, tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    (library / "lib.py").write_text("z = 3")
    git(library, "init", "-q")
    git(library, "add", ".")
    git(library, "commit", "-qm", "x")
    git(tree, "init", "-q")
    git(tree, "add", "train.py")
    git(tree, "submodule", "add", "-q", str(library), "vendor")
    assert "vendor/lib.py" in paths(tree)
    git(tree, "submodule", "deinit", "--force", "vendor")
    with pytest.raises(ConfigurationError, match="submodule vendor is not initialised"):
        paths(tree)


def test_lfs_pointers_are_refused_by_name(tree: Path) -> None:
    (tree / "weights.bin").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n")
    with pytest.raises(ConfigurationError, match=r"weights\.bin.*git lfs pull"):
        paths(tree)


def test_too_much_code_is_refused_and_the_largest_files_are_named(tree: Path) -> None:
    (tree / "huge.npy").write_bytes(b"0" * 3_000_000)
    with pytest.raises(ConfigurationError, match=r"largest: huge\.npy \(2\.9 MiB\)"):
        collect(tree / "train.py", data_paths=[], max_bytes=2 * 2**20)
    collect(tree / "train.py", data_paths=[tree / "huge.npy"], max_bytes=2 * 2**20)


def test_links_are_copied_as_content_inside_the_tree_and_left_out_with_a_note_outside(tree: Path) -> None:
    (tree.parent / "outside").mkdir()
    (tree.parent / "outside" / "x.py").write_text("")
    (tree / "alias.py").symlink_to("train.py")
    (tree / "loop").symlink_to(".")
    (tree / "away").symlink_to(tree.parent / "outside")
    (tree / "broken.py").symlink_to("nowhere.py")
    os.mkfifo(tree / "pipe")
    snapshot, notes = collect(tree / "train.py", data_paths=[tree / "data"])
    names = [file.path for file in snapshot.files]
    assert names == ["alias.py", "package/__init__.py", "package/part.py", "train.py"]
    said = "\n".join(notes)
    assert all(name in said for name in ("loop", "away", "broken.py", "pipe"))


@pytest.mark.parametrize("name", [b"bad\xff.py", b"new\nline.py", b"escape\x1b[2J.py"])
@pytest.mark.parametrize("with_git", [False, True])
def test_names_that_no_plan_can_hold_are_refused(tree: Path, name: bytes, with_git: bool) -> None:
    if with_git:
        git(tree, "init", "-q")
    Path(os.fsdecode(bytes(tree) + b"/" + name)).write_text("")
    with pytest.raises(ConfigurationError, match="UTF-8") as caught:
        paths(tree)
    assert "\x1b" not in str(caught.value)


def test_a_missing_script_is_refused(tree: Path) -> None:
    for name in ("nope.py", "package"):
        with pytest.raises(ConfigurationError, match="is no file"):
            paths(tree, name)


def test_store_and_materialise_give_a_read_only_verified_copy(tree: Path, tmp_path: Path) -> None:
    (tree / "run.sh").write_text("#!/bin/sh\n")
    (tree / "run.sh").chmod(0o755)
    snapshot, _ = collect(tree / "train.py", data_paths=[tree / "data"])
    stored = store(snapshot, tmp_path / "store")
    assert store(snapshot, tmp_path / "store") == stored
    (tree / "train.py").write_text("changed later")
    code = tmp_path / "run" / "code"
    materialise(snapshot, tmp_path / "store", code)
    materialise(snapshot, tmp_path / "store", code)
    assert code_drift(snapshot, code) == []
    assert (code / "train.py").read_text() == "import package.part"
    assert (code / "train.py").stat().st_mode & 0o777 == 0o444
    assert (code / "run.sh").stat().st_mode & 0o777 == 0o555
    assert (code / "package").stat().st_mode & 0o777 == 0o555
    assert not [entry for entry in (tmp_path / "store").iterdir() if entry.name.startswith(".")]


def test_a_file_that_changes_between_collecting_and_storing_is_refused(tree: Path, tmp_path: Path) -> None:
    snapshot, _ = collect(tree / "train.py", data_paths=[])
    (tree / "package" / "part.py").write_text("x = 2")
    with pytest.raises(LaunchError, match=r"package/part\.py"):
        store(snapshot, tmp_path / "store")
    assert list((tmp_path / "store").iterdir()) == []


def test_a_damaged_store_is_not_used_and_heals_from_the_origin(tree: Path, tmp_path: Path) -> None:
    snapshot, _ = collect(tree / "train.py", data_paths=[])
    stored = store(snapshot, tmp_path / "store")
    (stored / "train.py").chmod(0o644)
    (stored / "train.py").write_text("import os")
    with pytest.raises(LaunchError, match=r"train\.py"):
        materialise(snapshot, tmp_path / "store", tmp_path / "code")
    assert not (tmp_path / "code").exists()
    assert code_drift(snapshot, store(snapshot, tmp_path / "store")) == []


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "content of equal size and time": (lambda p: _same_size(p / "train.py"), "code train.py: content changed"),
    "an added file": (lambda p: (p / "extra.py").write_text(""), "code extra.py: not part of the plan"),
    "a hidden cache": (lambda p: _cache(p), "code package/__pycache__/part.cpython-311.pyc: not part of the plan"),
    "a removed file": (lambda p: (p / "train.py").unlink(), "code train.py: missing"),
    "a mode": (lambda p: (p / "train.py").chmod(0o755), "code train.py: now executable"),
    "a link": (lambda p: _link(p / "train.py"), "code train.py: no longer a regular file"),
}


def _same_size(path: Path) -> None:
    before = path.stat()
    path.write_text(path.read_text().replace("part", "parT"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _cache(root: Path) -> None:
    (root / "package" / "__pycache__").mkdir()
    (root / "package" / "__pycache__" / "part.cpython-311.pyc").write_bytes(b"x")


def _link(path: Path) -> None:
    path.rename(path.parent.parent / "elsewhere.py")
    path.symlink_to("../elsewhere.py")


@pytest.mark.parametrize("change", sorted(CHANGES))
def test_drift_of_a_copy_names_the_file(tree: Path, tmp_path: Path, change: str) -> None:
    snapshot, _ = collect(tree / "train.py", data_paths=[tree / "data"])
    store(snapshot, tmp_path / "store")
    code = tmp_path / "run" / "code"
    materialise(snapshot, tmp_path / "store", code)
    for path in [code, *code.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    alter, line = CHANGES[change]
    alter(code)
    drift = code_drift(snapshot, code)
    assert len(drift) == 1
    assert drift[0].startswith(line)


def test_data_drift_names_file_and_kind(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text("1,2,3")
    size, digest, mode = data_digest(path)
    file = DataFile(role="train", path=str(path), size_bytes=size, sha256=digest, mode=mode)
    assert data_drift([file]) == []
    path.write_text("1,2,4")
    assert data_drift([file])[0].startswith(f"data train {path}: content changed")
    path.write_text("1,2")
    assert data_drift([file]) == [f"data train {path}: size 5 -> 3 bytes"]
    path.unlink()
    assert data_drift([file]) == [f"data train {path}: missing"]


def test_drift_of_the_working_tree_is_told_against_the_plan(runs: Any) -> None:
    run = runs.planned("import part", files={"part.py": "x = 1", "old.py": ""})
    assert origin_drift(run.plan) == []
    run.source.with_name("part.py").write_text("x = 2")
    run.source.with_name("new.py").write_text("")
    run.source.with_name("old.py").unlink()
    run.data.write_text("id\n")
    drift = origin_drift(run.plan)
    assert [line.split(" (")[0] for line in drift[:3]] == [
        "code new.py: not part of the plan",
        "code old.py: missing",
        "code part.py: content changed, 5 -> 5 bytes",
    ]
    assert len(drift) == 4
    assert f"data train {run.data}: size" in drift[3]
    run.source.unlink()
    assert "is no file" in origin_drift(run.plan)[0]


def test_a_data_directory_is_digested_with_its_names(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    (folder / "a").mkdir(parents=True)
    (folder / "a" / "1.png").write_bytes(b"x")
    first = data_digest(folder)
    (folder / "a" / "1.png").rename(folder / "a" / "2.png")
    assert data_digest(folder)[1] != first[1]
    assert data_digest(folder)[0] == first[0] == 1


def test_sampling_covers_size_and_both_ends(tmp_path: Path) -> None:
    path = tmp_path / "big.bin"
    path.write_bytes(bytes(5_000_000))
    before = data_digest(path, mode="sampled")
    assert before[2] == "sampled"
    for position in (0, 4_999_999):
        with path.open("r+b") as handle:
            handle.seek(position)
            handle.write(b"!")
        assert data_digest(path, mode="sampled")[1] != before[1]
        path.write_bytes(bytes(5_000_000))


def test_what_is_no_data_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigurationError, match="no regular file"):
        data_digest(tmp_path / "pipe")


def test_files_of_secrets_are_left_out_and_named(tree: Path) -> None:
    kept = {".env.example": "TOKEN=", "ca.pem": "-----BEGIN CERTIFICATE-----", "environment.py": "", "keys.key": "k"}
    secret = {".env": "TOKEN=SECRET-a", ".env.local": "x", "part/.netrc": "x", "id_ed25519": "x"}
    secret["server.pem"] = "-----BEGIN EC PRIVATE KEY-----"
    for name, text in (kept | secret).items():
        (tree / name).parent.mkdir(exist_ok=True)
        (tree / name).write_text(text)
    snapshot, notes = collect(tree / "train.py", data_paths=[])
    taken = {file.path for file in snapshot.files}
    assert set(kept) <= taken
    assert not taken & set(secret)
    assert all(any(note.startswith(f"{name} looks like") for note in notes) for name in secret)
