"""Facts: what was read once from the material and the run directories, before anything is said about it."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from runtime.config.order import OutsideModule
from runtime.errors import ForerunError
from runtime.layout import RunLayout
from runtime.records import EventRecord, read_events
from runtime.run_files import read_order
from runtime.snapshots.data_manifest import data_drift
from runtime.snapshots.snapshot import code_drift
from runtime.snapshots.surroundings import read_outside_modules

from ..domain.approval import ApproverKey
from ..domain.reports import NotVerified
from ..evidence import read_run_metrics
from ..request_approval import signature_problems
from ..text import redact
from .accounting import Account, Spell, account, spell_of
from .inventory import Inventory, take_inventory
from .material import ReportMaterial
from .measurements import Series, series_of

_SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True)
class Facts:
    """Attributes:
    spell: how long this run ran; `account` prices it together with all earlier runs.
    price_per_hour: of all devices together, derived from the estimate; None: no price is known.
    signature_problems: why the decision is not one that its key's owner signed; empty if it is.
    code_changes, data_changes: against the plan, at the time of the report.
    outside_modules: loaded by this run from neither the snapshot nor installed packages; None: not recorded.
    predictions_changed: that the scored file is no longer what it was when it was scored; empty if it is.
    """

    inventory: Inventory
    series: tuple[Series, ...]
    events: tuple[EventRecord, ...]
    spell: Spell
    account: Account
    price_per_hour: float | None
    signature_problems: tuple[str, ...]
    code_changes: tuple[str, ...]
    data_changes: tuple[str, ...]
    predictions_changed: str
    outside_modules: tuple[OutsideModule, ...] | None
    command: str
    unreadable: tuple[NotVerified, ...]


def gather(material: ReportMaterial) -> Facts:
    """Read everything; what cannot be read becomes an entry of `unreadable`, not an error."""
    problems: list[NotVerified] = []
    plan = material.plan_record.plan
    price = _price_per_hour(material)
    spells = [spell_of(run) for run in (material.run, *material.past_runs)]
    code_changes: Sequence[str] = ()
    if plan is not None and material.layout.code.is_dir():
        code_changes = code_drift(plan.code, material.layout.code)
    inventory = take_inventory(material.layout, material.smoke_layout)
    return Facts(
        inventory=inventory,
        series=tuple(series_of(read_run_metrics(material.layout))),
        events=tuple(read_events(material.layout.events)),
        spell=spells[0],
        account=account(spells, price_per_hour=price, other_prices=_other_prices(material)),
        price_per_hour=price,
        signature_problems=_signature(material),
        code_changes=tuple(code_changes),
        data_changes=tuple(data_drift(plan.data, manifests=material.layout.manifests)) if plan else (),
        predictions_changed=_predictions_changed(material, inventory),
        outside_modules=read_outside_modules(material.layout),
        command=_command(material.layout, problems),
        unreadable=tuple(problems),
    )


def _predictions_changed(material: ReportMaterial, inventory: Inventory) -> str:
    verification = material.verification
    if verification is None or verification.predictions_sha256 is None:
        return ""
    now = inventory.sha256(verification.predictions_file)
    if now == verification.predictions_sha256:
        return ""
    what = "is gone" if now is None else "changed"
    return f"{verification.predictions_file} {what} since the server scored it"


def _price_per_hour(material: ReportMaterial) -> float | None:
    estimate = material.plan_record.estimate
    if estimate is None or estimate.cost is None or estimate.wall_time_s is None or not estimate.wall_time_s.value:
        return None
    return estimate.cost.value / (estimate.wall_time_s.value / _SECONDS_PER_HOUR)


def _other_prices(material: ReportMaterial) -> dict[str, float | None]:
    """Of runs of other plans: their jobs have as many devices, and the price, as those plans say."""
    others = [run for run in material.past_runs if run.plan_id != material.run.plan_id]
    return {run.run_id: material.prices_per_hour.get(run.run_id) for run in others}


def _signature(material: ReportMaterial) -> tuple[str, ...]:
    request, approval = material.request, material.approval
    if approval is None:
        return ()
    problems = signature_problems(approval, material.approver_key)
    decision = approval.decision
    if request is None or decision.request_digest != request.digest:
        problems.append("the decision is over another request than the one of this plan")
    if decision.plan_digest != material.run.plan_digest:
        problems.append("the decision is over another plan than the one that ran")
    used_by = approval.run_for(material.run.member)
    if decision.decision == "approve" and used_by not in (None, material.run.run_id):
        problems.append(f"the approval was used by run {used_by}")
    return tuple(problems)


def _command(layout: RunLayout, problems: list[NotVerified]) -> str:
    try:
        order = read_order(layout)
    except (ForerunError, OSError) as error:
        problems.append(NotVerified(id="command", reason=f"the launch order cannot be read: {error}"))
        return ""
    if order is None:
        problems.append(NotVerified(id="command", reason="there is no launch order in the run directory"))
        return ""
    return masked_command(order.spec.argv)


def masked_command(argv: Sequence[str]) -> str:
    """The command line as one shell-quoted text with secrets masked."""
    return redact(shlex.join(argv))


def masked_value(name: str, value: str) -> str:
    """The value of a named setting or variable; masked if the name or the value itself says that it is a secret."""
    return redact(f"{name}={value}").removeprefix(f"{name}=")


def key_words(key: ApproverKey) -> str:
    """An approver's key by name, short id and times."""
    removed = "" if key.removed_at_s is None else f", removed {_day(key.removed_at_s)}"
    return f"{key.approver} ({key.key_id[:8]}, {key.level.value}, enrolled {_day(key.enrolled_at_s)}{removed})"


def _day(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def file_name(path: str) -> str:
    """The last part of a path, which is how a gap names a data file."""
    return Path(path).name or path
