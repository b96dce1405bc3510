"""Preparing a run: the directory that a supervisor can own, complete before anyone is told of it."""

import os
import shutil
from pathlib import Path

import rfc8785
from pydantic import ValidationError

from runtime.config.order import CostLimit, LaunchOrder, Lease, OutsideModule, RunKind
from runtime.config.plan import TrainingPlan
from runtime.files import write_atomic, write_json_atomic
from runtime.launchers.base import Launcher
from runtime.layout import RunLayout
from runtime.snapshots.data_manifest import FOLDER, read_manifest, store_manifest
from runtime.snapshots.snapshot import materialise

from .domain.reports import EnvironmentReport
from .leftovers import mark_preparing


def prepare_run(
    plan: TrainingPlan,
    *,
    run_id: str,
    kind: RunKind,
    directory: Path,
    snapshots: Path,
    launcher: Launcher,
    lease: Lease | None,
    outside_modules: tuple[OutsideModule, ...] | None = None,
    secret_key: Path | None = None,
    cost: CostLimit | None = None,
    member: int | None = None,
) -> RunLayout:
    """Make the run directory: code, work, plan.json, and launch.json last.

    Args:
        directory: of the run itself; it must not exist.
        snapshots: where validate_inputs keeps the copies of code.
        outside_modules: what the smoke run loaded from elsewhere, for the supervisor to compare again.
        secret_key: the file of the key under which the plan's secret values are hashed.
        cost: the most that the run may cost, by its price; None: no price is known.
        member: of a sweep: which of the plan's argument sets, the first being 1.
        lease: the process without which a smoke run ends; None for a run that outlives the server.

    Raises:
        OSError: no space or no permission.
        LaunchError: the stored code is not what the plan says.
    """
    layout = RunLayout(directory)
    directory.mkdir(mode=0o700, parents=True)
    mark_preparing(directory)
    for folder in (layout.work, layout.logs, layout.checkpoints):
        folder.mkdir()
    materialise(plan.code, snapshots, layout.code)
    _copy_manifests(plan, snapshots / FOLDER, layout)
    write_atomic(layout.plan, rfc8785.dumps(plan.model_dump(mode="json")))
    order = LaunchOrder(
        run_id=run_id,
        kind=kind,
        plan_digest=plan.digest,
        spec=launcher.render(plan.of_member(member), layout, run_id=run_id, kind=kind),
        wall_time_s=plan.smoke.wall_time_s if kind == "smoke" else plan.ceilings.wall_time_s,
        disk_bytes=plan.ceilings.disk_bytes,
        cost=cost,
        member=member,
        lease=lease,
        outside_modules=outside_modules,
        secret_key=str(secret_key) if secret_key and plan.inherited_hashes else "",
        max_restarts=0 if kind == "smoke" else plan.ceilings.max_retries,
    )
    write_json_atomic(layout.launch, order.model_dump(mode="json"))
    return layout


def _copy_manifests(plan: TrainingPlan, store: Path, layout: RunLayout) -> None:
    """What the prologue compares the files of data directories with; without it a directory counts as a whole."""
    for file in plan.data:
        if file.num_files and (entries := read_manifest(store, file.sha256)) is not None:
            store_manifest(layout.manifests, entries)


def discard_run(layout: RunLayout) -> None:
    """Remove a prepared directory that no supervisor was ever told of; its code is read-only."""
    for folder, _, _ in os.walk(layout.root):
        os.chmod(folder, 0o700)
    shutil.rmtree(layout.root)


def write_environment(layout: RunLayout, report: EnvironmentReport) -> None:
    """Keep what the machine was when the run began; the report tells of it."""
    write_json_atomic(layout.environment, report.model_dump(mode="json"))


def read_environment(layout: RunLayout) -> EnvironmentReport | None:
    """The machine at the start of this run; None if it was not looked at or the file is damaged."""
    try:
        return EnvironmentReport.model_validate_json(layout.environment.read_bytes())
    except (OSError, ValidationError):
        return None
