"""The Slurm launcher: scripts that are pure and safe, recorded output, and whole runs on a real cluster."""

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from runtime.config.order import LaunchOrder, RunKind, RunResult
from runtime.config.plan import (
    Ceilings,
    Interpreter,
    ProcessLayout,
    Setting,
    SmokeSettings,
    TrainingPlan,
)
from runtime.errors import LaunchError
from runtime.launchers.process import marked_pids
from runtime.launchers.registry import get_launcher
from runtime.launchers.slurm import SlurmLauncher
from runtime.launchers.slurm_script import batch_script, rendezvous_port
from runtime.launchers.slurm_states import parse_job_ids, parse_sacct, parse_scontrol
from runtime.layout import RunLayout
from runtime.records import read_events
from runtime.run_files import read_claim, read_order, read_result, write_model
from runtime.snapshots.snapshot import collect, materialise, store

pytestmark = [pytest.mark.multiprocess, pytest.mark.alone]
DEADLINE_S = 170.0  # a machine that is busy with other tests is slow
RECORDED = Path(__file__).with_name("slurm_output")
TRAIN = Path(__file__).parents[1] / "process" / "resumable.py.txt"
_T = TypeVar("_T")


def wait_until(condition: Callable[[], _T], what: str, deadline_s: float = DEADLINE_S) -> _T:
    end = time.monotonic() + deadline_s
    while not (value := condition()):
        assert time.monotonic() < end, f"{what} did not come within {deadline_s} s"
        time.sleep(0.05)
    return value


def slurm_command(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=30.0, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


@dataclass
class Run:
    layout: RunLayout
    run_id: str
    plan: TrainingPlan

    def submit(self) -> "Run":
        SlurmLauncher().submit(self.layout)
        return self

    def result(self) -> RunResult:
        try:
            return wait_until(lambda: read_result(self.layout), "result.json")
        except AssertionError:
            for path in (self.layout.supervisor_log, self.layout.engine_log, self.layout.stderr(0)):
                sys.stderr.write(f"== {path.name}\n{path.read_text() if path.exists() else ''}\n")
            raise

    @property
    def job_id(self) -> str:
        return self.layout.batch_job.read_text().strip()


def start_requeued(run: Run) -> None:
    """Slurm lets a requeued job wait for two minutes, and sets that time anew when its first end is complete."""

    def started() -> bool:
        job = SlurmLauncher().poll(run.layout)
        if job is None or job.phase != "pending":
            return True
        words = ["scontrol", "update", f"jobid={run.job_id}", "StartTime=now"]
        subprocess.run(words, capture_output=True, timeout=30.0, stdin=subprocess.DEVNULL)
        return False

    wait_until(started, "the second start")


@dataclass
class Runs:
    root: Path
    made: list[Run] = field(default_factory=list)

    def new(
        self,
        script: str,
        *,
        args: tuple[str, ...] = (),
        kind: RunKind = "full",
        settings: dict[str, str] | None = None,
        max_retries: int = 0,
        wall_time_s: float = 400.0,
        **layout: Any,
    ) -> Run:
        run_id = f"run-{secrets.token_hex(5)}"
        base = self.root / run_id
        (base / "source").mkdir(parents=True)
        (base / "source" / "train.py").write_text(script)
        directory = RunLayout(base / "a run's $(touch x) `y`")
        directory.root.mkdir()
        code, _ = collect(base / "source" / "train.py", data_paths=[])
        store(code, self.root / "store")
        materialise(code, self.root / "store", directory.code)
        plan = make_plan(
            code=code,
            argv=args,
            settings=settings,
            layout=layout,
            ceilings=Ceilings(wall_time_s=wall_time_s, max_retries=max_retries),
        )
        write_model(directory.plan, plan)
        order = LaunchOrder(
            run_id=run_id,
            kind=kind,
            plan_digest=plan.digest,
            spec=SlurmLauncher().render(plan, directory, run_id=run_id, kind=kind),
            wall_time_s=plan.smoke.wall_time_s if kind == "smoke" else wall_time_s,
            disk_bytes=2**30,
            max_restarts=0 if kind == "smoke" else max_retries,
        )
        write_model(directory.launch, order)
        self.made.append(Run(directory, run_id, plan))
        return self.made[-1]


def make_plan(
    *, settings: dict[str, str] | None = None, layout: dict[str, Any] | None = None, **fields: Any
) -> TrainingPlan:
    from runtime.config.plan import CodeSnapshot

    defaults: dict[str, Any] = {
        "argv": (),
        "environment": {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"},
        "code": CodeSnapshot(origin="/x", entry="train.py", sha256="0" * 64, files=()),
        "data": (),
        "interpreter": Interpreter(executable=sys.executable, version="", packages={}),
        "seed": None,
        "smoke": SmokeSettings(args=("--small",)),
        "evaluation": None,
        "ceilings": Ceilings(wall_time_s=600.0),
    }
    given = [Setting(name=name, value=value, origin="argument") for name, value in (settings or {}).items()]
    place = ProcessLayout(**{"num_processes": 1, "launcher": "slurm", **(layout or {})})
    return TrainingPlan(**(defaults | fields), settings=tuple(given), layout=place)


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    made = Runs(tmp_path)
    yield made
    for run in made.made:
        if run.layout.batch_job.exists():
            subprocess.run(["scancel", run.job_id], capture_output=True, timeout=30.0)
        wait_until(lambda r=run: not marked_pids(r.run_id), "the end of all its processes", 45.0)


# -- the script ------------------------------------------------------------------------------------------------------


def render(plan: TrainingPlan, directory: str = "/runs/run-1", kind: RunKind = "full") -> Any:
    return SlurmLauncher().render(plan, RunLayout(Path(directory)), run_id="run-1", kind=kind)


def test_the_script_of_two_nodes() -> None:
    plan = make_plan(
        layout={"num_processes": 8, "num_nodes": 2, "device": "cuda"},
        settings={"slurm_partition": "gpu", "slurm_account": "team-a", "slurm_cpus_per_node": "16"},
        ceilings=Ceilings(wall_time_s=3600.0, max_retries=2),
        inherited=("HF_TOKEN",),
    )
    spec = render(plan)
    assert spec.script.splitlines() == [
        "#!/bin/bash",
        "#SBATCH --job-name=forerun-run-1",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --time=63",
        "#SBATCH --output=logs/supervisor.log",
        "#SBATCH --open-mode=append",
        "#SBATCH --export=PATH,HOME,USER,LOGNAME,LANG,TZ,SLURM_CONF,HF_TOKEN",
        "#SBATCH --signal=B:USR1@40",
        "#SBATCH --gpus-per-node=4",
        "#SBATCH --partition=gpu",
        "#SBATCH --account=team-a",
        "#SBATCH --cpus-per-task=16",
        "#SBATCH --requeue",
        "",
        'export FORERUN_BATCH_JOB="$SLURM_JOB_ID"',
        f"exec {sys.executable} -I -m runtime.supervision.supervisor /runs/run-1",
    ]
    assert spec.argv[:8] == (
        *("srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--input=none", "--export=ALL"),
        *("--kill-on-bad-exit=1", "--cpus-per-task=16"),
    )
    assert spec.argv[spec.argv.index("--num-processes") + 1] == "4"
    assert spec.passes == ("SLURM_",)
    assert spec == render(plan), "rendering is pure"


def test_one_node_needs_no_srun_and_a_smoke_run_is_never_requeued() -> None:
    spec = render(make_plan(ceilings=Ceilings(wall_time_s=60.0, max_retries=3)), kind="smoke")
    assert spec.argv[0] == sys.executable
    assert spec.passes == ()
    assert "--no-requeue" in spec.script
    assert "#SBATCH --time=8" in spec.script  # its own limit of 300 s


@pytest.mark.parametrize("value", ["a b", "x\n#SBATCH --uid=0", "$(id)", "", "'", "ä"])
def test_settings_that_could_change_the_script_are_refused(value: str) -> None:
    with pytest.raises(LaunchError, match="no batch script can hold partition"):
        render(make_plan(settings={"slurm_partition": value}))


def test_a_path_with_a_line_break_is_refused_and_others_are_quoted() -> None:
    with pytest.raises(LaunchError, match="no batch script can hold"):
        render(make_plan(), "/runs/a\nexit")
    line = render(make_plan(), "/runs/it's $(touch x); `y`").script.splitlines()[-1]
    words = subprocess.run(["bash", "-c", line.replace("exec", "printf '%s\\n'", 1)], capture_output=True, text=True)
    assert words.stdout.splitlines()[-1] == "/runs/it's $(touch x); `y`"


def test_processes_that_do_not_fit_the_nodes_are_refused() -> None:
    with pytest.raises(LaunchError, match="3 processes on 2 nodes"):
        render(make_plan(layout={"num_processes": 3, "num_nodes": 2}))
    with pytest.raises(LaunchError, match="the local launcher on 2 nodes"):
        get_launcher("local").render(
            make_plan(layout={"num_processes": 2, "num_nodes": 2}), RunLayout(Path("/r")), run_id="r", kind="full"
        )


def test_limits_are_rounded_up_and_ports_are_in_a_range() -> None:
    def script(wall_time_s: float) -> str:
        return batch_script(
            run_id="r",
            supervisor=["true"],
            log="log",
            num_nodes=1,
            gpus_per_node=0,
            wall_time_s=wall_time_s,
            grace_s=10.0,
            may_requeue=False,
            passed=(),
            settings={},
        )

    assert "--time=3\n" in script(50.0)
    assert "--time=4\n" in script(50.1)
    ports = {rendezvous_port(f"run-{number}") for number in range(300)}
    assert len(ports) > 280
    assert all(20_000 <= port < 32_000 for port in ports)


# -- recorded output -------------------------------------------------------------------------------------------------


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


# -- a real cluster --------------------------------------------------------------------------------------------------


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
