"""What Slurm says of a job: recorded output of scontrol, squeue and sacct, with accounting and without."""

import os
from pathlib import Path

import pytest

from runtime.errors import LaunchError
from runtime.launchers.slurm import SlurmLauncher
from runtime.launchers.slurm_states import parse_job_ids, parse_sacct, parse_scontrol
from runtime.layout import RunLayout

RECORDED = Path(__file__).with_name("slurm_output")


@pytest.mark.parametrize(
    ("name", "phase", "state", "reason", "end", "restarts"),
    [
        ("pending", "pending", "PENDING", "Resources", (None, None), 0),
        ("running", "running", "RUNNING", "", (None, None), 0),
        ("requeued", "pending", "PENDING", "BeginTime", (None, None), 1),
        ("completed", "ended", "COMPLETED", "", (0, 0), 0),
        ("failed", "ended", "FAILED", "NonZeroExitCode", (3, 0), 0),
        ("killed", "ended", "FAILED", "JobLaunchFailure", (0, 9), 0),
        ("cancelled", "ended", "CANCELLED", "BeginTime", (0, 0), 1),
        ("cancelled_pending", "running", "COMPLETING", "", (None, None), 0),
    ],
)
def test_what_scontrol_says(
    name: str, phase: str, state: str, reason: str, end: tuple[int | None, int | None], restarts: int
) -> None:
    job = parse_scontrol((RECORDED / f"{name}.txt").read_text())
    assert job is not None
    assert (job.phase, job.state, job.reason, job.restarts) == (phase, state, reason, restarts)
    assert (job.exit_code, job.signal) == end


@pytest.mark.parametrize(
    "text",
    ["", "slurm_load_jobs error: Invalid job id specified\n", "JobId=x JobState=RUNNING", "JobId=1 JobState=ODD"],
)
def test_other_output_is_no_job(text: str) -> None:
    assert parse_scontrol(text) is None


def test_a_job_that_names_itself_like_a_field_changes_nothing() -> None:
    text = (RECORDED / "running.txt").read_text().replace("Command=", "Command=/x/ JobState=COMPLETED ExitCode=0:0 ")
    job = parse_scontrol(text)
    assert job is not None
    assert job.phase == "running"


def test_what_sacct_and_squeue_say() -> None:
    job = parse_sacct("7|CANCELLED by 0|0:15\n7|TIMEOUT|0:0\n")
    assert job is not None
    assert (job.job_id, job.phase, job.state, job.exit_code) == ("7", "ended", "TIMEOUT", 0)
    oom = parse_sacct("8|OUT_OF_MEMORY|0:125\n")
    assert oom is not None
    assert oom.signal == 125
    assert parse_sacct("Slurm accounting storage is disabled\n") is None
    assert parse_sacct("") is None
    assert parse_job_ids("12\n13;cluster\nsqueue: error\n") == ["12", "13"]


@pytest.mark.parametrize(
    ("line", "end"),
    [
        ("9|NODE_FAIL|1:0", ("NODE_FAIL", 1, 0)),
        ("9|PREEMPTED|0:15", ("PREEMPTED", 0, 15)),
        ("9|BOOT_FAIL|0:0", ("BOOT_FAIL", 0, 0)),
        ("9|DEADLINE|0:0", ("DEADLINE", 0, 0)),
        ("9|CANCELLED by 1000|0:9", ("CANCELLED", 0, 9)),
    ],
)
def test_ends_that_are_not_the_scripts_own(line: str, end: tuple[str, int, int]) -> None:
    job = parse_sacct(f"{line}\n")
    assert job is not None
    assert (job.phase, job.state, job.exit_code, job.signal) == ("ended", *end)


def test_a_job_that_lost_its_node_has_ended_or_waits_for_another() -> None:
    text = (RECORDED / "failed.txt").read_text().replace("JobState=FAILED", "JobState=NODE_FAIL")
    lost = parse_scontrol(text.replace("Reason=NonZeroExitCode", "Reason=NodeDown"))
    assert lost is not None
    assert (lost.phase, lost.state, lost.reason) == ("ended", "NODE_FAIL", "NodeDown")
    again = parse_scontrol((RECORDED / "requeued.txt").read_text())
    assert again is not None
    assert (again.phase, again.restarts) == ("pending", 1)


INVALID = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
SILENT = "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"
NO_ACCOUNTS = "echo 'Slurm accounting storage is disabled' >&2; exit 1"
ACCOUNTS = "echo '7|COMPLETED|0:0'"


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunLayout:
    """A run whose job is number 7; programs in `bin` answer as Slurm's do."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}")
    layout = RunLayout(tmp_path / "run")
    layout.root.mkdir()
    layout.batch_job.write_text("7\n")
    return layout


def answer(layout: RunLayout, name: str, body: str) -> None:
    program = layout.root.parent / "bin" / name
    program.write_text(f"#!/bin/sh\n{body}\n")
    os.chmod(program, 0o755)


def test_a_job_that_the_controller_forgot_is_asked_of_the_accounts(job: RunLayout) -> None:
    answer(job, "scontrol", INVALID)
    answer(job, "sacct", ACCOUNTS)
    scheduled = SlurmLauncher().poll(job)
    assert scheduled is not None
    assert (scheduled.state, scheduled.exit_code) == ("COMPLETED", 0)


@pytest.mark.parametrize("accounts", [NO_ACCOUNTS, ":", None])
def test_without_accounts_a_forgotten_job_is_not_known(job: RunLayout, accounts: str | None) -> None:
    answer(job, "scontrol", INVALID)
    if accounts is not None:
        answer(job, "sacct", accounts)
    assert SlurmLauncher().poll(job) is None


def test_a_controller_that_does_not_answer_is_no_forgotten_job(job: RunLayout) -> None:
    answer(job, "scontrol", SILENT)
    answer(job, "sacct", NO_ACCOUNTS)
    with pytest.raises(LaunchError, match="Unable to contact slurm controller"):
        SlurmLauncher().poll(job)
    answer(job, "sacct", ACCOUNTS)
    assert SlurmLauncher().poll(job) is not None
