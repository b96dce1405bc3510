"""TrainingPlan: its digest covers what it says, and plans of before a field existed keep theirs."""

import pytest
from pydantic import ValidationError

from runtime.config.digest import digest_json
from runtime.config.plan import MOST_SWEEP_RUNS, TrainingPlan
from tests.fakes.approvals import training_plan

PLAN = training_plan(argv=("--lr", "1"))


def with_sweep(*members: tuple[str, ...]) -> TrainingPlan:
    return TrainingPlan.model_validate(PLAN.model_dump() | {"argv": members[0], "sweep": members})


def test_a_plan_without_later_fields_keeps_the_digest_that_it_had_before_them() -> None:
    content = PLAN.model_dump(mode="json", exclude={"sweep", "inherited_hashes"})
    for file in content["data"]:
        assert file.pop("num_files") == 0
    assert PLAN.digest == digest_json(content)


def test_the_number_of_files_counts_where_there_is_one() -> None:
    folder = PLAN.data[0].model_copy(update={"num_files": 3})
    assert PLAN.model_copy(update={"data": (folder,)}).digest != PLAN.digest


@pytest.mark.parametrize(
    "members",
    [
        (("--lr", "1"),),
        (("--lr", "1"), ("--lr", "1")),
        tuple(("--lr", str(n)) for n in range(MOST_SWEEP_RUNS + 1)),
    ],
)
def test_what_is_no_sweep_is_no_plan(members: tuple[tuple[str, ...], ...]) -> None:
    with pytest.raises(ValidationError):
        with_sweep(*members)


def test_argv_is_the_first_of_a_sweep() -> None:
    with pytest.raises(ValidationError, match="argv is the first"):
        TrainingPlan.model_validate(PLAN.model_dump() | {"sweep": (("--lr", "2"), ("--lr", "1"))})


def test_a_member_is_a_plan_of_its_own() -> None:
    plan = with_sweep(("--lr", "1"), ("--lr", "2"))
    assert (plan.num_runs, PLAN.num_runs) == (2, 1)
    assert plan.of_member(2).argv == ("--lr", "2")
    assert plan.of_member(1) == PLAN
    assert plan.of_member(None) == plan
    for member in (0, 3, -1):
        with pytest.raises(ValueError, match="of a sweep of 2"):
            plan.of_member(member)
