"""The human's part of the demo: played through a pseudo-terminal, or left to the reader."""

import asyncio
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pexpect

from examples.demo_agent import StepFailed

FORERUN = str(Path(sys.executable).with_name("forerun"))
TIMEOUT_S = 45
# A terminal wide enough that no line of what is shown is broken.
DIMENSIONS = (50, 400)

Answer = str | Callable[[str], str]


def human_environment() -> dict[str, str]:
    """What a login shell would give, and nothing that an agent's client may have set."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "USER", "LANG") if name in os.environ}
    return kept | {"TERM": "xterm-256color"}


@dataclass
class ActedHuman:
    """Types at a terminal of its own what a careful human would type, with a throwaway key."""

    state_dir: Path
    keys_dir: Path
    passphrase: str = field(default_factory=lambda: secrets.token_urlsafe(12))

    def enroll(self) -> str:
        """Make the key; returns what was shown."""
        return self.type_into(
            ["keys", "enroll", "--name", "demo reader"],
            {r"Passphrase: ": self.passphrase, r"Passphrase again: ": self.passphrase},
        )

    async def approve(self, request_id: str) -> str:
        return await asyncio.to_thread(self.decide, request_id)

    def decide(self, request_id: str) -> str:
        """Read cost and digest off the screen, type both, unlock the key; returns what was shown."""
        return self.type_into(
            ["approve", request_id],
            {
                r"Cost, as shown[^\n]*: $": seen(r"^Cost:\s+(unknown|[\d.]+)"),
                r"Request digest, first \d+ characters: $": seen(r"\(short: (\w+)\)"),
                r"type its name \(\w+\): $": seen(r".*type its name \((\w+)\): $"),
                r"Passphrase: $": self.passphrase,
            },
        )

    def type_into(self, arguments: list[str], answers: dict[str, Answer]) -> str:
        """Run `forerun` at a pseudo-terminal and answer its prompts.

        Raises:
            StepFailed: it asked something else, took too long, or ended with an error.
        """
        options = ["--state-dir", str(self.state_dir), "--keys-dir", str(self.keys_dir)]
        child = pexpect.spawn(
            FORERUN,
            [*options, *arguments],
            env=human_environment(),
            encoding="utf-8",
            timeout=TIMEOUT_S,
            dimensions=DIMENSIONS,
        )
        shown = ""
        prompts = [re.compile(prompt) for prompt in answers]
        try:
            while True:
                index = child.expect([pexpect.EOF, *prompts])
                shown += child.before + (child.after if index else "")
                if index == 0:
                    break
                answer = list(answers.values())[index - 1]
                child.sendline(answer if isinstance(answer, str) else answer(shown))
        except (pexpect.TIMEOUT, pexpect.EOF) as error:
            raise StepFailed(f"forerun {' '.join(arguments)} went on otherwise than expected:\n{shown}") from error
        finally:
            child.close(force=True)
        if child.exitstatus != 0:
            raise StepFailed(f"forerun {' '.join(arguments)} ended with {child.exitstatus}:\n{plain(shown)}")
        return plain(shown)


@dataclass
class AskedHuman:
    """The reader, at the terminal that is attached."""

    state_dir: Path
    keys_dir: Path

    def enroll(self) -> str:
        self._run("keys", "enroll", "--name", "demo reader")
        return ""

    async def approve(self, request_id: str) -> str:
        await asyncio.to_thread(self._run, "approve", request_id)
        return "(you decided)"

    def _run(self, *arguments: str) -> None:
        options = ["--state-dir", str(self.state_dir), "--keys-dir", str(self.keys_dir)]
        if subprocess.run([FORERUN, *options, *arguments], check=False).returncode != 0:
            raise StepFailed(f"forerun {' '.join(arguments)}: nothing was decided")


def seen(pattern: str) -> Callable[[str], str]:
    """An answer that is read off the screen: the last match of `pattern`."""

    def read(shown: str) -> str:
        found = re.findall(pattern, plain(shown), flags=re.MULTILINE)
        if not found:
            raise StepFailed(f"nothing on the screen fits {pattern!r}:\n{plain(shown)}")
        return str(found[-1])

    return read


def plain(shown: str) -> str:
    """Terminal output without colours and carriage returns."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown).replace("\r\n", "\n").replace("\r", "\n")
