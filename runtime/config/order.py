"""LaunchOrder and RunResult: what a supervisor is told, and what it says at the end."""

from typing import Any, Literal

from pydantic import Field

from .plan import Frozen

RunKind = Literal["smoke", "full", "rerun"]


class Lease(Frozen):
    """A smoke run lives only as long as the server that wants it: this process, told apart by its start time."""

    pid: int
    start_ticks: int = Field(description="field 22 of /proc/PID/stat")
    boot_id: str = Field(default="", description="of the server's machine; elsewhere the lease cannot be looked at")


class LaunchSpec(Frozen):
    """The rendered command of one run: pure data, shown to the approver."""

    argv: tuple[str, ...] = Field(description="the engine's command line")
    environment: dict[str, str] = Field(description="what the launcher adds to the plan's environment")
    working_directory: str
    script: str = Field(default="", description="the batch script that is submitted; empty where there is none")
    passes: tuple[str, ...] = Field(
        default=(), description="beginnings of names: variables of the batch system that the engine gets as well"
    )


class OutsideModule(Frozen):
    """A module that came from neither the snapshot nor the installed packages; an empty digest: gone at the end."""

    name: str
    path: str = Field(description="absolute, links resolved")
    sha256: str = Field(pattern=r"^([0-9a-f]{64})?$")


class NodeGroup(Frozen):
    """Several machines, each with a launcher of its own, and this one's place among them."""

    num_nodes: int = Field(ge=2)
    rank: int = Field(ge=0)
    address: str = Field(description="of node 0, as given")
    port: int = Field(ge=1, le=65535)
    backend: Literal["static", "c10d"] = "static"
    deadline_s: float = Field(default=300.0, gt=0, description="how long the nodes wait for each other")
    settings: dict[str, str] = Field(default={}, description="more for the rendezvous")
    facts: dict[str, Any] = Field(default={}, description="versions and code, which must be equal on all nodes")


class CostLimit(Frozen):
    """The most that the whole job may cost, by its price for an hour; retries are within it. Decimal texts."""

    most: str = Field(pattern=r"^\d+(\.\d+)?$")
    hourly_rate: str = Field(pattern=r"^\d+(\.\d+)?$", description="of all devices or nodes together")
    currency: str


class LaunchOrder(Frozen):
    """Everything the supervisor needs beside plan.json."""

    run_id: str
    kind: RunKind
    plan_digest: str
    spec: LaunchSpec
    wall_time_s: float = Field(gt=0)
    grace_s: float = Field(default=10.0, ge=0, description="between SIGTERM and SIGKILL")
    disk_bytes: int = Field(gt=0)
    cost: CostLimit | None = Field(default=None, description="None: no price is known, other limits alone count")
    member: int | None = Field(default=None, ge=1, description="of a sweep: which of the plan's argument sets")
    lease: Lease | None = None
    outside_modules: tuple[OutsideModule, ...] | None = Field(
        default=None, description="what the smoke run loaded from outside, compared again; None: not recorded"
    )
    secret_key: str = Field(default="", description="file of the key under which the plan's secret values are hashed")
    without_plan: bool = Field(
        default=False,
        description="`forerun launch` by hand: no plan.json, the prologue compares nothing, the caller's environment",
    )
    nodes: NodeGroup | None = Field(default=None, description="None: this machine alone, or one launcher for all")
    max_restarts: int = Field(
        default=0, ge=0, le=100, description="how often a job that failed is started again, within the same wall time"
    )


class Claim(Frozen):
    """Who owns a run: a supervisor, or a tombstone left by the server."""

    owner: Literal["supervisor", "tombstone"]
    pid: int
    start_ticks: int
    boot_id: str
    time_s: float
    batch_job: str = Field(default="", description="of a supervisor in a batch job, which the same job may take over")


class Heartbeat(Frozen):
    time_s: float
    pid: int
    start_ticks: int
    boot_id: str
    elapsed_s: float
    disk_bytes: int
    phase: Literal["prologue", "running", "stopping"]
    attempt: int = 1


class RankFailure(Frozen):
    """How one rank ended, if not well. `signal` is None when it exited by itself; `last_lines` are its own."""

    rank: int
    exit_code: int | None
    signal: int | None
    signal_name: str = ""
    time_s: float | None = None
    message: str = ""
    last_lines: tuple[str, ...] = ()


ResultState = Literal["succeeded", "failed", "cancelled", "stopped_at_limit"]


class RunResult(Frozen):
    """The supervisor's last word. Times are seconds since the epoch, UTC."""

    run_id: str
    state: ResultState
    reason: str
    exit_code: int | None
    started_at_s: float
    ended_at_s: float
    elapsed_s: float = Field(ge=0, description="monotonic time from the start of the job to its end")
    disk_bytes: int
    peak_memory_bytes: int | None = Field(
        default=None, description="highest summed RSS of the job's processes; None: not measured"
    )
    failures: tuple[RankFailure, ...] = ()
    signals_sent: tuple[str, ...] = ()
    survivors: tuple[int, ...] = Field(default=(), description="pids that could not be ended; empty is the promise")
    attempts: int = Field(default=1, ge=1, description="starts of the job; state and failures are the last one's")
