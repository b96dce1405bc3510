"""A launch by hand: the supervisor in this very process, output as it comes, the first failure told last."""

import contextlib
import os
import re
import secrets
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, cast

from ..config.order import LaunchOrder, LaunchSpec, NodeGroup, RunResult
from ..env import current_environment
from ..errors import LaunchError
from ..launchers.local import engine_command, run_environment
from ..layout import RunLayout
from ..run_files import claim_run, write_model
from ..supervision.interrupts import Interrupts
from ..supervision.outcome import read_error
from ..supervision.preflight import Place, code_files, versions
from ..supervision.supervisor import supervise
from .live_output import LiveOutput

_NO_WALL_LIMIT_S = 10 * 365 * 86400.0
_NO_DISK_LIMIT_BYTES = 2**62


@dataclass(frozen=True)
class HandLaunch:
    """A checked request of `forerun launch`.

    Attributes:
        target: the script's path, or the module's name if `is_module`.
        environment: what is added to the caller's own environment.
        port: a fixed port; None lets the engine choose a free one.
        max_restarts: how often the job is started again after a failure, as a whole.
        nodes, place: where this machine stands among several; `num_processes` are its own.
    """

    python: str
    target: str
    arguments: tuple[str, ...]
    num_processes: int
    is_module: bool = False
    port: int | None = None
    environment: dict[str, str] = field(default_factory=dict)
    log_dir: Path = Path("forerun-runs")
    max_restarts: int = 0
    nodes: NodeGroup | None = None
    place: Place | None = None


def render(launch: HandLaunch, layout: RunLayout, *, run_id: str) -> LaunchSpec:
    """What will be started."""
    return LaunchSpec(
        argv=engine_command(
            launch.python,
            layout,
            num_processes=launch.num_processes,
            target=[launch.target, *launch.arguments],
            port=launch.port,
            is_module=launch.is_module,
            nodes=_node_options(launch),
        ),
        environment={**run_environment(layout, run_id=run_id), **_node_environment(launch), **launch.environment},
        working_directory=str(Path.cwd()),
    )


def _node_options(launch: HandLaunch) -> list[str]:
    nodes, place = launch.nodes, launch.place
    if nodes is None or place is None:
        return []
    options = ["--num-nodes", str(nodes.num_nodes), "--node-rank", str(nodes.rank), "--backend", nodes.backend]
    options += ["--address", place.address, "--own-address", place.own_address, "--port", str(nodes.port)]
    settings = ",".join(f"{key}={value}" for key, value in nodes.settings.items())
    return [*options, "--settings", settings] if settings else options


def _node_environment(launch: HandLaunch) -> dict[str, str]:
    """The interface that leads to the others: by itself gloo takes the host name's, which may be loopback."""
    if launch.place is None or not launch.place.interface:
        return {}
    given = current_environment()
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    return {name: launch.place.interface for name in names if name not in given}


def _node_group(launch: HandLaunch) -> NodeGroup | None:
    """With the facts that are compared between the nodes."""
    if launch.nodes is None:
        return None
    folder = Path.cwd() if launch.is_module else Path(launch.target).resolve().parent
    facts = {
        "processes": launch.num_processes,
        "max_restarts": launch.max_restarts,
        "versions": versions(launch.python),
        "code": code_files(folder, skipped=launch.log_dir),
    }
    return launch.nodes.model_copy(update={"facts": facts})


def preview(launch: HandLaunch) -> LaunchSpec:
    """What `run` would start; the run directory is not made."""
    return render(launch, RunLayout(launch.log_dir.absolute() / run_name(launch)), run_id="(made at launch)")


def run(launch: HandLaunch) -> int:
    """Run to the end; returns the exit code: the first failing rank's, 128 + signal when stopped by one.

    Raises:
        LaunchError: the run directory cannot be made.
    """
    interrupts = Interrupts(foreground=True)
    layout = _make_run_dir(launch)
    run_id = f"hand-{secrets.token_hex(5)}"
    order = LaunchOrder(
        run_id=run_id,
        kind="full",
        plan_digest="",
        spec=render(launch, layout, run_id=run_id),
        wall_time_s=_NO_WALL_LIMIT_S,
        disk_bytes=_NO_DISK_LIMIT_BYTES,
        without_plan=True,
        max_restarts=launch.max_restarts,
        nodes=_node_group(launch),
    )
    write_model(layout.launch, order)
    claim_run(layout)
    here = "" if launch.nodes is None else f" on node {launch.nodes.rank} of {launch.nodes.num_nodes}"
    _say(f"forerun: {launch.num_processes} process{'es' * (launch.num_processes > 1)}{here}, files in {layout.root}")
    output = LiveOutput(
        layout,
        num_processes=launch.num_processes if launch.nodes is None else None,
        stdout=_unbuffered(1),
        stderr=_unbuffered(2),
    )
    output.start()
    try:
        result = supervise(layout, interrupts)
    finally:
        output.finish()
    assert result is not None, "a launch by hand is in no queue"
    _tell(layout, result)
    return _exit_code(result, interrupts)


def run_name(launch: HandLaunch) -> str:
    """<time>-<script>, readable and safe as a file name."""
    stem = launch.target if launch.is_module else Path(launch.target).stem
    return time.strftime("%Y%m%d-%H%M%S-") + re.sub(r"[^A-Za-z0-9._-]+", "_", stem)[:60]


def _make_run_dir(launch: HandLaunch) -> RunLayout:
    name = run_name(launch)
    try:
        launch.log_dir.mkdir(parents=True, exist_ok=True)
        for suffix in ("", *(f"-{number}" for number in range(2, 1000))):
            root = launch.log_dir.absolute() / f"{name}{suffix}"
            try:
                root.mkdir(mode=0o700)  # arguments, environment and logs are their owner's alone
            except FileExistsError:
                continue
            return RunLayout(root)
    except OSError as error:
        raise LaunchError(
            f"no run directory can be made in {launch.log_dir}: {error.strerror}",
            allowed="a directory that you may write to",
            next_step="give another one to --log-dir",
        ) from error
    raise LaunchError(f"{launch.log_dir} is full of runs named {name}", next_step="give another one to --log-dir")


def _tell(layout: RunLayout, result: RunResult) -> None:
    """Say what happened; the traceback of the first failure comes last, and nowhere else."""
    if result.state == "succeeded":
        return
    _say(f"forerun: {result.state}: {result.reason}; files in {layout.root}")
    for failure in result.failures[1:]:
        first = result.failures[0].rank
        _say(f"forerun: rank {failure.rank}, after rank {first}: {failure.message.splitlines()[0][:200]}")
    if result.failures and (trace := str(read_error(layout, result.failures[0].rank).get("traceback", ""))):
        _say(f"forerun: the first failure, rank {result.failures[0].rank}:\n{trace.rstrip()}")


def _unbuffered(descriptor: int) -> BinaryIO:
    """A stream that holds nothing back, so that a reader who has left is no trouble at exit."""
    return cast(BinaryIO, os.fdopen(descriptor, "wb", buffering=0, closefd=False))


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads it any more: the job is what counts
        _unbuffered(2).write(text.encode(errors="backslashreplace") + b"\n")


def _exit_code(result: RunResult, interrupts: Interrupts) -> int:
    if result.state == "succeeded":
        return 0
    if result.exit_code is not None:
        return result.exit_code
    if result.state == "cancelled":
        return 128 + (signal.SIGTERM if interrupts.first is None else interrupts.forwarded(interrupts.first))
    return 1
