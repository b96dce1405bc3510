"""`forerun launch` as a training author meets it: arguments, exit codes, output, ports, Ctrl-C, bad input."""

import json
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from runtime.cli.checks import DeviceChoice, settle_devices
from runtime.errors import ConfigurationError
from runtime.procfs import marked_pids
from runtime.run_files import read_order
from tests.fakes.author import DEADLINE_S, Author

pytestmark = pytest.mark.multiprocess

ARGV = "import sys, json\nprint(json.dumps(sys.argv[1:]))\n"
OK = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
t = torch.tensor([float(os.environ["TAG"])]); dist.all_reduce(t)
time.sleep(float(os.environ.get("PAUSE", "0")))
print("rank", dist.get_rank(), "world", dist.get_world_size(), "sum", t.item(), "tag", os.environ["TAG"])
"""
FAIL = """
import os, sys, signal, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
print("here")
if os.environ["RANK"] == "1":
    if sys.argv[1] == "exc": raise ValueError("boom on rank 1")
    if sys.argv[1] == "exit7": sys.exit(7)
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(torch.ones(1))
"""


def test_everything_after_the_script_is_the_scripts(author: Author) -> None:
    """C14"""
    author.write(ARGV, "argv.py")
    given = "--r=16|--num_p|3|--log|5|--config_file|x.yaml|--mixed_precision|fp16|--|--tail|a b||--help|$$|${rank}"
    arguments = given.split("|")
    code, stdout, stderr = author.launch("--num_processes", "1", "argv.py", *arguments)
    assert (code, stdout) == (0, json.dumps(arguments) + "\n"), stderr
    order = read_order(author.runs()[0])
    assert order is not None
    assert "FORERUN_MIXED_PRECISION" not in order.spec.environment
    assert "--num-processes 1 " in " ".join(order.spec.argv)


def test_options_take_dashes_and_underscores_and_show_in_a_dry_run(author: Author) -> None:
    author.write(ARGV)
    for options in (
        ["--num-processes", "2", "--mixed-precision", "bf16", "--main-process-port", "0", "--dry-run", "--cpu"],
        ["--num_processes=2", "--mixed_precision=bf16", "--main_process_port=0", "--dry_run", "--cpu"],
    ):
        code, stdout, stderr = author.launch(*options, "train.py", "--x", "a b")
        assert code == 0, stderr
        assert "--num-processes 2 " in stdout
        assert "FORERUN_MIXED_PRECISION=bf16" in stdout
        assert stdout.endswith("-- train.py --x 'a b'\n")
    assert author.runs() == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nope.py"], "script 'nope.py' is no file"),
        (["."], "is no file"),
        (["-m", "no_such_module_here"], "module 'no_such_module_here' is not found"),
        (["--num-processes", "0", "train.py"], "--num-processes '0', allowed: a whole number from 1 to 4096"),
        (["--num-processes", "-1", "train.py"], "--num-processes '-1'"),
        (["--num-processes", "two", "train.py"], "--num-processes 'two', allowed: a whole number"),
        (["--main-process-port", "", "train.py"], "--main-process-port ''"),
        (["--num_p", "1", "train.py"], "No such option"),
        (["--mixed", "no", "train.py"], "No such option"),
        (["--mixed-precision", "fp15", "train.py"], "no, fp16, bf16, fp8"),
        (["--main-process-port", "70000", "train.py"], "70000"),
        (["--gpu-ids", "0,99", "train.py"], "--gpu-ids '0,99'"),
        (["--gpu-ids", "x", "train.py"], "--gpu-ids 'x'"),
        (["--cpu", "--multi-gpu", "train.py"], "the device is cpu by cpu true (--cpu), but cuda by multi_gpu true"),
        (["--cpu", "--gpu-ids", "0", "train.py"], "cpu true (--cpu) does not go with gpu_ids 0 (--gpu-ids)"),
        (["--num-processes", "2", "--num_processes=3", "train.py"], "--num-processes is given twice: 2 and 3"),
        (["--python", "/nonexistent", "train.py"], "/nonexistent"),
        (["--log-dir", "train.py/x", "train.py"], "no run directory"),
        (["train.py", "--num_processes", "2"], "--num_processes after train.py, which has no such option"),
        (["train.py", "--lr", "1", "--multi-gpu", "--gpu_ids=0"], "--multi-gpu, --gpu_ids=0 after train.py"),
        (["--machine-rank", "2", "--num-machines", "2", "train.py"], "ranks 0 to 1"),
        (["--config-file", ".", "train.py"], "."),
        (["--config-file", "/etc/passwd", "train.py"], "/etc/passwd"),
        ([], "Missing argument"),
    ],
)
def test_bad_input_is_refused_with_exit_code_2_before_anything_starts(
    author: Author, arguments: list[str], said: str
) -> None:
    author.write("open('started', 'w')")
    code, stdout, stderr = author.launch(*arguments)
    assert (code, stdout) == (2, "")
    assert said in stderr
    assert "Traceback" not in stderr
    assert [path.name for path in author.directory.iterdir()] == ["train.py"]


def test_after_two_dashes_whatever_follows_is_the_scripts(author: Author) -> None:
    author.write("import os\nprint(os.environ['WORLD_SIZE'])\n")
    code, stdout, stderr = author.launch("--cpu", "--", "train.py", "--num_processes", "2")
    assert (code, stdout) == (0, "1\n"), stderr


def test_an_option_that_a_file_beside_the_script_has_is_the_scripts(author: Author) -> None:
    author.write("from options import parse\nprint(parse().gpu_ids)\n")
    (author.directory / "options").mkdir()
    author.write(
        "import argparse\n\n\ndef parse():\n    parser = argparse.ArgumentParser()\n"
        "    parser.add_argument('--gpu_ids')\n    return parser.parse_args()\n",
        "options/__init__.py",
    )
    code, stdout, stderr = author.launch("--cpu", "train.py", "--gpu_ids", "0,1")
    assert (code, stdout) == (0, "0,1\n"), stderr
    assert "--gpu_ids after the script: the script gets it" in stderr


def test_processes_are_counted_against_gpus() -> None:
    """The deciding alone: how many GPUs there are is torch's word."""

    def settle(present: int, wanted: int | None, **choice: Any) -> tuple[int, dict[str, str]]:
        return settle_devices(
            present, wanted, DeviceChoice(**({"cpu": False, "multi_gpu": False, "gpu_ids": ""} | choice))
        )

    with pytest.raises(ConfigurationError, match="3 processes for 2 GPUs"):
        settle(2, 3)
    with pytest.raises(ConfigurationError, match="2 processes for 1 GPU"):
        settle(4, 2, gpu_ids="3")
    for ids in ("4", "-1", "1,1", "1,,2", "\u0663"):
        with pytest.raises(ConfigurationError, match="--gpu-ids"):
            settle(4, None, gpu_ids=ids)
    with pytest.raises(ConfigurationError, match="there is no GPU"):
        settle(0, 2, multi_gpu=True)
    assert settle(2, None, multi_gpu=True) == (2, {})
    assert settle(2, None) == (1, {})
    assert settle(4, None, gpu_ids="1,3") == (2, {"CUDA_VISIBLE_DEVICES": "1,3"})
    assert settle(4, None, gpu_ids="all", multi_gpu=True) == (4, {})
    assert settle(0, 3) == (3, {})
    assert settle(0, 3, cpu=True) == (3, {"FORERUN_DEVICE": "cpu", "CUDA_VISIBLE_DEVICES": ""})


@pytest.mark.parametrize(
    ("mode", "exit_code", "message"),
    [("exc", 1, "exit 1: ValueError: boom on rank 1"), ("exit7", 7, "exit 7"), ("kill", 137, "signal 9 (SIGKILL)")],
)
def test_the_exit_code_is_the_first_failing_ranks_and_its_traceback_comes_last_and_once(
    author: Author, mode: str, exit_code: int, message: str
) -> None:
    """C10"""
    author.write(FAIL)
    code, stdout, stderr = author.launch("--num-processes", "2", "--cpu", "train.py", mode)
    assert code == exit_code
    assert sorted(stdout.splitlines()) == ["[rank0] here", "[rank1] here"]
    result = author.result()
    assert (result.state, result.failures[0].rank, result.failures[0].message) == ("failed", 1, message)
    assert f"rank 1: {message}" in stderr
    assert stderr.count("Traceback (most recent call last)") == (1 if mode == "exc" else 0)
    if mode == "exc":
        assert stderr.endswith("ValueError: boom on rank 1\n")
    assert "ChildFailedError" not in stderr


def test_the_last_lines_are_shown_and_kept(author: Author) -> None:
    """C16"""
    author.write("import os\nfor i in range(20): print('step', i)\nprint('about to die')\nos._exit(3)\n")
    code, stdout, _ = author.launch("train.py")
    assert (code, stdout) == (3, "".join(f"step {i}\n" for i in range(20)) + "about to die\n")
    assert author.runs()[0].stdout(0).read_text() == stdout


def test_a_run_directory_is_its_owners_alone(author: Author) -> None:
    """C76: arguments stand in launch.json."""
    author.write("pass\n")
    code, _, stderr = author.launch("train.py", "--hub_token", "SECRET-aaa111")
    assert code == 0, stderr
    assert author.runs()[0].root.stat().st_mode & 0o077 == 0


def test_secrets_are_masked_without_the_servers_packages_too(author: Author) -> None:
    """C76"""
    author.write(ARGV)
    secrets = ("--hub_token", "SECRET-1", "--url", "https://me:SECRET-2@host/x")
    code, stdout, stderr = author.launch(
        "--cpu", "--log-dir", "/runs?api_key=SECRET-3", "--dry-run", "train.py", *secrets
    )
    assert code == 0, stderr
    assert "SECRET-" not in stdout + stderr
    code, stdout, stderr = author.launch("--python", "/nonexistent?password=SECRET-4", "train.py")
    assert code == 2
    assert "SECRET-" not in stderr


def test_two_launches_at_once_do_not_meet(author: Author) -> None:
    """C11 (a), (b): no port given, and port 0."""
    author.write(OK)
    first = author.start("--num-processes", "2", "train.py", TAG="1", PAUSE="2")
    second = author.start("--num-processes", "2", "--main-process-port", "0", "train.py", TAG="5", PAUSE="2")
    for process, tag in ((first, "1"), (second, "5")):
        with process:
            stdout, stderr = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, stderr
        expected = [f"[rank{r}] rank {r} world 2 sum {2 * float(tag)} tag {tag}" for r in (0, 1)]
        assert sorted(stdout.splitlines()) == expected
    assert len(author.runs()) == 2


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_port_that_is_asked_for_serves_one_job_and_refuses_the_second(
    author: Author, until: Callable[..., Any]
) -> None:
    """C11 (c)"""
    author.write(OK)
    port = str(_free_port())
    with author.start("--num-processes", "2", "--main-process-port", port, "train.py", TAG="1", PAUSE="4") as first:
        until(lambda: _listens(int(port)), "the first job's port")
        code, stdout, stderr = author.launch("--num-processes", "2", "--main_process_port", port, "train.py", TAG="5")
        assert (code, stdout) == (2, "")
        assert f"port {port} is in use" in stderr
        stdout, stderr = first.communicate(timeout=DEADLINE_S)
        assert first.returncode == 0, stderr
        assert stdout.count("world 2 sum 2.0 tag 1") == 2


def test_of_two_that_ask_for_one_port_at_the_same_time_one_runs_and_one_names_the_port(author: Author) -> None:
    author.write(OK)
    port = str(_free_port())
    processes = [
        author.start("--num-processes", "2", "--main-process-port", port, "train.py", TAG=tag, PAUSE="5")
        for tag in ("1", "5")
    ]
    ends = []
    for process in processes:
        with process:
            stdout, stderr = process.communicate(timeout=DEADLINE_S)
        ends.append((process.returncode != 0, stdout.count("world 2"), port in stderr))
    assert sorted(ends) == [(False, 2, False), (True, 0, True)]


def test_a_taken_default_port_does_not_matter(author: Author) -> None:
    author.write(OK)
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("", 29500))
        taken.listen()
        code, stdout, stderr = author.launch("--num-processes", "2", "train.py", TAG="1")
    assert code == 0, stderr
    assert stdout.count("world 2") == 2


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize(
    ("number", "got", "code"),
    [(signal.SIGINT, "SIGINT", 130), (signal.SIGTERM, "SIGTERM", 143), (signal.SIGHUP, "SIGTERM", 143)],
)
def test_int_term_and_hup_reach_the_workers(
    author: Author, until: Callable[..., Any], number: signal.Signals, got: str, code: int
) -> None:
    author.write(
        "import signal, sys, time\n"
        "def end(number, frame): print('got', signal.Signals(number).name); sys.exit(0)\n"
        "signal.signal(signal.SIGINT, end); signal.signal(signal.SIGTERM, end)\n"
        "print('ready'); time.sleep(600)\n"
    )
    with author.start("--num-processes", "2", "train.py") as process:
        until(lambda: _outputs(author).count("ready") == 2, "both ranks")
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == code, stderr
    assert stdout.count(f"got {got}") == 2
    assert author.result().state == "cancelled"


def test_under_nohup_a_closed_terminal_changes_nothing(author: Author, until: Callable[..., Any]) -> None:
    """C13"""
    author.write(
        "import os, time\nprint('ready')\nwhile not os.path.exists('go'): time.sleep(0.05)\nprint('went on')\n"
    )
    author.prefix = ("nohup",)
    with author.start("train.py") as process:
        until(lambda: "ready" in _outputs(author), "the rank")
        process.send_signal(signal.SIGHUP)
        (author.directory / "go").touch()
        stdout, stderr = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, stdout) == (0, "ready\nwent on\n"), stderr


def test_a_second_ctrl_c_kills_at_once(author: Author, until: Callable[..., Any]) -> None:
    """C17"""
    author.write(
        "import signal, time\nfor n in (signal.SIGTERM, signal.SIGINT): signal.signal(n, signal.SIG_IGN)\n"
        "print('ready'); time.sleep(600)\n"
    )
    with author.start("--num-processes", "2", "train.py") as process:
        until(lambda: _outputs(author).count("ready") == 2, "both ranks")
        process.send_signal(signal.SIGINT)
        until(lambda: "stop_requested" in author.runs()[0].events.read_text(), "the first to be seen")
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=DEADLINE_S)
        assert time.monotonic() - began < 8.0
    assert process.returncode == 130
    assert "killed (SIGKILL)" in stderr
    assert author.result().signals_sent[0] == "SIGINT"


def test_kill_9_of_the_launch_ends_the_workers(author: Author, until: Callable[..., Any]) -> None:
    author.write("import time\nprint('ready'); time.sleep(600)\n")
    with author.start("--num-processes", "2", "train.py") as process:
        until(lambda: _outputs(author).count("ready") == 2, "both ranks")
        order = read_order(author.runs()[0])
        assert order is not None
        process.kill()
        until(lambda: not marked_pids(order.run_id), "the end of the job", 10.0)


def _outputs(author: Author) -> str:
    return "".join(path.read_text() for path in author.directory.glob("forerun-runs/*/logs/rank*.stdout.log"))


def test_a_module_runs_from_the_callers_directory_with_the_callers_environment(author: Author) -> None:
    (author.directory / "pkg").mkdir()
    (author.directory / "pkg" / "__init__.py").write_text("")
    (author.directory / "pkg" / "mod.py").write_text(
        "import os, sys, pkg.mod; print(sys.argv[1:], os.environ['MINE'], __name__, os.getcwd())"
    )
    code, stdout, stderr = author.launch("-m", "pkg.mod", "-m", "x", MINE="yes")
    assert code == 0, stderr
    assert stdout.endswith(f"['-m', 'x'] yes __main__ {author.directory}\n")
    assert "yes" not in author.runs()[0].launch.read_text()


def test_a_script_that_imports_the_runtime_finds_it_and_its_helpers(author: Author) -> None:
    author.write("import helper, runtime\nfrom runtime.layout import RunLayout\nprint(helper.X, RunLayout.__name__)")
    author.write("X = 1", "helper.py")
    code, stdout, stderr = author.launch("train.py")
    assert (code, stdout) == (0, "1 RunLayout\n"), stderr


def test_a_reader_that_goes_away_does_not_stop_the_job(author: Author) -> None:
    author.write("import time\nfor i in range(2000): print('line', i)\nopen('done', 'w')\n")
    with author.start("train.py") as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(DEADLINE_S) == 0
    assert (author.directory / "done").exists()
    assert os.listdir(author.directory / "forerun-runs")
    assert author.result().state == "succeeded"
