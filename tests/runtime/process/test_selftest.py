"""`forerun test`: the table of a set-up that works, and of ones that do not."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.env import current_environment

pytestmark = pytest.mark.multiprocess
DEADLINE_S = 170.0  # a machine that is busy with other tests is slow; alone it takes fifteen seconds


def self_test(directory: Path, *arguments: str, **environment: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "runtime.cli", "test", *arguments],
        cwd=directory,
        env={**current_environment(), "TMPDIR": str(directory), "OMP_NUM_THREADS": "1", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    return done.returncode, done.stdout, done.stderr


def rows(table: str) -> dict[tuple[str, str], str]:
    """(job, check) -> outcome; the check of a job that was not tried is empty."""
    found = {}
    for line in table.splitlines():
        match = re.match(r"(?P<job>.{31}) (?P<check>.{12}) (?P<outcome>ok|FAILED|not tried)\b", line)
        if match:
            found[match["job"].strip(), match["check"].strip()] = match["outcome"]
    return found


@pytest.mark.alone
def test_a_set_up_that_works_says_what_was_tried_and_what_was_not(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("num_processes: 2\nmixed_precision: bf16\ncpu: true\nstrategy: deepspeed\n")
    code, stdout, stderr = self_test(tmp_path, "--config-file", "c.yaml", PATH=str(tmp_path))
    assert (code, stderr) == (0, ""), stdout
    seen = rows(stdout)
    assert seen["GPU", ""] == "not tried"
    for check in ("start", "training", "checkpoint"):
        assert seen["1 process, cpu", check] == "ok"
    for strategy in ("ddp", "fsdp", "deepspeed"):  # none needs a compiler, which PATH does not have
        for check in ("start", "collectives", "training", "checkpoint"):
            assert seen[f"2 processes, {strategy}, cpu", check] == "ok"
    assert "precision bf16" in stdout  # the configuration is what counts
    assert stdout.splitlines()[-1].startswith("All that was tried works: ")
    assert not list(tmp_path.glob("forerun-test-*"))
    assert not list(tmp_path.glob("torchelastic*"))


def test_a_set_up_that_does_not_work_fails_with_the_jobs_own_words(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("raise RuntimeError('this numpy is broken')\n")
    (tmp_path / "c.yaml").write_text("multi_gpu: true\nnum_processes: 2\n")
    hidden = {"PYTHONPATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": "", "PATH": str(tmp_path)}
    code, stdout, _ = self_test(tmp_path, "--config-file", "c.yaml", **hidden)
    assert code == 1, stdout
    seen = rows(stdout)
    for name in ("1 process, cuda", "2 processes, cuda"):  # then the same on the CPU
        assert seen[name, ""] == "not tried"
    assert "there is no GPU" in stdout
    for name in ("1 process, cpu", "2 processes, ddp, cpu", "2 processes, fsdp, cpu"):
        assert seen[name, "start"] == "FAILED"
    assert "this numpy is broken" in stdout
    (kept,) = tmp_path.glob("forerun-test-*")
    assert str(kept) in stdout.splitlines()[-1]
    assert "this numpy is broken" in (kept / "job0" / "output.log").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--config-file", "gone.yaml"), "does not exist"),
        (("--python", "/nonexistent"), "is no executable file"),
        (("--config-file", "bad.yaml"), "num_processes is '0'"),
    ],
)
def test_a_wrong_configuration_is_exit_code_2(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    (tmp_path / "bad.yaml").write_text("num_processes: 0\n")
    code, stdout, stderr = self_test(tmp_path, *arguments)
    assert (code, stdout) == (2, "")
    assert said in stderr
    assert not list(tmp_path.glob("forerun-test-*"))
