"""Starting processes: empty stdin, bounded output and time, nothing left; and what /proc says of them."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runtime.env import current_environment
from runtime.errors import ConfigurationError, LaunchError
from runtime.launchers import process
from runtime.launchers.registry import get_launcher, launcher_names

PYTHON = sys.executable


def test_stdin_is_empty_or_the_text_and_output_is_returned() -> None:
    code = "import sys; data = sys.stdin.read(); print(len(data)); print('e', file=sys.stderr); sys.exit(3)"
    for text, size in ((None, "0\n"), ("x" * 300_000, "300000\n")):
        done = process.run([PYTHON, "-c", code], timeout_s=20, stdin_text=text)
        assert done == process.Completed(3, size, "e\n", False)


def test_a_time_out_ends_the_whole_tree(tmp_path: Path) -> None:
    """Children with a session of their own included."""
    script = f"setsid sleep 300 & echo $! > {tmp_path}/a; (sleep 300 & echo $! > {tmp_path}/b); sleep 300"
    began = time.monotonic()
    done = process.run(["bash", "-c", script], timeout_s=1.0)
    assert time.monotonic() - began < 8.0
    assert (done.returncode, done.timed_out) == (-9, True)
    for name in ("a", "b"):
        pid = int((tmp_path / name).read_text())
        ticks = process.start_ticks(pid)
        assert ticks is None or not process.alive(pid, ticks)


def test_a_grandchild_that_holds_the_pipes_does_not_hold_the_caller() -> None:
    began = time.monotonic()
    done = process.run(["bash", "-c", "sleep 300 & echo done"], timeout_s=30)
    assert (done.returncode, done.stdout, done.timed_out) == (0, "done\n", False)
    assert time.monotonic() - began < 10.0


def test_output_is_cut_and_still_drained() -> None:
    code = "import sys; sys.stdout.write('x' * 1_000_000); sys.stderr.write('\\udcff'.encode(errors='ignore').decode())"
    done = process.run([PYTHON, "-c", code], timeout_s=20, max_output_bytes=1000)
    assert (done.returncode, len(done.stdout)) == (0, 1000)


def test_the_environment_is_the_one_given() -> None:
    code = "import os; print(sorted(os.environ))"
    done = process.run([PYTHON, "-I", "-c", code], timeout_s=20, environment={"ONLY": "1"})
    assert set(eval(done.stdout)) - {"LC_CTYPE"} == {"ONLY", "FORERUN_RUN"}


@pytest.mark.parametrize("argv", [["/nonexistent"], ["a\0b"], [str(Path(__file__))]])
def test_what_cannot_start_is_a_launch_error(argv: list[str]) -> None:
    with pytest.raises(LaunchError, match="cannot be started"):
        process.run(argv, timeout_s=5)


def test_a_detached_process_has_no_parent_here_and_its_own_session(tmp_path: Path) -> None:
    code = "import os, sys; print(os.getsid(0) == os.getpid() or os.getsid(0), sys.stdin.read() == '', flush=True)"
    log = tmp_path / "logs" / "a.log"
    pid = process.start_detached(
        [PYTHON, "-c", code + "; __import__('time').sleep(300)"],
        environment={**current_environment(), "FORERUN_RUN": "run-detached1"},
        working_directory=tmp_path,
        log=log,
    )
    try:
        end = time.monotonic() + 20
        while not log.read_text():
            assert time.monotonic() < end
            time.sleep(0.02)
        assert log.read_text().split()[1] == "True"
        assert pid not in process.descendants(os.getpid())
        assert process.marked_pids("run-detached1") == [pid]
        assert process.marked_pids("run-detached") == []
    finally:
        assert process.kill_marked("run-detached1", deadline_s=5.0) == []


def test_a_detached_start_that_fails_says_so(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="No such file"):
        process.start_detached(["/nonexistent"], environment={}, working_directory=tmp_path, log=tmp_path / "log")


def test_zombies_and_later_owners_of_a_pid_are_not_alive() -> None:
    with subprocess.Popen(["sleep", "300"]) as child:
        ticks = process.start_ticks(child.pid)
        assert ticks is not None
        assert process.alive(child.pid, ticks)
        assert not process.alive(child.pid, ticks + 1)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert process.start_ticks(child.pid) is not None
        assert not process.alive(child.pid, ticks)
        assert child.pid not in process.descendants(os.getpid())
    assert process.start_ticks(child.pid) is None


def test_names_with_parentheses_do_not_confuse_the_start_time(tmp_path: Path) -> None:
    program = tmp_path / "a) S 1 (b"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([str(program), "300"]) as child:
        end = time.monotonic() + 10
        while "a) S 1 (b" not in Path(f"/proc/{child.pid}/comm").read_text():
            assert time.monotonic() < end
        ticks = process.start_ticks(child.pid)
        assert ticks is not None
        assert ticks > 1000
        child.kill()


def test_launchers_are_found_by_name() -> None:
    assert launcher_names() == ["dry", "local", "slurm"]
    with pytest.raises(ConfigurationError, match="dry, local"):
        get_launcher("kubernetes")
