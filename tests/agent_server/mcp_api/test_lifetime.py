"""The server lives no longer than its client, and the wire stays clean to the last byte."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.launchers.process import alive, start_ticks
from tests.fakes.wire import SERVE, Wire, clean_environment, server_argv

pytestmark = pytest.mark.multiprocess

_START_S = 30.0  # until a server answers on a machine whose cores other tests use
_GONE_WITHIN_S = 10.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Wire]:
    wire = Wire(server_argv(tmp_path / "state", tmp_path))
    yield wire
    wire.kill()


def test_an_idle_server_ends_with_its_clients_pipe(server: Wire) -> None:
    assert server.call("tools/list")["tools"]
    assert server.close(timeout_s=_GONE_WITHIN_S) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_though_stdin_stays_open(server: Wire, number: signal.Signals) -> None:
    assert server.call("tools/list")["tools"]
    server.process.send_signal(number)
    assert server.process.wait(_GONE_WITHIN_S) == 128 + number


def test_a_client_that_closes_only_its_read_end_does_not_leave_a_server(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    process = subprocess.Popen(
        server_argv(tmp_path / "state", tmp_path),
        stdin=subprocess.PIPE,
        stdout=write_end,
        stderr=subprocess.DEVNULL,
        env=clean_environment(),
    )
    os.close(write_end)
    os.close(read_end)
    assert process.stdin is not None
    try:
        meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}
        meta |= {"io.modelcontextprotocol/clientCapabilities": {}}
        meta |= {"io.modelcontextprotocol/clientInfo": {"name": "x", "version": "0"}}
        request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        process.wait(_GONE_WITHIN_S + _START_S)
    finally:
        process.kill()
        process.stdin.close()
        process.wait(10)


def test_the_death_of_the_client_ends_it_even_while_another_process_holds_its_stdin(tmp_path: Path) -> None:
    """The client is killed by SIGKILL; a sleeping child of it still holds the pipe, so there is no EOF."""
    client = (
        "import subprocess, sys, json, os\n"
        "p = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)\n"
        "holder = subprocess.Popen(['sleep', '60'], stdout=p.stdin, stdin=subprocess.DEVNULL)\n"
        "init = {'protocolVersion': '2025-11-25', 'capabilities': {}, 'clientInfo': {'name': 'x', 'version': '0'}}\n"
        "first = {'jsonrpc': '2.0', 'id': 1, 'method': 'initialize', 'params': init}\n"
        "p.stdin.write(json.dumps(first).encode() + b'\\n')\n"
        "p.stdin.flush()\n"
        "p.stdout.readline()\n"
        "import time; time.sleep(2.5)\n"
        "print(p.pid, holder.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", client, *server_argv(tmp_path / "state", tmp_path)],
        stdout=subprocess.PIPE,
        env=clean_environment(),
    )
    assert process.stdout is not None
    try:
        pid, holder = map(int, process.stdout.readline().split())
        ticks = start_ticks(pid)
        assert ticks is not None
        process.kill()
        process.wait(10)
        deadline = time.monotonic() + _GONE_WITHIN_S
        while alive(pid, ticks):
            assert time.monotonic() < deadline, "the server outlived its client"
            time.sleep(0.05)
        os.kill(holder, signal.SIGKILL)
    finally:
        process.kill()
        process.stdout.close()
        process.wait(10)


def test_stdout_is_json_rpc_alone_also_when_a_library_prints_and_after_eof(tmp_path: Path) -> None:
    printing = (
        "import atexit, sys\n"
        "import agent_server.mcp_api.server as s\n"
        "real = s._tool\n"
        "def noisy(name, step):\n"
        "    tool = real(name, step)\n"
        "    async def loud(*args, **kwargs):\n"
        "        print('a whole line')\n"
        "        print('no line end', end='')\n"
        "        raise RuntimeError('bug')\n"
        "    if name == 'list_work':\n"
        "        tool.fn = loud\n"
        "    return tool\n"
        "s._tool = noisy\n"
        "atexit.register(lambda: print('at exit'))\n"
    )
    assert "PYTHONUNBUFFERED" not in clean_environment()
    wire = Wire([sys.executable, "-c", printing + SERVE, str(tmp_path / "state"), str(tmp_path)])
    try:
        assert wire.tool("list_work")["isError"]
        wire.close()
        assert wire.process.stdout is not None
        deadline = time.monotonic() + 5
        while wire.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        wire.kill()
    assert wire.lines
    for line in wire.lines:
        assert json.loads(line)["jsonrpc"] == "2.0"
    assert b"a whole line" in b"".join(wire.stderr)


def test_servers_that_start_for_clients_already_gone_end_at_once(tmp_path: Path) -> None:
    servers = [
        subprocess.Popen(
            server_argv(tmp_path / "state", tmp_path),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(2)
    ]
    for process in servers:
        assert process.wait(30) == 0
