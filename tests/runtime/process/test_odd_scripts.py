"""What scripts and shells do now and then: other bytes in names and messages, closed streams, ranks that leave."""

import os
import sys
from pathlib import Path

import pytest

from runtime.cli.checks import check
from runtime.cli.foreground import HandLaunch
from runtime.config.choices import choose
from runtime.config.resolve import resolve
from runtime.errors import ConfigurationError
from tests.fakes.author import Author

pytestmark = pytest.mark.multiprocess

ODD = """
import os, sys, time
rank, what = os.environ["RANK"], sys.argv[1]
if what == "bytes" and rank == "0":
    open(b"no \\xe9 such".decode(errors="surrogateescape"))
if what == "closed" and rank == "0":
    os.close(1), os.close(2)
    raise ValueError("said to nobody")
if what == "wordless" and rank == "0":
    raise LookupError
time.sleep(50)
"""


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("bytes", "rank 0: exit 1: FileNotFoundError: [Errno 2] No such file or directory: 'no \\udce9 such'"),
        ("closed", "rank 0: exit 1: ValueError: said to nobody"),
        ("wordless", "rank 0: exit 1: LookupError"),
    ],
)
def test_the_first_failure_is_on_record_whatever_it_says(author: Author, what: str, reason: str) -> None:
    author.write(ODD)
    code, _, stderr = author.launch("--cpu", "--num-processes", "2", "train.py", what)
    assert code == 1
    assert author.result().reason == reason
    assert f"forerun: failed: {reason};" in stderr
    assert stderr.count("Traceback") == 1
    assert stderr.rstrip().splitlines()[-1].startswith(reason.removeprefix("rank 0: exit 1: ").partition(":")[0])


def test_ranks_that_left_before_the_first_failure_are_named(author: Author) -> None:
    author.write(
        """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
if os.environ["RANK"] == "1":
    os._exit(0)
dist.all_reduce(torch.ones(1))
"""
    )
    code, _, _ = author.launch("--cpu", "--num-processes", "2", "train.py")
    assert code == 1
    result = author.result()
    assert result.reason.startswith("rank 0: exit 1: RuntimeError")
    assert result.reason.endswith("(ended before it, with exit 0: rank 1)")


@pytest.mark.parametrize("place", ["script", "argument", "folder"])
def test_bytes_that_no_record_can_hold_are_refused_before_anything_starts(author: Author, place: str) -> None:
    odd = os.fsdecode(b"a\xe9b")
    if place == "folder":
        author.directory = author.directory / odd
        author.directory.mkdir()
    script = f"{odd}.py" if place == "script" else "train.py"
    author.write("open('started', 'w')", script)
    code, stdout, stderr = author.launch(script, *([odd] if place == "argument" else []))
    assert (code, stdout) == (2, "")
    assert "is no UTF-8" in stderr
    assert "Traceback" not in stderr
    assert [path.name for path in author.directory.iterdir()] == [script]


def test_a_strict_interpreter_has_nothing_to_complain_of(author: Author) -> None:
    author.write("print('fine')")
    assert author.launch("--cpu", "train.py", PYTHONDEVMODE="1", PYTHONWARNINGS="error")[:2] == (0, "fine\n")


def test_a_run_directory_named_with_a_tilde_lies_at_home(author: Author) -> None:
    author.write("print('fine')")
    code, _, stderr = author.launch(
        "--cpu", "--python", sys.executable, "train.py", FORERUN_LOG_DIR="~/runs", HOME=str(author.directory)
    )
    assert code == 0, stderr
    assert len(list((author.directory / "runs").iterdir())) == 1


def test_a_script_that_may_not_be_read_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may read whatever its mode
    launch = HandLaunch(python=sys.executable, target=str(tmp_path / "train.py"), arguments=(), num_processes=1)
    with pytest.raises(ConfigurationError, match=r"train.py' cannot be read"):
        check(launch, choose(resolve([])), gpu_ids="")
