"""From the start of the server to its first tools/list, against a bare SDK server on the same machine.

    python benchmarks/mcp_start.py [--rounds 10] [--goal 1.5]

Speaks raw JSON-RPC, so that no client library is part of the figure. The two servers take turns, so that a busy machine
slows both. The ratio counts, the seconds do not. Exits with 1 if the ratio is over the goal.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from machine import describe_machine

HERE = Path(__file__).resolve().parent
CLIENT = {"name": "bench", "version": "0"}
MODERN = {
    "_meta": {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": CLIENT,
    }
}
HANDSHAKE = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": CLIENT}


@dataclass
class Server:
    """A server's command and the seconds that its starts took, by era."""

    name: str
    command: list[str]
    environment: dict[str, str]
    seconds: dict[str, list[float]] = field(default_factory=lambda: {"handshake": [], "modern": []})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--goal", type=float, default=1.5, help="greatest allowed ratio of the medians")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        ours, bare = servers(Path(scratch))
        measure((bare, ours), rounds=options.rounds)
    print(describe_machine("mcp", "pydantic", "sqlalchemy"))
    worst = 0.0
    for era in ours.seconds:
        ratio = statistics.median(ours.seconds[era]) / statistics.median(bare.seconds[era])
        worst = max(worst, ratio)
        print(f"{era:10} bare {spread(bare.seconds[era])}   forerun {spread(ours.seconds[era])}   ratio {ratio:.2f}")
    print(f"goal: at most {options.goal:.2f}: {'reached' if worst <= options.goal else 'MISSED'}")
    return 0 if worst <= options.goal else 1


def servers(scratch: Path) -> tuple[Server, Server]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(scratch)}
    forerun = str(Path(sys.executable).with_name("forerun"))
    state = environment | {"FORERUN_STATE_DIR": str(scratch / "state"), "FORERUN_KEYS_DIR": str(scratch / "keys")}
    return (
        Server("forerun", [forerun, "serve", "--root", str(scratch)], state),
        Server("bare", [sys.executable, str(HERE / "echo_server.py")], environment),
    )


def measure(pair: Sequence[Server], *, rounds: int) -> None:
    """One start each that is not counted (it writes bytecode and makes the database), then `rounds` in turn."""
    for server in pair:
        start_once(server, "handshake")
    for _ in range(rounds):
        for era in ("handshake", "modern"):
            for server in pair:
                server.seconds[era].append(start_once(server, era))


def start_once(server: Server, era: str) -> float:
    """Seconds from exec to the answer of tools/list."""
    started = time.perf_counter()
    process = subprocess.Popen(
        server.command,
        env=server.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        if era == "handshake":
            ask(process, {"id": 0, "method": "initialize", "params": HANDSHAKE})
            send(process, {"method": "notifications/initialized"})
        tools = ask(process, {"id": 1, "method": "tools/list", "params": MODERN if era == "modern" else {}})
        taken = time.perf_counter() - started
        assert tools["tools"], f"{server.name} lists no tools"
        return taken
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(10)


def send(process: "subprocess.Popen[str]", message: dict[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    process.stdin.flush()


def ask(process: "subprocess.Popen[str]", message: dict[str, Any]) -> dict[str, Any]:
    send(process, message)
    assert process.stdout is not None
    for line in process.stdout:
        answer = json.loads(line)
        if answer.get("id") == message["id"]:
            result: dict[str, Any] = answer["result"]
            return result
    raise SystemExit(f"{process.args!r} ended without an answer; exit code {process.wait(10)}")


def spread(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.3f} s (n={len(seconds)}, {min(seconds):.3f} to {max(seconds):.3f})"


if __name__ == "__main__":
    sys.exit(main())
