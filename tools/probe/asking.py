"""One question to another interpreter: JSON in, JSON out, under a deadline and with nothing of ours on its path."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtime.errors import LaunchError
from runtime.launchers import process

_INSIDE = Path(__file__).parent / "inside"
_MARK = "@@forerun-answer "


class NoAnswer(Exception):
    """The interpreter did not start, failed, or said nothing in time; the text says which."""


def ask(
    python: str,
    script: str,
    question: Mapping[str, Any],
    *,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run `inside/<script>.py` in `python`, isolated (-I): no PYTHONPATH, no working directory on its path.

    Raises:
        NoAnswer: see there.
    """
    argv = [python, "-I", "-X", "utf8", str(_INSIDE / f"{script}.py")]
    try:
        done = process.run(
            argv,
            timeout_s=timeout_s,
            environment=environment,
            working_directory=_INSIDE,
            stdin_text=json.dumps(dict(question)),
            max_output_bytes=64 * 2**20,
        )
    except LaunchError as error:
        raise NoAnswer(error.what) from error
    for line in reversed(done.stdout.splitlines()):
        if line.startswith(_MARK):
            answer: dict[str, Any] = json.loads(line[len(_MARK) :])
            return answer
    if done.timed_out:
        raise NoAnswer(f"{python} did not answer within {timeout_s:g} s")
    lines = done.stderr.strip().splitlines()
    last = lines[-1][:300] if lines else "it printed nothing"
    raise NoAnswer(f"{python} ended with exit code {done.returncode} and no answer: {last}")
