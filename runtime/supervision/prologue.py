"""What the supervisor checks before it starts a job: that what will run is what was planned, byte for byte."""

import os
from decimal import Decimal
from pathlib import Path

from ..config.order import LaunchOrder
from ..config.plan import TrainingPlan
from ..env import current_environment
from ..errors import ForerunError, LaunchError
from ..launchers.registry import get_launcher
from ..layout import RunLayout
from ..run_files import read_plan
from ..snapshots.data_manifest import data_drift
from ..snapshots.secret_values import secret_drift
from ..snapshots.snapshot import code_drift
from ..snapshots.surroundings import module_drift, package_drift


def check_plan(layout: RunLayout, order: LaunchOrder) -> TrainingPlan:
    """The plan of this run, after everything that it names has been compared with what is there.

    Raises:
        LaunchError: something differs; the message names each difference.
    """
    plan = read_plan(layout)
    if plan is None:
        raise LaunchError(f"{layout.plan} is missing", next_step="make the run anew from its plan")
    if plan.digest != order.plan_digest:
        raise LaunchError(
            f"plan.json has digest {plan.digest[:12]}, the order is for {order.plan_digest[:12]}",
            next_step="make a new plan and have it approved",
        )
    differences = [
        *_order_differences(plan, layout, order),
        *code_drift(plan.code, layout.code),
        *data_drift(plan.data, manifests=layout.manifests),
        *_interpreter_differences(plan),
        *module_drift(order.outside_modules or ()),
        *secret_drift(plan, current_environment(), Path(order.secret_key) if order.secret_key else None),
    ]
    if differences:
        raise LaunchError(
            f"the run is not what was planned: {'; '.join(differences)}",
            next_step="put things back, or make a new plan and have it approved",
        )
    return plan


def _order_differences(plan: TrainingPlan, layout: RunLayout, order: LaunchOrder) -> list[str]:
    """launch.json is not covered by the plan's digest, so it must say no more than the plan gives."""
    try:
        carried_out = plan.of_member(order.member)
        spec = get_launcher(plan.layout.launcher).render(carried_out, layout, run_id=order.run_id, kind=order.kind)
    except ValueError as error:
        return [f"launch.json: {error}"]
    except ForerunError as error:
        return [str(error)]
    lines = []
    if plan.sweep and order.member is None and order.kind != "smoke":
        lines.append("launch.json: it names none of the plan's argument sets")
    if spec != order.spec:
        fields = [name for name in type(spec).model_fields if getattr(spec, name) != getattr(order.spec, name)]
        lines.append(f"launch.json: {', '.join(fields)} differ from what the plan gives")
    wall_time_s = plan.smoke.wall_time_s if order.kind == "smoke" else plan.ceilings.wall_time_s
    if order.wall_time_s > wall_time_s:
        lines.append(f"launch.json: wall time {order.wall_time_s:g} s is above the plan's {wall_time_s:g} s")
    max_restarts = 0 if order.kind == "smoke" else plan.ceilings.max_retries
    if order.max_restarts > max_restarts:
        lines.append(f"launch.json: {order.max_restarts} restarts are above the plan's {max_restarts}")
    if order.disk_bytes > plan.ceilings.disk_bytes:
        lines.append(f"launch.json: disk {order.disk_bytes} bytes is above the plan's {plan.ceilings.disk_bytes}")
    share = None if plan.ceilings.cost is None else Decimal(repr(plan.ceilings.cost)) / plan.num_runs
    if share is not None and order.kind != "smoke" and (order.cost is None or Decimal(order.cost.most) > share):
        lines.append(f"launch.json: cost {order.cost and order.cost.most} is above the plan's {share} for one run")
    return lines


def _interpreter_differences(plan: TrainingPlan) -> list[str]:
    python = Path(plan.interpreter.executable)
    if python.is_file() and os.access(python, os.X_OK):
        return package_drift(plan)
    return [f"interpreter {python}: missing or not executable"]
