"""A run as it is now: nothing billed that did not run, no speed from another time, the first bad value by name."""

import json
import math
import time
from pathlib import Path

import pytest

from runtime.config.order import RankFailure
from runtime.layout import RunLayout
from tests.fakes.run_directories import START_S, add_event, add_losses, add_metric, make_layout, make_plan, make_run
from tools.domain.reports import RunProgress
from tools.domain.run_state import RunState
from tools.evidence.remaining_time import remaining_time
from tools.monitor_run import progress

PLAN = make_plan(argv=("--max_steps", "1000"))


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    return make_layout(tmp_path / "run")


def beat(layout: RunLayout, *, elapsed_s: float, time_s: float = START_S) -> None:
    data = {"time_s": time_s, "pid": 1, "start_ticks": 1, "boot_id": "b", "elapsed_s": elapsed_s, "disk_bytes": 0}
    layout.heartbeat.write_text(json.dumps({**data, "phase": "running"}))


def look(
    layout: RunLayout,
    *,
    state: RunState = RunState.RUNNING,
    now_s: float = START_S,
    kind: str = "full",
    **result: object,
) -> RunProgress:
    run = make_run(layout, PLAN, kind=kind, state=state, **result)  # type: ignore[arg-type] # a literal in each call
    return progress(PLAN, run, layout, now_s=now_s)


# C92


def test_time_left_counts_the_steps_since_the_resume_alone() -> None:
    left = remaining_time([(900, 0.0), (910, 60.0)], 1000)
    assert left.seconds == 540
    assert left.steps_per_s == pytest.approx(0.1667, abs=5e-5)


def test_the_first_step_after_a_resume_has_no_speed_yet() -> None:
    assert remaining_time([(900, 0.0)], 1000) == remaining_time([], 1000)
    assert remaining_time([(900, 0.0)], 1000).seconds is None


def test_beyond_the_total_nothing_is_left_and_a_warning_says_so() -> None:
    left = remaining_time([(900, 0.0), (910, 60.0)], 905)
    assert left.seconds == 0
    assert left.warning == "step 910 is beyond the total of 905 steps"
    assert remaining_time([(900, 0.0), (905, 60.0)], 905).warning == ""


@pytest.mark.parametrize("points", [[(5, 1.0), (5, 9.0)], [(5, 9.0), (6, 9.0)], [(5, 9.0), (6, 1.0)]])
def test_time_that_stands_still_or_runs_back_gives_no_speed(points: list[tuple[int, float]]) -> None:
    assert remaining_time(points, 10).seconds is None


def test_a_resumed_run_forgets_the_time_before(layout: RunLayout) -> None:
    for step in range(1, 901):
        add_metric(layout, "loss", 1.0, step=step, time_s=START_S + step * 0.01)
    add_event(layout, "run_started", time_s=START_S + 100)
    add_metric(layout, "loss", 1.0, step=900, time_s=START_S + 100)
    assert look(layout).remaining_s is None
    add_metric(layout, "loss", 1.0, step=910, time_s=START_S + 160)
    assert look(layout).remaining_s == pytest.approx(540)


def test_an_evaluation_that_counts_epochs_does_not_disturb_the_speed(layout: RunLayout) -> None:
    for step in range(1, 11):
        add_metric(layout, "loss", 1.0, step=step, time_s=START_S + step)
        add_metric(layout, "val_loss", 1.0, step=1, time_s=START_S + step)
    assert look(layout).remaining_s == pytest.approx(990)


# the picture


def test_step_loss_total_and_metrics_are_the_newest(layout: RunLayout) -> None:
    add_losses(layout, 2.0, 1.5, 1.25)
    add_losses(layout, 9.0, 9.0, 9.0, 9.0, rank=1)
    add_event(layout, "planned_steps", optimizer_steps=40)
    beat(layout, elapsed_s=12)
    found = look(layout)
    assert (found.step, found.total_steps, found.loss, found.metrics) == (4, 40, 1.25, {"loss": 1.25})
    assert (found.state, found.elapsed_s, found.alerts) == ("running", 12, ())


def test_a_smoke_run_counts_to_its_own_steps(layout: RunLayout) -> None:
    assert look(layout, kind="smoke").total_steps == PLAN.smoke.num_steps


def test_a_run_without_any_evidence_is_unknown_and_not_zero(layout: RunLayout) -> None:
    found = look(layout)
    assert (found.step, found.loss, found.elapsed_s, found.spent_device_hours, found.remaining_s) == (None,) * 5


def test_the_first_value_that_is_not_finite_is_an_alert_with_rank_and_step(layout: RunLayout) -> None:
    add_losses(layout, 2.0, 1.9, 1.8, 1.7, rank=1)
    add_metric(layout, "grad_norm", math.nan, step=4, rank=1)
    add_metric(layout, "eval_loss", math.nan, step=10)
    found = look(layout)
    assert found.alerts == ("grad_norm is NaN since step 4 on rank 1",)
    assert found.metrics["eval_loss"] == "NaN"
    json.dumps(found.model_dump(mode="json"), allow_nan=False)


def test_a_word_that_holds_nan_is_no_alert(layout: RunLayout) -> None:
    layout.stdout(0).write_text("loading /data/nan_project/finance.csv\nstep 1 loss 0.9\nimported channel banana\n")
    found = look(layout)
    assert (found.alerts, found.loss) == ((), 0.9)


def test_a_long_log_costs_no_more_than_its_end_and_an_early_nan_is_still_seen(layout: RunLayout) -> None:
    with layout.stdout(0).open("w") as handle:
        handle.writelines(
            f'{{"step":{i},"loss":{"NaN" if i == 7 else 0.25},"rest":"{"x" * 200}"}}\n' for i in range(1, 20_001)
        )
    begin = time.process_time()
    found = look(layout)
    assert time.process_time() - begin < 10
    assert (found.step, found.loss) == (20_000, 0.25)
    assert found.alerts == ("loss is NaN since step 7 on rank 0", "step 20000 is beyond the total of 1000 steps")


# C88


def test_stopped_time_is_not_billed_however_late_one_looks(layout: RunLayout) -> None:
    for hours_later in (15, 20):
        found = look(layout, state=RunState.SUCCEEDED, now_s=START_S + hours_later * 3600, elapsed_s=7200.0)
        assert found.spent_device_hours == 4.0
        assert found.remaining_s is None


def test_a_lost_run_is_counted_to_its_last_heartbeat_and_says_so(layout: RunLayout) -> None:
    beat(layout, elapsed_s=1800)
    found = look(layout, state=RunState.LOST, now_s=START_S + 99_999)
    assert found.spent_device_hours == 1.0
    assert found.alerts == (
        "the run was lost without a result; time and device hours are counted up to the last heartbeat",
    )


def test_a_silent_supervisor_is_an_alert(layout: RunLayout) -> None:
    beat(layout, elapsed_s=5)
    assert look(layout, now_s=START_S + 45).alerts == ("no heartbeat for 45 s",)
    layout.heartbeat.write_text("{")
    assert look(layout).alerts[0].startswith("heartbeat unreadable")


def test_failures_are_told_in_words_with_their_own_last_lines(layout: RunLayout) -> None:
    killed = RankFailure(
        rank=1, exit_code=None, signal=9, signal_name="SIGKILL", message="signal 9 (SIGKILL)",
        last_lines=("step 5", "\x1b[2Jbye --hub_token SECRET-1", ""),
    )  # fmt: skip
    ended = RankFailure(rank=0, exit_code=7, signal=None, message="exit 7: ValueError: bad", last_lines=())
    found = look(layout, state=RunState.FAILED, exit_code=137, failures=(killed, ended))
    assert found.failures == (
        "rank 1 killed by signal 9 (SIGKILL); last lines: step 5 | \\x1b[2Jbye --hub_token ***",
        "rank 0 ended with exit code 7: ValueError: bad; last lines: none",
    )
