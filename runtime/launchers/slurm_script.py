"""The batch script of a run on Slurm: pure, shown to the approver, and submitted exactly as shown."""

import hashlib
import math
import re
import shlex
from collections.abc import Mapping, Sequence

from ..env import BATCH_JOB
from ..errors import LaunchError

SETTINGS = {
    "slurm_partition": "partition",
    "slurm_account": "account",
    "slurm_qos": "qos",
    "slurm_constraint": "constraint",
    "slurm_cpus_per_node": "cpus-per-task",
    "slurm_memory_per_node": "mem",
}
"""Settings of a plan, and the option of sbatch that each becomes."""

_VALUE = re.compile(r"[A-Za-z0-9_.,:&|*+@-]+\Z")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SPARE_S = 120.0  # Slurm's own limit comes later than the supervisor's, which is exact


def job_name(run_id: str) -> str:
    """The same for every submission of a run, so that a second one is found."""
    return f"forerun-{run_id}"


def rendezvous_port(run_id: str) -> int:
    """A port above those that services use; it follows from the run alone, so that rendering stays pure."""
    return 20_000 + int.from_bytes(hashlib.sha256(run_id.encode()).digest()[:4], "big") % 12_000


def batch_script(
    *,
    run_id: str,
    supervisor: list[str],
    log: str,
    num_nodes: int,
    gpus_per_node: int,
    wall_time_s: float,
    grace_s: float,
    may_requeue: bool,
    passed: Sequence[str],
    settings: Mapping[str, str],
) -> str:
    """The script whose process becomes the supervisor of the run.

    Args:
        log: of the supervisor, relative to the directory in which sbatch is called.
        passed: names of the submitter's variables that the supervisor gets.

    Raises:
        LaunchError: a value cannot be written into a script safely.
    """
    given = {option: settings[name] for name, option in SETTINGS.items() if name in settings}
    bad = [f"{option} {value!r}" for option, value in given.items() if not _VALUE.match(value)]
    bad += [repr(word) for word in supervisor if _CONTROL.search(word)]
    if bad:
        raise LaunchError(
            f"no batch script can hold {', '.join(bad)}",
            allowed="letters, digits and _ . , : & | * + @ - in settings; paths without control characters",
            next_step="correct the settings, or move the run directory",
        )
    options = {
        "job-name": job_name(run_id),
        "nodes": str(num_nodes),
        "ntasks-per-node": "1",
        "time": _minutes(wall_time_s + grace_s + _SPARE_S),
        "output": log,
        "open-mode": "append",
        "export": ",".join(passed),
        "signal": f"B:USR1@{math.ceil(grace_s) + 30}",
        **({"gpus-per-node": str(gpus_per_node)} if gpus_per_node else {}),
        **given,
    }
    lines = [f"#SBATCH --{option}={value}" for option, value in options.items()]
    lines.append("#SBATCH --requeue" if may_requeue else "#SBATCH --no-requeue")
    body = [f'export {BATCH_JOB}="$SLURM_JOB_ID"', f"exec {shlex.join(supervisor)}"]
    return "\n".join(["#!/bin/bash", *lines, "", *body, ""])


def _minutes(seconds: float) -> str:
    """Whole minutes, rounded up: Slurm knows no smaller limit."""
    return str(math.ceil(seconds / 60.0))
