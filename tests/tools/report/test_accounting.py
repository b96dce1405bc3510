"""Time and cost: only seconds that ran are billed, each once."""

from pathlib import Path

import pytest

from runtime.config.order import Heartbeat
from runtime.layout import RunLayout
from runtime.run_files import leave_tombstone
from tests.fakes.prepared_run import PreparedRun
from tests.fakes.report_material import write
from tools.domain.run_state import RunState
from tools.provenance_report import ReportMaterial
from tools.report.accounting import Spell, account, spell_of

_DAY_S = 1_767_225_600.0  # 2026-01-01T00:00:00Z


def test_stopped_time_is_not_billed_and_a_resume_adds_its_own() -> None:
    first = Spell("run-1", "succeeded", _DAY_S, 7_200.0, "result.json")
    assert account([first], price_per_hour=4.44).total_cost == pytest.approx(8.88)
    resumed = Spell("run-1", "succeeded", _DAY_S + 21 * 3600, 5_400.0, "result.json")
    both = account([first, resumed], price_per_hour=4.44)
    assert both.total_seconds == 3.5 * 3600
    assert both.total_cost == pytest.approx(15.54)


def test_the_cost_of_an_ended_run_does_not_depend_on_when_the_report_is_made(material: ReportMaterial) -> None:
    costs = set()
    for hours in (15, 20):
        later = ReportMaterial(**(vars(material) | {"created_at_s": material.created_at_s + hours * 3600}))
        costs.add(write(later).body["account"]["total_cost"])
    assert sorted(costs) == pytest.approx([50 * 0.5 / 45])


def test_refused_failed_and_repeated_launches() -> None:
    spells = [
        Spell("A", "refused", None, None, "not launched", launched=False),
        Spell("B", "failed", None, 0.0, "no process was started"),
        Spell("C", "succeeded", 3_600.0, 1_800.0, "result.json"),
        Spell("C", "succeeded", 3_600.0, 1_800.0, "result.json"),
        Spell("D", "succeeded", 7_200.0, 900.0, "result.json"),
    ]
    found = account(spells, price_per_hour=2.0)
    costs = {line.spell.run_id: line.cost for line in found.lines}
    assert costs == {"A": None, "B": 0.0, "C": 1.0, "D": 0.5}
    assert found.total_cost == 1.5 == sum(line.cost or 0.0 for line in found.lines)
    assert (len(found.lines), found.num_executed) == (4, 2)
    assert found.notes == ("C was reported more than once and is counted once",)


def test_a_run_of_another_plan_is_priced_as_its_own_job() -> None:
    """Eight devices cost eight times as much, whatever the plan has that the report is about."""
    spells = [
        Spell("now", "succeeded", 0.0, 3_600.0, "result.json"),
        Spell("before", "failed", 0.0, 1_800.0, "result.json"),
        Spell("never", "failed", None, 0.0, "no process was started"),
    ]
    found = account(spells, price_per_hour=2.5, other_prices={"before": 20.0, "never": None})
    assert [line.cost for line in found.lines] == [2.5, 10.0, None]
    assert (found.total_cost, found.total_cost_shown) == (12.5, 12.5)
    unknown = account(spells, price_per_hour=2.5, other_prices={"before": None})
    assert (unknown.total_cost, unknown.total_seconds) == (None, 5_400.0)
    assert unknown.notes == ("1 runs have no known price in this currency, so there is no total cost",)


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_reports_of_one_spell_the_later_one_counts_once(order: int) -> None:
    spells = [
        Spell("A", "running", 0.0, 600.0, "last heartbeat; the run goes on"),
        Spell("A", "succeeded", 0.0, 1_800.0, "result.json"),
        Spell("A", "running", 0.0, None, "unknown"),
    ]
    found = account(spells[::order], price_per_hour=2.0)
    assert (found.total_seconds, found.total_cost, len(found.lines)) == (1_800.0, 1.0, 1)
    assert found.notes == ("A was reported more than once and is counted once",)


@pytest.mark.parametrize("seconds", ["-36000.0", "1e300", "NaN", "Infinity"])
def test_seconds_that_no_job_can_have_run_are_unknown_and_lower_no_total(
    prepared: PreparedRun, tmp_path: Path, seconds: str
) -> None:
    layout = RunLayout(tmp_path / "other")
    layout.root.mkdir()
    lost = prepared.run.model_copy(update={"result": None, "state": RunState.LOST, "run_dir": str(layout.root)})
    beat = Heartbeat(time_s=100.0, pid=1, start_ticks=1, boot_id="x", elapsed_s=4.5, disk_bytes=1, phase="running")
    layout.heartbeat.write_text(beat.model_dump_json().replace("4.5", seconds))
    odd = spell_of(lost)
    assert odd.seconds is None
    assert odd.source.startswith("unknown")
    assert account([odd, spell_of(prepared.run)], price_per_hour=1.0).total_cost is None


def test_the_printed_total_is_the_sum_of_the_printed_lines() -> None:
    spells = [Spell(name, "succeeded", float(n), 1_000.0, "result.json") for n, name in enumerate("ABC")]
    found = account(spells, price_per_hour=1.2)  # 0.3333 each
    assert [f"{line.cost:.2f}" for line in found.lines] == ["0.33"] * 3
    assert found.total_cost == pytest.approx(1.0)
    assert found.total_cost_shown == 0.99


def test_an_unknown_duration_or_price_leaves_no_total() -> None:
    spells = [Spell("A", "lost", None, None, "unknown"), Spell("B", "succeeded", 1.0, 3_600.0, "result.json")]
    found = account(spells, price_per_hour=2.0)
    assert found.total_seconds is found.total_cost is None
    assert "1 runs have no known duration" in found.notes[0]
    assert account(spells[1:], price_per_hour=None).total_cost is None
    assert account(spells[1:], price_per_hour=0.0).total_cost == 0.0


def test_seconds_come_from_result_then_heartbeat_then_nothing(prepared: PreparedRun, tmp_path: Path) -> None:
    assert spell_of(prepared.run).seconds == 50.0
    layout = RunLayout(tmp_path / "other")
    layout.root.mkdir()
    lost = prepared.run.model_copy(update={"result": None, "state": RunState.LOST, "run_dir": str(layout.root)})
    never = spell_of(lost)
    assert (never.seconds, never.source) == (0.0, "no process was started")
    assert leave_tombstone(layout)
    assert spell_of(lost).seconds == 0.0
    heartbeat = Heartbeat(
        time_s=100.0, pid=1, start_ticks=1, boot_id="x", elapsed_s=40.0, disk_bytes=1, phase="running"
    )
    layout.heartbeat.write_text(heartbeat.model_dump_json())
    found = spell_of(lost)
    assert (found.seconds, found.started_at_s) == (40.0, 60.0)
    assert "last heartbeat" in found.source
    layout.heartbeat.write_text("no json")
    assert spell_of(lost).seconds is None
    running = lost.model_copy(update={"state": RunState.RUNNING, "run_dir": str(tmp_path / "new")})
    assert spell_of(running).seconds is None
