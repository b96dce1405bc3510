"""The batch script of the Slurm launcher: pure, safe, and what a plan says."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runtime.config.order import RunKind
from runtime.config.plan import Ceilings, TrainingPlan
from runtime.errors import LaunchError
from runtime.launchers.registry import get_launcher
from runtime.launchers.slurm import SlurmLauncher
from runtime.launchers.slurm_script import batch_script, rendezvous_port
from runtime.layout import RunLayout
from tests.fakes.slurm_runs import make_plan


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
