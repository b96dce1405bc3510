"""The MCP inspector's strict check of the tool list: schemas that every client can take."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MODULES = Path(__file__).parent / "node_modules"
INSPECTOR = MODULES / ".bin" / "mcp-inspector"
NUM_TOOLS = 15
FINDING = "Issue:"

pytestmark = pytest.mark.skipif(
    not INSPECTOR.exists(), reason="the inspector is not installed: cd tests/node && npm ci --ignore-scripts"
)


def inspector(command: list[str], scratch: Path) -> "subprocess.CompletedProcess[str]":
    environment = {
        "PATH": f"{MODULES / '.bin'}:{os.environ['PATH']}",
        "HOME": str(scratch),
        "FORERUN_STATE_DIR": str(scratch / "state"),
        "FORERUN_KEYS_DIR": str(scratch / "keys"),
    }
    return subprocess.run(
        [str(INSPECTOR), "--cli", *command, "--method", "tools/list", "--strict"],
        env=environment,
        cwd=scratch,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )


def test_strict_check_has_no_findings(tmp_path: Path) -> None:
    forerun = str(Path(sys.executable).with_name("forerun"))
    finished = inspector([forerun, "serve", "--root", str(tmp_path)], tmp_path)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert FINDING not in finished.stderr
    listed = json.loads(finished.stdout)
    assert len(listed["tools"]) == NUM_TOOLS


def test_strict_check_finds_an_unportable_schema(tmp_path: Path) -> None:
    server = tmp_path / "server.py"
    server.write_text(
        "from mcp.server import MCPServer\n"
        "server = MCPServer('odd', log_level='ERROR')\n"
        "@server.tool()\n"
        "def odd(value: int = 0) -> str:\n"
        "    return ''\n"
        "schema = {'type': 'object', 'properties': {'value': {'type': ['string', 'integer']}}}\n"
        "server._tool_manager._tools['odd'].parameters = schema\n"
        "server.run('stdio')\n"
    )
    assert FINDING in inspector([sys.executable, str(server)], tmp_path).stderr
