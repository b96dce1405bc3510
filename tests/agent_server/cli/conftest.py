"""The real `forerun` on a pseudo-terminal, with a state directory and keys of its own."""

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pexpect
import pytest

from agent_server.approvals.keys import enroll
from agent_server.store.sql import SqlStore
from tests.fakes.approvals import ask
from tools.domain.approval import ApprovalRequest
from tools.domain.plan_state import PlanRecord
from tools.domain.ports import StoreMode

PASSPHRASE = "correct horse battery"
_KEPT = ("HOME", "LANG", "PATH", "PYTHONPATH", "TMPDIR")


@dataclass
class Desk:
    """A human's terminal on one state directory."""

    root: Path
    mode: StoreMode = "normal"
    children: list["pexpect.spawn[str]"] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = SqlStore(f"sqlite:///{self.root / 'state' / 'forerun.db'}", clock=time.time, create_as=self.mode)

    @property
    def environment(self) -> dict[str, str]:
        """Without the variables that agents set for their commands: a test may run in an agent's shell."""
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        return kept | {
            "FORERUN_STATE_DIR": str(self.root / "state"),
            "FORERUN_KEYS_DIR": str(self.root / "keys"),
            "TERM": "dumb",
            "COLUMNS": "200",
        }

    @property
    def argv(self) -> list[str]:
        return [sys.executable, "-m", "agent_server.cli.app"]

    def type(self, *arguments: str, **environment: str) -> "pexpect.spawn[str]":
        """Start `forerun` with these arguments on a new pseudo-terminal."""
        child: pexpect.spawn[str] = pexpect.spawn(
            self.argv[0],
            [*self.argv[1:], *arguments],
            env=self.environment | environment,  # type: ignore[arg-type]  # the stub wants os._Environ
            timeout=30,
            encoding="utf-8",
            dimensions=(50, 200),
            echo=True,
        )
        child.delaybeforesend = None
        child.delayafterclose = child.delayafterterminate = 0.02
        self.children.append(child)
        return child

    def enroll(self, name: str = "alice") -> None:
        """As `forerun keys enroll` does, without the terminal."""
        enroll(self.store, self.root / "keys", approver=name, passphrase=PASSPHRASE, now_s=time.time())

    def ask(self, record: PlanRecord | None = None, *, ttl_s: float = 3600) -> ApprovalRequest:
        return ask(self.store, time.time, record, ttl_s=ttl_s)


def end(child: "pexpect.spawn[str]") -> int:
    """The exit code, once everything was read."""
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus is not None, child.signalstatus
    return int(child.exitstatus)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    opened = Desk(tmp_path)
    yield opened
    for child in opened.children:
        child.close(force=True)
    opened.store.close()


@pytest.fixture
def demo_desk(tmp_path: Path) -> Iterator[Desk]:
    opened = Desk(tmp_path, mode="simulated")
    yield opened
    for child in opened.children:
        child.close(force=True)
    opened.store.close()
