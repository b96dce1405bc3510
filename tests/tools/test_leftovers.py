"""Only what nobody prepares any more is a leftover."""

import json
import os
import subprocess
import sys
from pathlib import Path

from runtime.layout import RunLayout
from runtime.procfs import boot_id, start_ticks
from runtime.run_files import leave_tombstone
from tools.leftovers import PREPARING, abandoned_copies, abandoned_runs, mark_prepared, mark_preparing


def found(runs: Path, *, age_s: float = 0.0, known: tuple[str, ...] = ()) -> list[str]:
    now_s = max((path.stat().st_mtime for path in runs.iterdir()), default=0.0) + age_s
    return [path.name for path in abandoned_runs(runs, known=lambda run_id: run_id in known, now_s=now_s)]


def prepared_by_a_dead_process(runs: Path, name: str) -> Path:
    directory = runs / name
    directory.mkdir()
    code = "import sys, pathlib; from tools.leftovers import mark_preparing; mark_preparing(pathlib.Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, str(directory)], check=True, timeout=50)
    return directory


def test_a_directory_is_its_makers_while_it_lives(tmp_path: Path) -> None:
    (tmp_path / "run-1").mkdir()
    mark_preparing(tmp_path / "run-1")
    assert found(tmp_path, age_s=1e6) == []
    mark_prepared(tmp_path / "run-1")
    assert not (tmp_path / "run-1" / PREPARING).exists()


def test_a_dead_makers_directory_is_a_leftover_unless_the_store_knows_the_run(tmp_path: Path) -> None:
    directory = prepared_by_a_dead_process(tmp_path, "run-1")
    assert found(tmp_path) == ["run-1"]
    assert found(tmp_path, known=("run-1",)) == []
    assert leave_tombstone(RunLayout(directory))
    assert found(tmp_path) == [], "what was claimed is no leftover"


def test_a_reused_pid_is_another_process(tmp_path: Path) -> None:
    (tmp_path / "run-1").mkdir()
    mine = {"pid": os.getpid(), "start_ticks": (start_ticks(os.getpid()) or 0) - 1, "boot_id": boot_id()}
    (tmp_path / "run-1" / PREPARING).write_text(json.dumps(mine))
    assert found(tmp_path) == ["run-1"]


def test_what_is_not_marked_or_of_another_machine_gets_time(tmp_path: Path) -> None:
    for name in ("run-1", "run-2", "run-3", "notes"):
        (tmp_path / name).mkdir()
    (tmp_path / "run-2" / PREPARING).write_text(json.dumps({"pid": 1, "start_ticks": 1, "boot_id": "elsewhere"}))
    (tmp_path / "run-3" / PREPARING).write_text("torn")
    assert found(tmp_path) == []
    assert found(tmp_path, age_s=61.0) == ["run-1", "run-3"]
    assert found(tmp_path, age_s=86_401.0) == ["run-1", "run-2", "run-3"]
    assert list(abandoned_runs(tmp_path / "none", known=lambda _: False, now_s=0.0)) == []


def test_copies_of_code_that_never_got_a_name_are_leftovers_after_an_hour(tmp_path: Path) -> None:
    for name in (".0123456789ab.xyz", "a" * 64, "data"):
        (tmp_path / name).mkdir()
    now_s = (tmp_path / "data").stat().st_mtime
    assert list(abandoned_copies(tmp_path, now_s=now_s + 60)) == []
    assert [path.name for path in abandoned_copies(tmp_path, now_s=now_s + 3601)] == [".0123456789ab.xyz"]
