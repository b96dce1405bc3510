"""Steps that were seen, and steps that the full run will take: from evidence, else unknown with the reason."""

from pathlib import Path

import pytest

from runtime.records import EventRecord, MetricRecord, SourcedMetric
from tests.fakes.run_directories import make_plan
from tools.evidence.step_counts import full_run_steps, parse_flags, steps_seen, total_steps
from tools.evidence.trainer import TrainerState


def metrics(*steps: int | None, name: str = "loss") -> list[SourcedMetric]:
    return [SourcedMetric(MetricRecord(s, name, 1.0, 0, 0.0), "f", i) for i, s in enumerate(steps, 1)]


def event(name: str, **details: object) -> EventRecord:
    return EventRecord(name, 0.0, 0, dict(details))


@pytest.mark.parametrize(
    ("steps", "seen"),
    [
        ((), 0),
        ((1, 2, 3), 3),
        ((0, 1, 2), 3),
        ((5, 10, 12), 12),
        ((None, None, None), 3),
        ((901, 902, 903), 3),
        ((1, 1, 1), 1),
    ],
)
def test_steps_seen(steps: tuple[int | None, ...], seen: int) -> None:
    assert steps_seen(metrics(*steps), ()) == seen


def test_the_runtimes_own_count_is_used_and_nonsense_is_not() -> None:
    assert steps_seen([], [event("smoke_steps_done", steps=12)]) == 12
    assert steps_seen(metrics(1, 2), [event("smoke_steps_done", steps="many"), event("other", steps=99)]) == 2


PLANNED = [event("planned_steps", optimizer_steps=100)]

ARITHMETIC = [event("batch_arithmetic", optimizer_steps_per_epoch=34)]


def state(*, step: int = 12, epoch: float | None = 0.24, most: int | None = 12) -> TrainerState:
    return TrainerState(Path("trainer_state.json"), step, epoch, most, ())


@pytest.mark.parametrize(
    ("argv", "smoke", "events", "trainer", "expected"),
    [
        ("--max_steps 500", "--max_steps 12", (), None, 500),
        ("--max-steps=500 --data x", "--max-steps=12 --data y", (), None, 500),
        ("", "", PLANNED, None, 100),
        ("--epochs 5 --lr 1", "--epochs 1 --lr 2", PLANNED, None, 500),
        ("--epochs 5", "--epochs 5 --log_every 1", PLANNED, None, 100),
        ("--num_train_epochs 3", "--num_train_epochs 3 --max_steps 12", (), state(), 150),
        ("--epochs 5", "", PLANNED, None, None),
        ("--epochs 5", "--epochs 5 --max_steps 12", PLANNED, None, None),
        ("", "--max_steps 12", PLANNED, None, None),
        ("--epochs 20", "--max_steps 12", PLANNED, state(), 1000),
        ("--epochs 5", "--max_steps 12", ARITHMETIC, None, 170),
        ("--epochs 5", "", [*PLANNED, *ARITHMETIC], None, 170),
        ("--epochs 5 --batch_size 64", "--epochs 1 --batch_size 8", PLANNED, None, None),
        ("--epochs 5", "--epochs 1 --subset 100", PLANNED, None, None),
        ("big.csv --epochs 5", "small.csv --epochs 1", PLANNED, None, None),
        ("--max_steps -1 --epochs 5", "--max_steps 12 --epochs 5", (), None, None),
        ("--epochs five", "--epochs 1", PLANNED, None, None),
        ("", "", (), None, None),
    ],
)
def test_steps_of_the_full_run(
    argv: str, smoke: str, events: list[EventRecord], trainer: TrainerState | None, expected: int | None
) -> None:
    plan = make_plan(argv=tuple(argv.split()), smoke_args=tuple(smoke.split()))
    count = full_run_steps(plan, events, trainer)
    assert count.num_steps == expected
    assert count.why


def test_the_reason_names_the_flag_in_the_way() -> None:
    plan = make_plan(argv=("--batch_size", "64"), smoke_args=("--batch_size", "8"))
    assert "--batch_size" in full_run_steps(plan, PLANNED, None).why


def test_total_of_a_run_by_its_own_words() -> None:
    plan = make_plan(argv=("--max_steps", "500"))
    assert total_steps(plan, PLANNED, None) == 100
    assert total_steps(plan, (), state(most=77)) == 77
    assert total_steps(plan, (), None) == 500
    assert total_steps(make_plan(), (), None) is None


def test_flags_are_read_like_argparse_reads_them() -> None:
    assert parse_flags(("a", "--x-y", "1", "2", "--flag", "--z=3", "b")) == {
        "": ("a", "b"), "x_y": ("1", "2"), "flag": (), "z": ("3",),
    }  # fmt: skip
