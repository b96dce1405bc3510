"""The Slurm launcher on a real cluster: whole runs, cancelled, preempted, requeued, and with a supervisor killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.errors import LaunchError
from runtime.launchers.process import marked_pids
from runtime.launchers.slurm import SlurmLauncher
from runtime.records import read_events
from runtime.run_files import read_claim, read_order, read_result
from tests.fakes.slurm_runs import Runs, slurm_command, start_requeued, wait_until

pytestmark = [pytest.mark.multiprocess, pytest.mark.alone]
TRAIN = Path(__file__).parents[1] / "process" / "resumable.py.txt"


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    made = Runs(tmp_path)
    yield made
    for run in made.made:
        if run.layout.batch_job.exists():
            subprocess.run(["scancel", run.job_id], capture_output=True, timeout=30.0)
        wait_until(lambda r=run: not marked_pids(r.run_id), "the end of all its processes", 45.0)


def test_a_run_on_two_nodes_is_submitted_once_and_survives_the_death_of_a_rank(slurm: Path, runs: Runs) -> None:
    run = runs.new(TRAIN.read_text(), args=("killed", "."), num_processes=2, num_nodes=2, max_retries=1).submit()
    run.submit()
    assert len(slurm_command("squeue", "-h", f"--name=forerun-{run.run_id}", "-o", "%A").split()) == 1
    result = run.result()
    assert (result.state, result.attempts, result.survivors) == ("succeeded", 2, ()), run.layout.engine_log.read_text()
    for rank in (0, 1):
        assert "trained to step 18" in run.layout.stdout(rank).read_text()
    claim = read_claim(run.layout)
    assert claim is not None
    assert claim.batch_job == run.job_id
    job = wait_until(lambda: (j := SlurmLauncher().poll(run.layout)) and j.phase == "ended" and j, "the job's end")
    assert (job.state, job.exit_code) == ("COMPLETED", 0)
    order = read_order(run.layout)
    assert order is not None
    assert run.layout.batch_script.read_text() == order.spec.script


def test_a_failed_rank_of_the_second_node_is_named(slurm: Path, runs: Runs) -> None:
    script = "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(7)\ntime.sleep(600)\n"
    result = runs.new(script, num_processes=2, num_nodes=2).submit().result()
    assert (result.state, result.exit_code) == ("failed", 7)
    assert result.reason == "rank 1: exit 7"


def test_cancel_of_a_running_and_of_a_waiting_run(slurm: Path, runs: Runs) -> None:
    run = runs.new("import time\nprint('here', flush=True)\ntime.sleep(600)\n").submit()
    wait_until(lambda: run.layout.stdout(0).exists() and "here" in run.layout.stdout(0).read_text(), "output")
    SlurmLauncher().cancel(run.layout, reason="enough")
    assert (run.result().state, run.result().reason.split(";")[0]) == ("cancelled", "cancelled: enough")
    waiting = runs.new("", settings={"slurm_cpus_per_node": "4"}, num_nodes=2, num_processes=2)
    blocker = slurm_command(
        "sbatch", "--parsable", "--exclusive", "--nodes=2", "--wrap=sleep 300", "--output=/dev/null"
    )
    waiting.submit()
    job = SlurmLauncher().poll(waiting.layout)
    assert job is not None
    assert job.phase == "pending"
    SlurmLauncher().cancel(waiting.layout, reason="enough")
    wait_until(lambda: (j := SlurmLauncher().poll(waiting.layout)) and j.state == "CANCELLED", "scancel")
    slurm_command("scancel", blocker.strip())
    assert not waiting.layout.claim.exists()


def test_a_job_that_is_preempted_saves_goes_back_into_the_queue_and_goes_on(slurm: Path, runs: Runs) -> None:
    run = runs.new(TRAIN.read_text(), args=("preempted", "."), num_processes=2, max_retries=1).submit()
    wait_until(lambda: all((run.layout.work / f"at7.{rank}").exists() for rank in (0, 1)), "step 7")
    slurm_command("scancel", "--batch", "--signal=USR1", run.job_id)
    job = wait_until(lambda: (j := SlurmLauncher().poll(run.layout)) and j.phase == "pending" and j, "the queue")
    assert job.restarts == 1
    assert read_result(run.layout) is None
    start_requeued(run)
    result = run.result()
    assert (result.state, result.attempts) == ("succeeded", 2), run.layout.supervisor_log.read_text()
    assert f"resume from {run.layout.checkpoints / 'checkpoint_0'}" in run.layout.stdout(0).read_text()
    events = [event.event for event in read_events(run.layout.events)]
    assert events.index("preempted") < events.index("requeued") < events.index("attempt_started")
    assert result.elapsed_s < 400.0


def test_scancel_is_final_and_a_requeue_by_slurm_is_not(slurm: Path, runs: Runs) -> None:
    script = "import os, time\nprint('here', flush=True)\nif not os.path.exists('go'): time.sleep(600)\n"
    ended, again = (runs.new(script, max_retries=2).submit() for _ in range(2))
    for run in (ended, again):
        wait_until(lambda r=run: r.layout.stdout(0).exists() and "here" in r.layout.stdout(0).read_text(), "output")
    slurm_command("scancel", ended.job_id)
    slurm_command("scontrol", "requeue", again.job_id)
    assert ended.result().state == "cancelled"
    wait_until(lambda: (j := SlurmLauncher().poll(ended.layout)) and j.state == "CANCELLED", "the end of the job")
    wait_until(lambda: (j := SlurmLauncher().poll(again.layout)) and j.phase == "pending", "the queue")
    assert read_result(again.layout) is None
    (again.layout.work / "go").touch()
    start_requeued(again)
    assert (again.result().state, again.result().attempts) == ("succeeded", 2)


def test_a_run_without_retries_is_stopped_and_not_requeued(slurm: Path, runs: Runs) -> None:
    run = runs.new("import time\nprint('here', flush=True)\ntime.sleep(600)\n").submit()
    wait_until(lambda: run.layout.stdout(0).exists() and "here" in run.layout.stdout(0).read_text(), "output")
    slurm_command("scancel", "--batch", "--signal=USR1", run.job_id)
    result = run.result()
    assert result.state == "cancelled"
    assert "told to stop by SIGUSR1" in result.reason


def test_a_supervisor_that_is_killed_takes_the_job_with_it(slurm: Path, runs: Runs) -> None:
    run = runs.new("import time\nprint('here', flush=True)\ntime.sleep(600)\n").submit()
    wait_until(lambda: run.layout.stdout(0).exists() and "here" in run.layout.stdout(0).read_text(), "output")
    claim = read_claim(run.layout)
    assert claim is not None
    os.kill(claim.pid, signal.SIGKILL)
    wait_until(lambda: not marked_pids(run.run_id), "the end of its processes", 20.0)
    wait_until(lambda: (j := SlurmLauncher().poll(run.layout)) and j.phase == "ended", "the job's end")


def test_what_sbatch_says_is_passed_on(slurm: Path, runs: Runs) -> None:
    run = runs.new("", settings={"slurm_partition": "nosuch"})
    with pytest.raises(LaunchError, match=r"sbatch refused the job: .*invalid partition"):
        run.submit()
    assert not run.layout.batch_job.exists()


def test_a_launch_by_hand_in_a_job_step_of_each_node(slurm: Path, tmp_path: Path) -> None:
    """The example of docs/launching-clusters.md."""
    script = "import os; print('rank {RANK} of {WORLD_SIZE} local {LOCAL_RANK}'.format(**os.environ))\n"
    (tmp_path / "train.py").write_text(script)
    launch = (
        f"{sys.executable} -m runtime.cli launch --cpu --num_machines $SLURM_NNODES --machine_rank $SLURM_NODEID"
        f" --num_processes 4 --main_process_ip $SLURM_LAUNCH_NODE_IPADDR --log-dir {tmp_path / 'runs'} train.py"
    )
    words = ["srun", "--nodes=2", "--ntasks-per-node=1", f"--chdir={tmp_path}", "bash", "-c", launch]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120.0, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[rank{r}] rank {r} of 4 local {r % 2}" for r in range(4)]
