"""The small files by which a run's supervisor and everybody else speak: claim, heartbeat, cancel, result."""

import contextlib
import os
import tempfile
import time
from pathlib import Path
from typing import TypeVar

from pydantic import Field, ValidationError

from .config.order import Claim, Heartbeat, LaunchOrder, RunResult
from .config.plan import Frozen, TrainingPlan
from .env import batch_job
from .errors import RecordError
from .files import write_atomic
from .layout import RunLayout
from .procfs import alive, boot_id, start_ticks

_FRESH_S = 5.0
_FOREIGN_SILENCE_S = 60.0
_Model = TypeVar("_Model", bound=Frozen)


class CancelRequest(Frozen):
    """Somebody wants the run stopped."""

    reason: str
    time_s: float = Field(description="when it was asked, seconds since the epoch")


def read_plan(layout: RunLayout) -> TrainingPlan | None:
    return _read(layout.plan, TrainingPlan)


def read_order(layout: RunLayout) -> LaunchOrder | None:
    return _read(layout.launch, LaunchOrder)


def read_claim(layout: RunLayout) -> Claim | None:
    return _read(layout.claim, Claim)


def read_heartbeat(layout: RunLayout) -> Heartbeat | None:
    return _read(layout.heartbeat, Heartbeat)


def read_cancel(layout: RunLayout) -> CancelRequest | None:
    return _read(layout.cancel, CancelRequest)


def read_result(layout: RunLayout) -> RunResult | None:
    return _read(layout.result, RunResult)


def write_model(path: Path, model: Frozen) -> None:
    """Replace `path` by the JSON form of a model, atomically."""
    write_atomic(path, (model.model_dump_json(indent=1) + "\n").encode())


def claim_run(layout: RunLayout) -> bool:
    """Make this process the run's supervisor; False if the run has an owner or a tombstone already."""
    return _create(layout.claim, _own_claim("supervisor"))


def take_over(layout: RunLayout) -> bool:
    """Go on with a run whose supervisor was in this very batch job, which its system has started anew."""
    claim, own = read_claim(layout), _own_claim("supervisor")
    if claim is None or not own.batch_job or claim.batch_job != own.batch_job or read_result(layout) is not None:
        return False
    write_model(layout.claim, own)
    return True


def leave_tombstone(layout: RunLayout) -> bool:
    """Make sure that no supervisor will start this run any more; False if one has claimed it."""
    if _create(layout.claim, _own_claim("tombstone")):
        return True
    claim = read_claim(layout)
    return claim is not None and claim.owner == "tombstone"


def request_cancel(layout: RunLayout, *, reason: str) -> None:
    """Ask the run's supervisor to stop it; the first reason stays, an ended run is left as it is."""
    if read_result(layout) is None:
        _create(layout.cancel, CancelRequest(reason=reason, time_s=time.time()))


def is_lost(layout: RunLayout, *, now_s: float) -> bool:
    """Whether a supervisor owned this run and is gone without a result.

    On the machine and boot of the claim the process itself is looked at (pid and start time); elsewhere only a
    heartbeat older than a minute counts.
    """
    claim = read_claim(layout)
    if claim is None or claim.owner == "tombstone":
        return False
    heartbeat = read_heartbeat(layout)
    last_sign_s = claim.time_s if heartbeat is None else max(claim.time_s, heartbeat.time_s)
    silence_s = now_s - last_sign_s
    if claim.boot_id != boot_id():
        gone = silence_s > _FOREIGN_SILENCE_S
    else:
        gone = not alive(claim.pid, claim.start_ticks) and not 0 <= silence_s < _FRESH_S
    return gone and read_result(layout) is None  # the result is read last: it may have come in between


def _own_claim(owner: str) -> Claim:
    ticks = start_ticks(os.getpid())
    return Claim.model_validate(
        {
            "owner": owner,
            "pid": os.getpid(),
            "start_ticks": 0 if ticks is None else ticks,
            "boot_id": boot_id(),
            "time_s": time.time(),
            "batch_job": batch_job(),
        }
    )


def _create(path: Path, model: Frozen) -> bool:
    """Write a file that must not exist yet: complete at once, and by one process only (link fails on an old name)."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as handle:
            handle.write((model.model_dump_json(indent=1) + "\n").encode())
            handle.flush()
            os.fchmod(handle.fileno(), 0o644)
            os.fsync(handle.fileno())
        try:
            os.link(name, path)
        except FileExistsError:
            return False
        return True
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


def _read(path: Path, kind: type[_Model]) -> _Model | None:
    """The model in this file; None if there is no file.

    Raises:
        RecordError: the file holds something else.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        raise RecordError(
            f"{path} is no {kind.__name__}: {error.errors()[0]['msg']}",
            next_step="leave the files of a run directory as forerun wrote them",
        ) from error
