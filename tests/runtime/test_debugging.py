"""debug_launcher: functions on several processes, from an interpreter that is no rank."""

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.debugging import debug_launcher
from runtime.errors import ConfigurationError, UsageError

pytestmark = pytest.mark.multiprocess

_SOURCE = Path(__file__).resolve().parents[2]


def _interpreter(script: str, directory: Path, *, deadline_s: float = 50.0) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter, fed from stdin: functions of it can be found by no import."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FORERUN_")}
    return subprocess.run(
        [sys.executable, "-W", "error", "-"],
        input="import os, sys, time\nfrom pathlib import Path\nHERE = Path.cwd()\nfrom runtime import debug_launcher\n"
        + textwrap.dedent(script),
        cwd=directory,
        env=kept | {"PYTHONPATH": str(_SOURCE)},
        capture_output=True,
        text=True,
        timeout=deadline_s,
    )


def test_ranks_of_a_typed_function_train_together_twice(tmp_path: Path) -> None:
    done = _interpreter(
        """
        def train(name, scale):
            import torch
            from runtime import Accelerator
            accelerator = Accelerator()
            model = torch.nn.Linear(1, 1, bias=False)
            torch.nn.init.ones_(model.weight)
            model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
            x = torch.tensor([[float(accelerator.process_index)]])
            accelerator.backward(scale * model(x).sum())
            optimizer.step()
            weight = accelerator.unwrap_model(model).weight.item()
            text = f"{weight} {accelerator.num_processes} {accelerator.device}"
            (HERE / f"{name}.{accelerator.process_index}").write_text(text)

        debug_launcher(train, args=("three", 1.0), num_processes=3)
        debug_launcher(lambda word: (HERE / f"again.{os.environ['RANK']}").write_text(word), ("again",))
        from runtime import Accelerator
        print("alone again:", Accelerator(cpu=True).num_processes)
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / f"again.{rank}").read_text() for rank in (0, 1)] == ["again"] * 2
    assert [(tmp_path / f"three.{rank}").read_text() for rank in (0, 1, 2)] == ["0.0 3 cpu"] * 3
    assert "alone again: 1" in done.stdout


def test_the_first_ranks_error_is_raised_with_its_traceback_and_nothing_is_left(tmp_path: Path) -> None:
    done = _interpreter(
        """
        from runtime.errors import LaunchError
        def train():
            from runtime import Accelerator
            accelerator = Accelerator()
            (HERE / f"pid.{accelerator.process_index}").write_text(str(os.getpid()))
            accelerator.wait_for_everyone()
            if accelerator.process_index == 1:
                raise ValueError("a bad row")
            accelerator.wait_for_everyone()
        try:
            debug_launcher(train, num_processes=3)
        except LaunchError as error:
            print(error)
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "rank 1 of 3 failed: ValueError: a bad row" in done.stdout
    assert 'raise ValueError("a bad row")' in done.stdout or "in train" in done.stdout
    for rank in range(3):
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / f"pid.{rank}").read_text()), 0)


def test_a_rank_that_is_killed_and_one_that_hangs_are_named(tmp_path: Path) -> None:
    done = _interpreter(
        """
        import signal
        from runtime.errors import LaunchError
        def die():
            from runtime import PartialState
            if PartialState().process_index == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        def hang():
            from runtime import PartialState
            if PartialState().process_index == 0:
                signal.pause()
        for function, limit in ((die, None), (hang, 3.0)):
            try:
                debug_launcher(function, timeout_s=limit)
            except LaunchError as error:
                print(error)
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "rank 1 of 2 was ended by signal 9, without a traceback" in done.stdout
    assert "rank 0 did not end within 3 s" in done.stdout


def test_ranks_die_with_their_interpreter(tmp_path: Path) -> None:
    script = f"""
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {str(_SOURCE)!r})
from runtime import debug_launcher
def wait():
    from runtime import PartialState
    Path(f"rank{{PartialState().process_index}}.part").write_text(str(os.getpid()))
    os.rename(f"rank{{PartialState().process_index}}.part", f"rank{{PartialState().process_index}}.pid")
    signal.pause()
debug_launcher(wait)
"""
    said = [tmp_path / f"rank{rank}.pid" for rank in range(2)]
    with subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path) as process:
        try:
            _wait_until(lambda: all(file.exists() for file in said), within_s=45.0)
        finally:
            process.kill()
    pids = [int(file.read_text()) for file in said]
    _wait_until(lambda: not any(map(_lives, pids)), within_s=10.0)


def _wait_until(condition: Callable[[], bool], *, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_wrong_use_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="num_processes=0"):
        debug_launcher(print, num_processes=0)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="on a rank of a job"):
        debug_launcher(print)
