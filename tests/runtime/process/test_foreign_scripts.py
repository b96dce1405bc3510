"""Scripts that know nothing of our runtime run as under torchrun: lines, arguments, environment, exit code."""

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.env import current_environment
from tests.fakes.author import Author

pytestmark = pytest.mark.multiprocess
SCRIPTS = Path(__file__).with_name("foreign")
ARGUMENTS = ("--lr=0.1", "a b", "")
DEADLINE_S = 58.0
TRIES = 3
# What a script under forerun has beside torchrun's variables; docs/launching.md lists the same.
ADDED = {"FORERUN_RUN", "FORERUN_RUN_DIR", "PYTHONUNBUFFERED"}


def torchrun(directory: Path, script: str, *arguments: str) -> tuple[int, list[str]]:
    """Exit code and the lines of both ranks, in order of their text."""
    kept = {name: value for name, value in current_environment().items() if name not in ADDED}
    done = subprocess.run(
        [*(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"), script, *arguments],
        cwd=directory,
        env={**kept, "OMP_NUM_THREADS": "1", "TMPDIR": str(directory)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    sys.stderr.write(done.stderr)
    return done.returncode, ours(done.stdout)


def unless_torch_aborts(run: Callable[[], tuple[int, list[str]]]) -> list[str]:
    """The lines of a run that ends well: on a busy machine gloo's threads may abort a rank when it is taken down."""
    for _ in range(TRIES):
        code, lines = run()
        if code == 0:
            return lines
    raise AssertionError((code, lines))


def ours(output: str) -> list[str]:
    """The script's own lines, without the rank in front; libraries write others, with times in them."""
    lines = [re.sub(r"^\[rank\d\] ", "", line) for line in output.splitlines()]
    return sorted(line for line in lines if line.startswith("rank "))


def both(author: Author, name: str) -> tuple[list[str], list[str]]:
    shutil.copy(SCRIPTS / name, author.directory)
    theirs = unless_torch_aborts(lambda: torchrun(author.directory, name, *ARGUMENTS))
    assert len({line.split()[1] for line in theirs}) == 2

    environment = {"OMP_NUM_THREADS": "1", "TMPDIR": str(author.directory)}

    def launch() -> tuple[int, list[str]]:
        code, stdout, stderr = author.launch("--num_processes", "2", name, *ARGUMENTS, **environment)
        sys.stderr.write(stderr)
        return code, ours(stdout)

    return unless_torch_aborts(launch), theirs


def test_plain_torch_sees_what_it_sees_under_torchrun(author: Author) -> None:
    seen, expected = both(author, "raw_ddp.py")
    variables = [[line for line in lines if "'RANK'" in line] for lines in (seen, expected)]
    for line, other in zip(*variables, strict=True):
        mine, his = (set(ast.literal_eval(text.partition("[")[1] + text.partition("[")[2])) for text in (line, other))
        assert (mine - his, his - mine) == (ADDED, set())
    assert len(variables[0]) == 2
    rest = [[line for line in lines if "'RANK'" not in line] for lines in (seen, expected)]
    assert rest[0] == rest[1]
    assert len(rest[0]) == 8


@pytest.mark.parametrize(
    "name",
    [
        "with_accelerate.py",
        pytest.param("with_lightning.py", marks=pytest.mark.alone),  # their imports take many seconds on a busy core
        pytest.param("with_transformers.py", marks=pytest.mark.alone),
    ],
)
def test_other_libraries_print_the_same_lines(author: Author, name: str) -> None:
    seen, expected = both(author, name)
    assert seen == expected


def test_a_failure_is_one_under_both(author: Author) -> None:
    """torchrun makes 1 of every code; the launch gives the worker's own."""
    author.write("import os, sys\nsys.exit(5 if os.environ['RANK'] == '1' else 0)\n")
    assert torchrun(author.directory, "train.py")[0] == 1
    assert author.launch("--num_processes", "2", "train.py")[0] == 5
