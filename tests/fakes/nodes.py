"""Launchers of several machines on this one: each in a directory of its own, or on two hosts that are namespaces."""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runtime.env import current_environment
from runtime.layout import RunLayout
from runtime.procfs import marked_pids
from runtime.run_files import read_order

DEADLINE_S = 170.0  # leaves room for a machine that is busy with other tests
PRINT = "import os\nprint('begun', os.environ['RANK'], os.environ['WORLD_SIZE'])\n"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Node:
    """One machine's launcher, in a directory of its own."""

    directory: Path
    process: "subprocess.Popen[str]"

    def end(self) -> tuple[int, str]:
        output, _ = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, output

    @property
    def layout(self) -> RunLayout:
        (path,) = sorted(self.directory.glob("forerun-runs/*"))
        return RunLayout(path)


Start = Callable[..., Node]


def starter(tmp_path: Path) -> Iterator[Start]:
    """Starts the launcher of a node; whatever is left of it at the end is a failure."""
    nodes: list[Node] = []

    def make(rank: int, *options: str, script: str = PRINT, arguments: tuple[str, ...] = (), **more: Any) -> Node:
        directory = tmp_path / f"node{len(nodes)}"
        directory.mkdir()
        (directory / "train.py").write_text(script)
        given = {"--num_machines": "2", "--num_processes": "2", "--machine_rank": str(rank)}
        given = {} if more.get("as_written") else given
        place = [word for option, value in given.items() if option not in options for word in (option, value)]
        process = subprocess.Popen(
            [
                *more.get("prefix", ()),
                *(sys.executable, "-m", "runtime.cli", "launch", "--cpu", *place, *options, "train.py", *arguments),
            ],
            cwd=directory,
            env={**current_environment(), "OMP_NUM_THREADS": "1", **more.get("environment", {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        nodes.append(Node(directory, process))
        return nodes[-1]

    yield make
    for node in nodes:
        if node.process.poll() is None:
            node.process.send_signal(signal.SIGKILL)
        node.process.communicate(timeout=10.0)
        for path in node.directory.glob("forerun-runs/*"):
            order = read_order(RunLayout(path))
            assert order is not None
            end = time.monotonic() + 15.0
            while marked_pids(order.run_id) and time.monotonic() < end:
                time.sleep(0.05)
            assert marked_pids(order.run_id) == []


def two_hosts() -> Iterator[list[list[str]]]:
    """Two network namespaces joined by a cable: the words that put a command into each. 10.77.0.1 and 10.77.0.2."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    if shutil.which("ip") is None:
        pytest.skip("network namespaces need iproute2")
    tag = secrets.token_hex(3)
    names = [f"frA{tag}", f"frB{tag}"]
    wires = [f"va{tag}", f"vb{tag}"]
    try:
        for name in names:
            _ip("netns", "add", name)
        _ip("link", "add", wires[0], "netns", names[0], "type", "veth", "peer", "name", wires[1], "netns", names[1])
        for number, (name, wire) in enumerate(zip(names, wires, strict=True), start=1):
            _ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", wire)
            for link in ("lo", wire):
                _ip("-n", name, "link", "set", link, "up")
        yield [["ip", "netns", "exec", name] for name in names]
    finally:
        for name in names:
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "del", name)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20.0)
