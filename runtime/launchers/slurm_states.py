"""What Slurm says of a job, as plain values: pure functions over the output of scontrol, squeue and sacct."""

import re

from .scheduled import Phase, Scheduled

_PENDING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT")
_RUNNING = ("RUNNING", "COMPLETING", "SUSPENDED", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED")
_ENDED = (
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "LAUNCH_FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "RECONFIG_FAIL",
    "REVOKED",
    "TIMEOUT",
)
_FIELD = re.compile(r"(?:^|\s)(?P<name>[A-Za-z][A-Za-z/:]*)=(?P<value>\S*)")


def parse_scontrol(text: str) -> Scheduled | None:
    """From `scontrol -o show job ID`; None if it tells of no job."""
    fields: dict[str, str] = {}
    for match in _FIELD.finditer(text.partition("\n")[0]):
        fields.setdefault(match["name"], match["value"])  # a path later in the line may hold a word like a field
    if not fields.get("JobId", "").isdecimal() or "JobState" not in fields:
        return None
    restarts = fields.get("Restarts", "")
    return _scheduled(
        fields["JobId"],
        fields["JobState"],
        reason=fields.get("Reason", ""),
        exit_text=fields.get("ExitCode", ""),
        restarts=int(restarts) if restarts.isdecimal() else None,
    )


def parse_sacct(text: str) -> Scheduled | None:
    """From `sacct -n -P -X -o JobIDRaw,State,ExitCode`: the last line, which is the job's last run."""
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 2]
    rows = [row for row in rows if row[0].isdecimal()]
    return _scheduled(rows[-1][0], rows[-1][1], exit_text=rows[-1][2]) if rows else None


def parse_job_ids(text: str) -> list[str]:
    """From `squeue -h -o %A`, or the answer of `sbatch --parsable` (ID or ID;CLUSTER)."""
    words = [line.strip().partition(";")[0] for line in text.splitlines()]
    return [word for word in words if word.isdecimal()]


def _scheduled(
    job_id: str, state: str, *, reason: str = "", exit_text: str = "", restarts: int | None = None
) -> Scheduled | None:
    word = state.split()[0].rstrip("+") if state.split() else ""  # "CANCELLED by 0"
    phase: Phase
    if word in _PENDING:
        phase = "pending"
    elif word in _RUNNING:
        phase = "running"
    elif word in _ENDED:
        phase = "ended"
    else:
        return None
    code, _, number = exit_text.partition(":")
    known = phase == "ended" and code.isdecimal() and number.isdecimal()
    return Scheduled(
        job_id,
        phase,
        word,
        reason="" if reason == "None" else reason,
        exit_code=int(code) if known else None,
        signal=int(number) if known else None,
        restarts=restarts,
    )
