"""Launches that are killed at random moments leave no process and no bound port; launches leave no file elsewhere."""

import contextlib
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runtime.env import current_environment
from tests.fakes.author import Author

pytestmark = pytest.mark.multiprocess
NUM_LAUNCHES = 20
AT_ONCE = 4
LATEST_S = 3.0
FULLY_UP = 7  # launcher, watchdog, engine, two ranks and the child of each
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SCRIPT = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"], start_new_session=True)
time.sleep(600)
"""


@dataclass
class Launch:
    """A launch, the variable that everything it starts inherits, and its port."""

    process: "subprocess.Popen[bytes]"
    tag: str
    port: int
    dies_at: float
    number: signal.Signals


def start(directory: Path, chance: random.Random) -> Launch:
    directory.mkdir()
    (directory / "train.py").write_text(SCRIPT)
    tag, port = secrets.token_hex(8), free_port()
    options = ("--cpu", "--num_processes", "2", "--main_process_port", str(port))
    process = subprocess.Popen(
        [sys.executable, "-m", "runtime.cli", "launch", *options, "train.py"],
        cwd=directory,
        env={**current_environment(), "TEST_TAG": tag},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return Launch(process, tag, port, time.monotonic() + chance.uniform(0.0, LATEST_S), chance.choice(SIGNALS))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return True
    return False


def tagged(tag: str) -> list[int]:
    """Processes that inherited the variable; zombies have no environment any more."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                if f"TEST_TAG={tag}".encode() in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                    found.append(int(entry))
    return found


def test_launches_that_are_killed_at_random_moments_leave_nothing(tmp_path: Path, until: Callable[..., Any]) -> None:
    """One of each four is killed when all of its processes run."""
    seed = secrets.randbits(32)
    chance = random.Random(seed)
    for batch in range(NUM_LAUNCHES // AT_ONCE):
        launches = [start(tmp_path / f"{batch}.{number}", chance) for number in range(AT_ONCE)]
        for launch in sorted(launches, key=lambda launch: launch.dies_at):
            time.sleep(max(0.0, launch.dies_at - time.monotonic()))  # the random moment
            if launch is launches[0]:
                until(lambda tag=launch.tag: len(tagged(tag)) >= FULLY_UP, "both ranks and their children")
            launch.process.send_signal(launch.number)
        for launch in launches:
            what = f"the end of a launch, seed {seed}, {launch.number.name}"
            launch.process.wait(30.0)
            until(lambda tag=launch.tag: not tagged(tag), what, 20.0)
            until(lambda port=launch.port: is_free(port), f"port {launch.port}, {what}", 5.0)


@pytest.mark.parametrize("ending", ["", "raise SystemExit(3)", "import os; os.kill(os.getpid(), 9)"])
def test_nothing_is_left_in_the_temporary_directory(author: Author, ending: str) -> None:
    author.write(f"print('here')\n{ending}\n")
    scratch = author.directory / "tmp"
    scratch.mkdir()
    code, stdout, stderr = author.launch("--cpu", "train.py", TMPDIR=str(scratch))
    assert stdout == "here\n", stderr
    assert (code == 0) == (ending == "")
    assert list(scratch.iterdir()) == []
