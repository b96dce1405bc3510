"""The Slurm launcher: the batch step is the supervisor; srun starts the engine on each node of several."""

import sys

from ..config.order import LaunchSpec, RunKind
from ..config.plan import TrainingPlan
from ..env import current_environment
from ..errors import LaunchError
from ..files import write_atomic
from ..layout import RunLayout
from ..run_files import read_order, request_cancel
from .local import LocalLauncher
from .process import Completed, run
from .scheduled import Scheduled
from .slurm_script import SETTINGS, batch_script, job_name, rendezvous_port
from .slurm_states import parse_job_ids, parse_sacct, parse_scontrol

_COMMAND_S = 30.0
_GRACE_S = 10.0
_FORGOTTEN = "Invalid job id"
_PASSED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "SLURM_CONF")


class SlurmLauncher:
    """As many nodes as the plan says, given by Slurm; the run directory lies where all of them see it."""

    def render(self, plan: TrainingPlan, layout: RunLayout, *, run_id: str, kind: RunKind) -> LaunchSpec:
        nodes, processes = plan.layout.num_nodes, plan.layout.num_processes
        if processes % nodes:
            raise LaunchError(
                f"{processes} processes on {nodes} nodes",
                allowed="a number of processes that the number of nodes divides",
                next_step="change num_processes or num_nodes",
            )
        here = plan.layout.model_copy(update={"num_processes": processes // nodes, "num_nodes": 1})
        spec = LocalLauncher().render(plan.model_copy(update={"layout": here}), layout, run_id=run_id, kind=kind)
        settings = {setting.name: setting.value for setting in plan.settings if setting.name in SETTINGS}
        script = batch_script(
            run_id=run_id,
            supervisor=[sys.executable, "-I", "-m", "runtime.supervision.supervisor", str(layout.root.absolute())],
            log=str(layout.supervisor_log.relative_to(layout.root)),
            num_nodes=nodes,
            gpus_per_node=processes // nodes if plan.layout.device == "cuda" else 0,
            wall_time_s=plan.smoke.wall_time_s if kind == "smoke" else plan.ceilings.wall_time_s,
            grace_s=_GRACE_S,
            may_requeue=kind != "smoke" and plan.ceilings.max_retries > 0,
            passed=(*_PASSED, *plan.inherited),
            settings=settings,
        )
        if nodes == 1:
            return spec.model_copy(update={"script": script})
        python, engine, *rest = spec.argv
        place = ["--num-nodes", str(nodes), "--node-rank", "SLURM_NODEID", "--address", "SLURM_LAUNCH_NODE_IPADDR"]
        place += ["--port", str(rendezvous_port(run_id))]
        srun = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--input=none", "--export=ALL"]
        srun.append("--kill-on-bad-exit=1")  # a node whose ranks have failed ends the others
        if "slurm_cpus_per_node" in settings:
            srun.append(f"--cpus-per-task={settings['slurm_cpus_per_node']}")
        return spec.model_copy(
            update={
                "argv": (*srun, python, engine, *place, *rest),
                "script": script,
                "passes": ("SLURM_",),
            }
        )

    def submit(self, layout: RunLayout) -> None:
        order = read_order(layout)
        if order is None or not order.spec.script:
            raise LaunchError(f"{layout.launch} holds no batch script", next_step="write the order before submitting")
        if layout.claim.exists() or self.poll(layout) is not None:
            return
        name = job_name(order.run_id)
        queued = parse_job_ids(_slurm(layout, "squeue", "--noheader", f"--name={name}", "--format=%A").stdout)
        if not queued:
            write_atomic(layout.batch_script, order.spec.script.encode())
            layout.logs.mkdir(exist_ok=True)
            done = _slurm(layout, "sbatch", "--parsable", str(layout.batch_script))
            queued = parse_job_ids(done.stdout)
            if done.returncode != 0 or not queued:
                raise LaunchError(
                    f"sbatch refused the job: {done.stderr.strip()[-500:] or f'exit {done.returncode}'}",
                    allowed="a job that this cluster takes",
                    next_step="correct what Slurm names (slurm_partition, slurm_account, ...), then launch again",
                )
        write_atomic(layout.batch_job, f"{queued[0]}\n".encode())

    def poll(self, layout: RunLayout) -> Scheduled | None:
        job_id = _job_id(layout)
        if job_id is None:
            return None
        shown = _slurm(layout, "scontrol", "-o", "show", "job", job_id)
        if shown.returncode == 0:
            return parse_scontrol(shown.stdout)
        if (accounted := _accounted(layout, job_id)) is not None:
            return accounted
        if _FORGOTTEN not in shown.stderr:  # a controller that does not answer has forgotten nothing
            raise LaunchError(
                f"scontrol cannot be asked: {shown.stderr.strip()[-300:] or f'exit {shown.returncode}'}",
                allowed="a cluster whose controller answers",
                next_step="ask again, or look at slurmctld",
            )
        return None

    def cancel(self, layout: RunLayout, *, reason: str) -> None:
        request_cancel(layout, reason=reason)
        scheduled = self.poll(layout)
        if scheduled is not None and scheduled.phase == "pending":  # a supervisor that runs obeys by itself
            _slurm(layout, "scancel", scheduled.job_id)

    def requeue(self, layout: RunLayout) -> bool:
        scheduled = self.poll(layout)
        if scheduled is None or scheduled.phase == "ended":
            return False
        if scheduled.phase == "pending":
            return True
        if scheduled.state == "COMPLETING":  # Slurm is ending it: for good (scancel), unless it has counted a restart
            before = current_environment().get("SLURM_RESTART_COUNT", "0")
            return scheduled.restarts is not None and scheduled.restarts > int(before)
        return _slurm(layout, "scontrol", "requeue", scheduled.job_id).returncode == 0


def _accounted(layout: RunLayout, job_id: str) -> Scheduled | None:
    """What the accounts say; None where there are none, or no program that reads them."""
    columns = "--format=JobIDRaw,State,ExitCode"
    try:
        done = _slurm(layout, "sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job_id}", columns)
    except LaunchError:
        return None
    return parse_sacct(done.stdout) if done.returncode == 0 else None


def _job_id(layout: RunLayout) -> str | None:
    try:
        ids = parse_job_ids(layout.batch_job.read_text())
    except FileNotFoundError:
        return None
    return ids[0] if ids else None


def _slurm(layout: RunLayout, *words: str) -> Completed:
    try:
        return run(words, timeout_s=_COMMAND_S, environment=current_environment(), working_directory=layout.root)
    except LaunchError as error:
        raise LaunchError(
            f"{words[0]} cannot be started: {error.what}",
            allowed="a machine from which Slurm jobs are submitted",
            next_step="install Slurm's client programs here, or plan with another launcher",
        ) from error
