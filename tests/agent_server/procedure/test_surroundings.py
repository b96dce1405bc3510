"""What lies around the plan and changed since the approval is refused by name, before anything starts."""

import hashlib
import sys
from pathlib import Path

import pytest

from agent_server.procedure.starting import Started, launch_training
from runtime.config.order import OutsideModule
from runtime.config.plan import Interpreter, TrainingPlan
from runtime.layout import RunLayout
from runtime.run_files import read_order
from runtime.snapshots.secret_values import keyed_hash, load_key
from runtime.snapshots.surroundings import package_drift
from tests.fakes.approvals import ask, cost_estimate, estimated_record, smoke_result
from tests.fakes.bench import Bench
from tools.domain.errors import Refused
from tools.domain.plan_state import PlanRecord


def approved(bench: Bench, plan: TrainingPlan, modules: tuple[OutsideModule, ...] | None = None) -> PlanRecord:
    """A plan that the human approved, with this record of its smoke run."""
    smoke = smoke_result(plan).model_copy(update={"outside_modules": modules})
    record = estimated_record(plan).model_copy(update={"smoke": smoke, "estimate": cost_estimate(plan)})
    bench.human.decide(ask(bench.store, bench.clock, record))
    return record


def refusal(bench: Bench, record: PlanRecord) -> str:
    with pytest.raises(Refused) as caught:
        launch_training(bench.place, record.plan_id)
    assert not bench.place.settings.runs_dir.exists()
    assert f"base_plan_id={record.plan_id}" in caught.value.next_step
    return caught.value.what


def test_one_changed_byte_in_a_module_from_elsewhere_is_refused_by_name(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "helper.py"
    path.write_text("A = 1\n")
    module = OutsideModule(name="helper", path=str(path), sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    record = approved(bench, bench.plan(), (module,))
    path.write_text("A = 2\n")
    assert f"module helper ({path}): content changed" in refusal(bench, record)
    path.write_text("A = 1\n")
    started = launch_training(bench.place, record.plan_id)
    assert isinstance(started, Started)
    order = read_order(RunLayout(Path(started.run.run_dir)))
    assert order is not None
    assert order.outside_modules == (module,)  # for the supervisor, which compares once more


def test_a_record_of_modules_changed_after_the_request_is_refused(bench: Bench) -> None:
    record = approved(bench, bench.plan(), ())
    assert record.smoke is not None
    other = OutsideModule(name="x", path="/x", sha256="")
    assert record.smoke.digest != record.smoke.model_copy(update={"outside_modules": (other,)}).digest
    assert record.smoke.digest != record.smoke.model_copy(update={"outside_modules": None}).digest


def test_a_package_of_another_version_is_refused_by_name(bench: Bench) -> None:
    plan = bench.plan()
    planned = Interpreter(executable=sys.executable, version="", packages={"numpy": "1.0.0"})
    drift = package_drift(plan.model_copy(update={"interpreter": planned}))
    assert len(drift) > 1  # numpy, and all that the plan does not know
    record = approved(bench, plan.model_copy(update={"interpreter": planned}))
    assert "package " in refusal(bench, record)


def test_another_value_of_a_secret_is_refused_by_name_and_neither_is_shown(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = load_key(bench.place.settings.secret_key, create=True)
    hashes = {"MY_TOKEN": keyed_hash(key, "MY_TOKEN", "SECRET-one")}
    plan = bench.plan().model_copy(update={"inherited": ("MY_TOKEN",), "inherited_hashes": hashes})
    record = approved(bench, plan)
    assert "secret variable MY_TOKEN is not set" in refusal(bench, record)
    monkeypatch.setenv("MY_TOKEN", "SECRET-two")
    said = refusal(bench, record)
    assert "the value of secret variable MY_TOKEN is another one" in said
    assert "SECRET-" not in said
    monkeypatch.setenv("MY_TOKEN", "SECRET-one")
    assert isinstance(launch_training(bench.place, record.plan_id), Started)
