"""A client that speaks raw JSON-RPC over a server's pipes, so that a test sees every byte of the wire."""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HANDSHAKE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "wire", "version": "0"},
}
MODERN = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "wire", "version": "0"},
}

SERVE = """
import sys
from pathlib import Path
from agent_server.mcp_api.server import serve
from agent_server.settings import load_settings
from tools.domain.paths import AllowedRoots
state, root = sys.argv[1:]
serve(load_settings(state_dir=Path(state), keys_dir=Path(state) / "keys"), AllowedRoots.of([root]))
"""


def server_argv(state: Path, root: Path) -> list[str]:
    """The command line of a server with this state directory and root."""
    return [sys.executable, "-c", SERVE, str(state), str(root)]


def clean_environment() -> dict[str, str]:
    """The environment of a server whose output is buffered as Python likes it."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


class Wire:
    """One server process. Every line of its stdout is kept in `lines`."""

    def __init__(self, argv: list[str], *, modern: bool = False, environment: Mapping[str, str] | None = None) -> None:
        self.modern = modern
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment or clean_environment()),
            cwd="/",
        )
        self.lines: list[bytes] = []
        self.stderr: list[bytes] = []
        self._arrived: queue.Queue[bytes | None] = queue.Queue()
        self._answers: dict[int, dict[str, Any]] = {}
        self._next_id = 0
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._read_errors, daemon=True).start()
        if not modern:
            self._shake_hands()

    def _shake_hands(self) -> None:
        try:
            self.call("initialize", HANDSHAKE)
            self.notify("notifications/initialized")
        except BaseException:
            self.kill()
            raise

    def send(self, method: str, params: Mapping[str, Any] | None = None) -> int:
        """Send a request, do not wait; gives its id."""
        self._next_id += 1
        body = dict(params or {})
        if self.modern:
            body["_meta"] = MODERN
        self._write({"jsonrpc": "2.0", "id": self._next_id, "method": method, "params": body})
        return self._next_id

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        self._write({"jsonrpc": "2.0", "method": method, "params": dict(params or {})})

    def answer(self, request: int, *, timeout_s: float = 40.0) -> dict[str, Any]:
        """The whole answer to this request."""
        deadline = time.monotonic() + timeout_s
        while request not in self._answers:
            line = self._arrived.get(timeout=max(0.01, deadline - time.monotonic()))
            assert line is not None, f"the server is gone; stderr: {b''.join(self.stderr).decode()[-3000:]}"
            message = json.loads(line)
            if "id" in message and "method" not in message:
                self._answers[message["id"]] = message
        return self._answers.pop(request)

    def call(self, method: str, params: Mapping[str, Any] | None = None, *, timeout_s: float = 40.0) -> dict[str, Any]:
        """The result of a request that must succeed."""
        answer = self.answer(self.send(method, params), timeout_s=timeout_s)
        assert "result" in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def tool(self, name: str, *, timeout_s: float = 40.0, **arguments: Any) -> dict[str, Any]:
        """The tool result of a tools/call."""
        return self.call("tools/call", {"name": name, "arguments": arguments}, timeout_s=timeout_s)

    def data(self, name: str, *, timeout_s: float = 40.0, **arguments: Any) -> dict[str, Any]:
        """The structured content of a tool call that must not be refused."""
        return self.structured(self.tool(name, timeout_s=timeout_s, **arguments))

    def structured(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """The structured content of a tool result that must not be a refusal."""
        assert not result.get("isError"), f"{result['content'][0]['text']}\n{b''.join(self.stderr[-60:]).decode()}"
        structured: dict[str, Any] = result["structuredContent"]
        return structured

    def close(self, *, timeout_s: float = 10.0) -> int:
        """EOF on the server's stdin; its exit code."""
        if self.process.stdin is not None and not self.process.stdin.closed:
            self.process.stdin.close()
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        """Make sure that nothing of this server is left after a test."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None and not pipe.closed:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _write(self, message: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def _read(self) -> None:
        assert self.process.stdout is not None
        try:
            for line in self.process.stdout:
                self.lines.append(line)
                self._arrived.put(line)
        except (ValueError, OSError):
            pass
        self._arrived.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        try:
            for line in self.process.stderr:
                self.stderr.append(line)
        except (ValueError, OSError):
            pass
