"""Speed and remaining time: after resumes, over pauses, with few points, with clocks that tell nothing."""

import math

import pytest

from tools.evidence.remaining_time import remaining_time

STEADY = [(step, step * 1.0) for step in range(50)]


def test_only_the_time_since_the_resume_counts() -> None:
    left = remaining_time([(900, 7000.0), (910, 7060.0)], 1000)
    assert (left.seconds, left.steps_per_s, left.warning) == (pytest.approx(540), pytest.approx(1 / 6), "")


@pytest.mark.parametrize(
    "points",
    [[], [(900, 5.0)], [(5, 0.0), (5, 10.0)], [(5, 10.0), (6, 10.0)], [(5, 10.0), (6, 5.0)], [(5, math.nan), (6, 5.0)]],
)
def test_without_a_difference_of_steps_and_time_nothing_is_known(points: list[tuple[int, float]]) -> None:
    left = remaining_time(points, 1000)
    assert (left.seconds, left.steps_per_s) == (None, None)


def test_a_run_beyond_its_total_has_no_time_left_and_says_so() -> None:
    left = remaining_time([(900, 0.0), (910, 60.0)], 905)
    assert (left.seconds, "beyond the total of 905" in left.warning) == (0.0, True)


def test_steps_that_start_over_tell_the_speed_of_the_last_passage() -> None:
    left = remaining_time([(0, 0.0), (50, 500.0), (40, 600.0), (45, 605.0)], 100)
    assert (left.steps_per_s, left.seconds) == (pytest.approx(1), pytest.approx(55))


def test_a_pause_that_happened_once_is_left_out_and_said() -> None:
    left = remaining_time([*STEADY, *((step + 50, 3700.0 + step) for step in range(50))], 1000)
    assert left.steps_per_s == pytest.approx(1, rel=0.02)
    assert "single pause of 3651 s before step 50" in left.warning


def test_what_comes_again_and_again_belongs_to_the_runs_time() -> None:
    points = [(step, step * 1.0 + (step // 20) * 100) for step in range(61)]
    left = remaining_time(points, 120)
    assert (left.steps_per_s, left.warning) == (pytest.approx(60 / 360), "")
