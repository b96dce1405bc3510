"""A smoke run passes on evidence alone: each piece that is missing, false or forged keeps it from passing."""

import json
import math
import os
from pathlib import Path

import pytest

from runtime.config.plan import TrainingPlan
from runtime.layout import RunLayout
from tests.fakes.run_directories import START_S, add_event, add_losses, add_metric, make_layout, make_plan, make_run
from tools.domain.errors import WrongStep
from tools.domain.reports import SmokeCheck, SmokeResult
from tools.domain.run_state import RunRecord, RunState
from tools.smoke_test import judge_smoke

FALLING = [2.0 - 0.1 * i for i in range(12)]


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    return make_layout(tmp_path / "run")


@pytest.fixture
def plan() -> TrainingPlan:
    return make_plan()


def loads(path: Path) -> str | None:
    """Stands for the probe: whatever lies there loads."""
    assert path.exists()
    return None


def judge(plan: TrainingPlan, layout: RunLayout, run: RunRecord | None = None, *, check=loads) -> SmokeResult:  # type: ignore[no-untyped-def] # a test's own callable
    return judge_smoke(
        plan, plan_digest=plan.digest, run=run or make_run(layout, plan), layout=layout, check_checkpoint=check
    )


def check(result: SmokeResult, name: str) -> SmokeCheck:
    return next(c for c in result.checks if c.name == name)


def write_good(layout: RunLayout, *, losses: list[float] | None = None) -> None:
    add_losses(layout, *(FALLING if losses is None else losses))
    add_event(layout, "checkpoint_loaded", path="checkpoints/smoke", equal=True)
    add_event(layout, "smoke_steps_done", steps=12)


def write_checkpoint(layout: RunLayout, name: str = "work/model.pt") -> Path:
    path = layout.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    os.utime(path, (START_S + 30, START_S + 30))
    return path


def test_all_evidence_passes_and_names_its_sources(plan: TrainingPlan, layout: RunLayout) -> None:
    write_good(layout)
    result = judge(plan, layout, make_run(layout, plan, peak_memory_bytes=123))
    assert result.verdict == "passed"
    assert [c.name for c in result.checks] == [
        "ran_to_end", "steps_seen", "loss_finite", "loss_fell", "checkpoint_loads",
    ]  # fmt: skip
    assert check(result, "loss_fell").sources[0] == "metrics.rank0.jsonl:1"
    assert "first 4 1.85, of the last 4 1.05, 12 values" in check(result, "loss_fell").detail
    assert result.losses == tuple(FALLING)
    assert (result.num_steps, result.peak_memory_bytes) == (12, 123)
    assert result.step_time_s == pytest.approx(0.5)


@pytest.mark.parametrize("losses", [[1.0 + 0.1 * i for i in range(12)], [1.0] * 12])
def test_a_loss_that_does_not_fall_is_not_shown(plan: TrainingPlan, layout: RunLayout, losses: list[float]) -> None:
    write_good(layout, losses=losses)
    result = judge(plan, layout)
    assert (result.verdict, check(result, "loss_fell").outcome) == ("not_shown", "not_shown")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_loss_that_is_not_finite_fails_on_any_rank(
    plan: TrainingPlan, layout: RunLayout, bad: float, rank: int
) -> None:
    write_good(layout)
    add_metric(layout, "loss", bad, step=7, rank=rank)
    result = judge(plan, layout)
    assert result.verdict == "failed"
    assert f"since step 7 on rank {rank}" in check(result, "loss_finite").detail
    json.dumps(result.model_dump(mode="json"), allow_nan=False)


def test_a_finite_loss_does_not_hide_gradients_that_stay_nan(plan: TrainingPlan, layout: RunLayout) -> None:
    write_good(layout)
    for step in range(1, 13):
        add_metric(layout, "grad_norm", 1.0 if step < 4 else math.nan, step=step)
    assert check(judge(plan, layout), "loss_finite").detail == "grad_norm is NaN since step 4 on rank 0"


def test_an_overflow_at_the_start_of_fp16_scaling_is_no_failure(plan: TrainingPlan, layout: RunLayout) -> None:
    write_good(layout)
    for step in range(1, 13):
        add_metric(layout, "grad_norm", math.inf if step < 3 else 1.0, step=step)
    assert judge(plan, layout).verdict == "passed"


def test_exit_code_zero_alone_is_no_evidence(plan: TrainingPlan, layout: RunLayout) -> None:
    result = judge(plan, layout)
    assert result.verdict == "not_shown"
    assert {c.name: c.outcome for c in result.checks} == {
        "ran_to_end": "passed", "steps_seen": "not_shown", "loss_finite": "not_shown", "loss_fell": "not_shown",
        "checkpoint_loads": "not_shown",
    }  # fmt: skip
    assert (result.num_steps, result.step_time_s, result.peak_memory_bytes) == (None, None, None)


def test_fewer_steps_than_asked_for_are_not_shown(plan: TrainingPlan, layout: RunLayout) -> None:
    add_losses(layout, *FALLING[:8])
    add_event(layout, "checkpoint_loaded", path="checkpoints/smoke", equal=True)
    result = judge(plan, layout)
    assert (result.verdict, check(result, "steps_seen").detail) == ("not_shown", "8 of 12 steps seen")


@pytest.mark.parametrize(
    ("state", "exit_code", "outcome"),
    [
        (RunState.FAILED, 1, "failed"),
        (RunState.SUCCEEDED, 3, "failed"),
        (RunState.STOPPED_AT_LIMIT, 0, "failed"),
        (RunState.CANCELLED, 0, "not_shown"),
        (RunState.LOST, 0, "not_shown"),
    ],
)
def test_a_run_that_did_not_end_well_does_not_pass(
    plan: TrainingPlan, layout: RunLayout, state: RunState, exit_code: int, outcome: str
) -> None:
    write_good(layout)
    result = judge(plan, layout, make_run(layout, plan, state=state, exit_code=exit_code))
    assert (check(result, "ran_to_end").outcome, result.verdict) == (outcome, outcome)


def test_a_checkpoint_that_loads_differently_fails(plan: TrainingPlan, layout: RunLayout) -> None:
    write_good(layout)
    add_event(layout, "checkpoint_loaded", path="checkpoints/smoke", equal=False)
    assert check(judge(plan, layout), "checkpoint_loads").outcome == "failed"


def test_a_script_of_its_own_is_judged_by_the_file_it_wrote(plan: TrainingPlan, layout: RunLayout) -> None:
    layout.stdout(0).write_text("".join(f'{{"step": {i}, "loss": {v}}}\n' for i, v in enumerate(FALLING, start=1)))
    path = write_checkpoint(layout)
    asked: list[Path] = []
    result = judge(plan, layout, check=lambda p: asked.append(p))
    assert (result.verdict, asked) == ("passed", [path])
    broken = judge(plan, layout, check=lambda p: "cut off \x1b[2J")
    assert broken.verdict == "failed"
    assert check(broken, "checkpoint_loads").detail == "work/model.pt does not load: cut off \\x1b[2J"


def test_trainers_checkpoint_directory_is_tried_as_a_whole(plan: TrainingPlan, layout: RunLayout) -> None:
    for name in ("model.safetensors", "optimizer.pt", "training_args.bin"):
        write_checkpoint(layout, f"work/out/checkpoint-12/{name}")
    (layout.work / "out/checkpoint-12/trainer_state.json").write_text("{}")
    asked: list[Path] = []
    judge(plan, layout, check=lambda p: asked.append(p))
    assert asked == [layout.work / "out/checkpoint-12"]


def test_old_files_links_and_helpers_of_a_checkpoint_are_none(plan: TrainingPlan, layout: RunLayout) -> None:
    old = write_checkpoint(layout, "work/pretrained.pt")
    os.utime(old, (START_S - 999, START_S - 999))
    outside = write_checkpoint(layout, "elsewhere/weights.pt")
    (layout.work / "linked.pt").symlink_to(outside)
    write_checkpoint(layout, "work/training_args.bin")
    assert check(judge(plan, layout), "checkpoint_loads").outcome == "not_shown"


def test_the_runtimes_own_loss_stands_in_and_says_so(layout: RunLayout) -> None:
    plan = make_plan(loss="train/loss")
    add_losses(layout, 1.0, 0.9, name="train/loss")
    add_losses(layout, *FALLING, name="backward_loss")
    result = judge(plan, layout)
    fell = check(result, "loss_fell")
    assert fell.outcome == "passed"
    assert fell.detail.startswith("'train/loss' has 2 values, so backward_loss of our runtime is judged; ")


def test_a_named_loss_that_rises_is_not_saved_by_the_runtimes(plan: TrainingPlan, layout: RunLayout) -> None:
    write_good(layout, losses=[1.0 + 0.1 * i for i in range(12)])
    add_losses(layout, *FALLING, name="backward_loss")
    assert check(judge(plan, layout), "loss_fell").outcome == "not_shown"


def test_a_missing_loss_lists_what_was_recorded(layout: RunLayout) -> None:
    add_losses(layout, *FALLING, name="train\x1bloss")
    detail = check(judge(make_plan(loss="nll"), layout), "loss_finite").detail
    assert detail == "no value of 'nll' was recorded; recorded: train\\x1bloss"


def test_only_an_ended_smoke_run_of_this_very_plan_is_judged(plan: TrainingPlan, layout: RunLayout) -> None:
    for run in (
        make_run(layout, plan, state=RunState.RUNNING),
        make_run(layout, plan, kind="full"),
        make_run(layout, make_plan(argv=("--other",))),
    ):
        with pytest.raises(WrongStep):
            judge(plan, layout, run)
