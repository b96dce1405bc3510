"""`forerun config` in a real terminal and from a pipe; what it writes is dry-run by `forerun launch` (C22, S3)."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pytest

from runtime.config.loader import dump, load
from runtime.env import current_environment

pytestmark = pytest.mark.multiprocess
TIMEOUT_S = 50
FORERUN = [sys.executable, "-m", "agent_server.cli.app"]
ANSWERS = Path(__file__).parents[2] / "runtime" / "config" / "files"


class Home:
    """Somebody's home directory, with a script in it and no GPU."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config = directory / ".config" / "forerun" / "config.yaml"
        (directory / "train.py").write_text("print('trained')\n")

    def environment(self, **more: str) -> dict[str, str]:
        kept = {k: v for k, v in current_environment().items() if not k.startswith(("FORERUN_", "XDG_"))}
        ours = {"HOME": str(self.directory), "NO_COLOR": "1", "COLUMNS": "200", "CUDA_VISIBLE_DEVICES": ""}
        return {**kept, **ours, **more}

    def run(self, *arguments: str, stdin: str = "", **more: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [*FORERUN, *arguments],
            cwd=self.directory,
            env=self.environment(**more),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture
def terminal(home: Home) -> Iterator[Callable[..., "pexpect.spawn[str]"]]:
    started: list[pexpect.spawn[str]] = []

    def start(*arguments: str) -> "pexpect.spawn[str]":
        child = pexpect.spawn(
            FORERUN[0],
            [*FORERUN[1:], *arguments],
            cwd=str(home.directory),
            env=home.environment(TERM="xterm"),
            encoding="utf-8",
            timeout=TIMEOUT_S,
            dimensions=(50, 200),
        )
        started.append(child)
        return child

    yield start
    for child in started:
        child.close(force=True)


def test_in_a_terminal_the_answers_become_the_file_that_a_launch_uses(
    home: Home, terminal: Callable[..., "pexpect.spawn[str]"]
) -> None:
    """S3, then S4's first line."""
    child = terminal("config")
    child.expect("Where will the training run")
    child.expect(r"\[This machine\]: ")
    child.sendline("")
    child.expect("Which type of machine")
    child.expect(r"\]: ")
    child.sendline("multi-GPUs")
    child.expect("is no answer here. Allowed")
    child.expect(r"\]: ")
    child.sendline("multi-CPU")
    child.expect(r"How many machines\? \[1\]: ")
    assert not home.config.exists()
    child.sendline("1")
    child.expect(r"How many processes in total\? \[\d\]: ")
    child.sendline("2")
    child.expect("Which mixed precision")
    child.expect(r"\[no\]: ")
    child.sendline("bf16")
    child.expect("mixed_precision: bf16")
    child.expect("Start with: forerun launch SCRIPT")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    code, stdout, stderr = home.run("launch", "--dry-run", "train.py")
    assert code == 0, stderr
    assert "num_processes 2 (" in stdout
    assert "--num-processes 2 " in stdout
    assert "FORERUN_MIXED_PRECISION=bf16" in stdout
    assert "FORERUN_DEVICE=cpu" in stdout
    assert len(re.findall(r"^  rank \d: local rank \d, device cpu$", stdout, re.M)) == 2
    assert not (home.directory / "forerun-runs").exists()


@pytest.mark.parametrize("how", ["ctrl-d", "ctrl-c", "hangup", "kill"])
def test_a_wizard_that_is_left_half_way_leaves_the_old_file(
    how: str, home: Home, terminal: Callable[..., "pexpect.spawn[str]"]
) -> None:
    home.config.parent.mkdir(parents=True)
    home.config.write_text("num_processes: 7\n")
    child = terminal("config")
    child.expect("Where will the training run")
    child.expect(r"\]: ")
    child.sendline("1")
    child.expect("Which type of machine")
    child.expect(r"\]: ")
    if how == "ctrl-d":
        child.sendeof()
        child.expect("is as it was")
    elif how == "ctrl-c":
        child.sendintr()
        child.expect("is as it was")
    else:
        child.kill(signal.SIGHUP if how == "hangup" else signal.SIGKILL)
    child.expect(pexpect.EOF)
    child.close()
    assert (child.exitstatus, child.signalstatus) != (0, None)
    assert home.config.read_text() == "num_processes: 7\n"
    assert [path.name for path in home.config.parent.iterdir()] == ["config.yaml"]


def test_the_answers_of_the_case_give_a_file_and_the_shorter_ones_give_none(home: Home) -> None:
    code, stdout, _ = home.run("config", stdin=(ANSWERS / "answers_eof.txt").read_text())
    assert code == 1
    assert not home.config.exists()
    code, stdout, stderr = home.run("config", stdin=(ANSWERS / "answers_cpu.txt").read_text())
    assert code == 0, stderr
    text = home.config.read_text()
    assert "  mixed_precision: 'no'\n" in stdout
    read = load(home.config)
    assert dump({name: given.value for name, given in read.values.items()}) == text
    assert (read.values["distributed_type"].value, read.values["num_processes"].value) == ("MULTI_CPU", 2)
    code, _, stderr = home.run("config", stdin=(ANSWERS / "answers_eof.txt").read_text())
    assert code == 1
    assert "is as it was" in stderr
    assert home.config.read_text() == text


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ("1\nmulti-GPU\n1\n8\nfp8\nao\nyes\nno\n3\ncpu\nnvme\n", "mixed_precision fp8 (c.yaml:7): not in this version"),
        (
            "1\nmulti-GPU\n1\n8\nbf16\nno\nno\nyes\n2\nyes\n2\n4\nyes\nyes\n",
            "strategy megatron_lm: not in this version",
        ),
        ("1\nmulti-GPU\n1\n8\nbf16\nno\nno\nno\n", "there is no GPU"),
    ],
)
def test_what_cannot_run_here_is_written_dry_run_and_refused_by_name(answers: str, said: str, home: Home) -> None:
    code, _, stderr = home.run("config", "--config-file", "c.yaml", stdin=answers)
    assert code == 0, stderr
    code, stdout, stderr = home.run("launch", "--config_file", "c.yaml", "--dry-run", "train.py")
    assert code == 0, stderr
    assert said in stdout
    assert "refused here: " in stdout
    code, stdout, stderr = home.run("launch", "--config_file", "c.yaml", "train.py")
    assert (code, stdout) == (2, "")
    assert said in stderr
    assert not (home.directory / "forerun-runs").exists()


def test_default_writes_once_and_update_brings_the_peers_file_into_ours(home: Home) -> None:
    code, _, stderr = home.run("config", "default", "--mixed_precision", "bf16")
    assert code == 0, stderr
    assert load(home.config).values["mixed_precision"].value == "bf16"
    before = home.config.read_bytes()
    code, _, stderr = home.run("config", "default")
    assert code == 2
    assert "exists already" in stderr
    assert home.run("config", "default", "--config-file", "x.yaml", "--mixed-precision", "yes")[0] == 2
    peer = home.directory / "default_config.yaml"
    peer.write_bytes((ANSWERS / "plain.yaml").read_bytes())
    code, _, stderr = home.run("config", "update", "--config-file", str(peer))
    assert code == 2
    assert "name another file with --output" in stderr
    assert home.config.read_bytes() == before
    code, _, stderr = home.run("config", "update", "--config-file", str(peer), "--output", "ours.yaml")
    assert code == 0, stderr
    assert peer.read_bytes() == (ANSWERS / "plain.yaml").read_bytes()
    ours = (home.directory / "ours.yaml").read_text()
    assert "mixed_precision: 'no'\n" in ours
    assert home.run("config", "update", "--config-file", "ours.yaml")[0] == 0
    assert (home.directory / "ours.yaml").read_text() == ours
    code, _, stderr = home.run("config", "update", "--config-file", str(ANSWERS / "ds_part.json"))
    assert code == 2
    assert "is a DeepSpeed configuration" in stderr


def test_precedence_is_shown_with_every_place(home: Home) -> None:
    (home.directory / "c.yaml").write_text("num_processes: 4\nmixed_precision: no\nlog_dir: here\n")
    code, stdout, stderr = home.run(
        *("launch", "--config-file", "c.yaml", "--num_processes", "2", "--explain", "train.py"),
        FORERUN_MIXED_PRECISION="bf16",
    )
    assert code == 0, stderr
    rows = {line.split()[0]: " ".join(line.split()) for line in stdout.splitlines() if line.strip()}
    assert rows["num_processes"] == "num_processes 2 command line --num-processes 4 (c.yaml:1)"
    assert rows["mixed_precision"] == "mixed_precision bf16 environment FORERUN_MIXED_PRECISION no (c.yaml:2)"
    assert rows["log_dir"] == "log_dir here file c.yaml:3"
    assert rows["num_machines"] == "num_machines 1 default"
    assert not (home.directory / "here").exists()


def test_an_explained_dry_run_shows_the_values_and_each_process(home: Home) -> None:
    (home.directory / "train.py").write_text("")
    code, stdout, stderr = home.run("launch", "--dry-run", "--explain", "--num_processes", "2", "--cpu", "train.py")
    assert code == 0, stderr
    assert "option" in stdout
    assert "command line" in stdout
    assert "  rank 1: local rank 1, device cpu\n" in stdout
    assert not (home.directory / "forerun-runs").exists()


def test_a_file_is_used_by_a_launch_and_what_it_lost_is_said(home: Home) -> None:
    (home.directory / "c.yaml").write_text("num_processes: 2\ncpu: true\nnum_cpu_threads_per_process: 3\n")
    (home.directory / "train.py").write_text(
        "import os; print(os.environ['OMP_NUM_THREADS'], os.environ['WORLD_SIZE'])  # and --gpu_ids, its own\n"
    )
    code, stdout, stderr = home.run(
        "launch", "--config_file", "c.yaml", "--num_processes", "1", "train.py", "--gpu_ids", "1"
    )
    assert (code, stdout) == (0, "3 1\n"), stderr
    assert "--gpu_ids after the script: the script gets it" in stderr
    assert "settings from c.yaml (overruled: num_processes 2 by --num-processes)" in stderr


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        (["--config-file", "nope.yaml", "train.py"], {}, "does not exist"),
        (["--config-file", "train.py", "train.py"], {}, "its top level is no mapping"),
        (["--cpu=maybe", "train.py"], {}, "--cpu 'maybe', allowed: true"),
        (["--cpu", "", "train.py"], {}, "--cpu '', allowed: true"),
        (["--machine_rank", "1", "train.py"], {}, "machine_rank 1 (--machine-rank) does not go with num_machines 1"),
        (["train.py"], {"FORERUN_CPU": "maybe"}, "FORERUN_CPU 'maybe', allowed: true"),
        (["train.py"], {"FORERUN_NUM_PROCESES": "2"}, "did you mean FORERUN_NUM_PROCESSES"),
        (["train.py"], {"FORERUN_CONFIG_FILE": "gone.yaml"}, "does not exist"),
        (["--use_megatron_lm", "train.py"], {}, "strategy megatron_lm: not in this version"),
        (["--mixed_precision", "fp8", "train.py"], {}, "mixed_precision fp8 (--mixed-precision): not in this version"),
    ],
)
def test_bad_configuration_ends_with_2_before_anything_starts(
    arguments: list[str], environment: dict[str, str], said: str, home: Home
) -> None:
    code, stdout, stderr = home.run("launch", *arguments, **environment)
    assert (code, stdout) == (2, "")
    assert said in stderr
    assert os.listdir(home.directory) == ["train.py"]


def test_a_deepspeed_json_that_does_not_add_up_is_refused_alike_in_a_dry_run_and_at_a_launch(home: Home) -> None:
    """C23"""
    for more in (["--dry-run"], []):
        code, stdout, stderr = home.run(
            "launch", "--config_file", str(ANSWERS / "ds_bad.json"), "--num_processes", "2", *more, "train.py"
        )
        assert (code, stdout) == (2, "")
        assert "16 != 2 x 2 x 2 = 8" in stderr
    code, stdout, _ = home.run(
        "launch", "--config_file", str(ANSWERS / "ds_part.json"), "--num_processes", "2", "--dry-run", "train.py"
    )
    assert code == 0
    assert "batch: 8 = 2 x 2 x 2" in stdout
    code, stdout, stderr = home.run("launch", "--config_file", str(ANSWERS / "ds_part.json"), "train.py")
    assert (code, stdout) == (0, "trained\n"), stderr


def test_secrets_appear_in_no_dry_run_and_no_report(home: Home) -> None:
    """C76"""
    code, stdout, _ = home.run("launch", "--dry-run", "train.py", "--hub_token", "SECRET-1", "--lr", "0.1")
    assert code == 0
    assert "SECRET-" not in stdout
    assert "--lr 0.1" in stdout
    (home.directory / "c.yaml").write_text("log_dir: /runs?api_key=SECRET-2\n")
    code, stdout, stderr = home.run(
        "env", "--config-file", "c.yaml", FORERUN_DATABASE_URL="postgresql://me:SECRET-3@host/db", NCCL_DEBUG="INFO"
    )
    assert code == 0, stderr
    assert "SECRET-" not in stdout
    for word in ("- forerun: ", "- torch: ", "- NCCL_DEBUG=INFO", "- memory: ", "c.yaml (form: forerun)", "@host/db"):
        assert word in stdout


def test_the_self_test_is_a_command_and_refuses_a_wrong_configuration(home: Home) -> None:
    code, stdout, stderr = home.run("test", "--config-file", "gone.yaml")
    assert (code, stdout) == (2, "")
    assert "does not exist" in stderr


def test_env_tells_what_is_wrong_with_a_file_and_goes_on(home: Home) -> None:
    (home.directory / "c.yaml").write_text("num_processes: 0\n")
    code, stdout, stderr = home.run("env", "--config-file", "c.yaml", "--python", "/nonexistent/python")
    assert code == 0, stderr
    assert "num_processes is '0'" in stdout
    assert "- python: unknown" in stdout


def test_the_wizards_fsdp_reaches_the_script(home: Home) -> None:
    """A multi-GPU file by the wizard, its processes then put on the CPU."""
    answers = "1\nmulti-GPU\n1\n2\nno\nno\nyes\nfalse\nno\nNO_WRAP\nno\n"
    code, _, stderr = home.run("config", "--config-file", "c.yaml", stdin=answers)
    assert code == 0, stderr
    (home.directory / "train.py").write_text(
        "import torch\nfrom runtime import Accelerator\naccelerator = Accelerator()\n"
        "model = accelerator.prepare(torch.nn.Linear(4, 4))\n"
        "print(accelerator.num_processes, accelerator.device.type, type(model.weight.data).__name__)\n"
    )
    code, stdout, stderr = home.run("launch", "--config-file", "c.yaml", "--cpu", "train.py")
    assert code == 0, stderr
    assert sorted(stdout.splitlines()) == ["[rank0] 2 cpu DTensor", "[rank1] 2 cpu DTensor"]


def test_without_a_stdin_the_answers_have_ended(home: Home) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" <&-', "sh", *FORERUN, "config"],
        cwd=home.directory,
        env=home.environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "The answers ended half way" in done.stderr
    assert not home.config.exists()


def test_a_file_that_cannot_be_written_is_told_before_the_first_question(home: Home) -> None:
    code, stdout, stderr = home.run("config", "--config-file", "/proc/none/config.yaml")
    assert code == 2
    assert "/proc/none/config.yaml cannot be written" in stderr
    assert "Where will the training run" not in stdout
