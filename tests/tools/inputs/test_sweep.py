"""validate_inputs: a sweep's argument sets are checked like the arguments of any run."""

import pytest

from runtime.config.plan import MOST_SWEEP_RUNS
from tests.tools.inputs.conftest import Project, errors


def test_each_argument_set_is_the_whole_of_one_run(project: Project) -> None:
    report = project.validate(sweep=["--max_steps 100", "--max_steps 200 --amp"])
    assert report.plan is not None, report.findings
    plain = project.validate().plan
    assert plain is not None
    first, second = report.plan.sweep
    assert first == report.plan.argv
    assert first == (*plain.argv[:-2], "--max_steps", "100", "--seed", "3")
    assert second == (*plain.argv[:-2], "--max_steps", "200", "--amp", "--seed", "3")
    assert report.plan.digest != plain.digest


@pytest.mark.parametrize(
    ("sweep", "said"),
    [
        (["--max_steps 1"], "a sweep of 1 argument set(s)"),
        ([f"--max_steps {n}" for n in range(MOST_SWEEP_RUNS + 1)], "a sweep of 65 argument set(s)"),
        (["--max_steps 1", "--max_steps '1"], "sweep 2"),
        (["--max_steps 1", "--amp", "--max_steps '1'"], "argument sets 1 and 3 of the sweep are the same"),
    ],
)
def test_a_sweep_that_is_none_gives_no_plan(project: Project, sweep: list[str], said: str) -> None:
    report = project.validate(sweep=sweep)
    assert report.plan is None
    assert said in errors(report)["bad_sweep"].message


def test_a_wrong_value_in_a_later_set_is_named_with_its_set(project: Project) -> None:
    report = project.validate(sweep=["--max_steps 1", "--max_steps many"])
    assert report.plan is None
    assert "sweep 2: --max_steps 'many' is not an integer" in errors(report)["bad_value"].message


def test_a_plan_made_from_a_sweep_keeps_it_unless_told_not_to(project: Project) -> None:
    base = {**project.request, "sweep": ["--max_steps 1", "--max_steps 2"]}
    kept = project.validate(options={"base_inputs": base}).plan
    dropped = project.validate(sweep=["none"], options={"base_inputs": base}).plan
    assert kept is not None
    assert dropped is not None
    assert (len(kept.sweep), dropped.sweep, kept.num_runs, dropped.num_runs) == (2, (), 2, 1)


def test_a_ceiling_of_cost_stands_in_the_plan(project: Project) -> None:
    plan = project.validate(settings=project.settings(max_cost=12.5)).plan
    assert plan is not None
    assert plan.ceilings.cost == 12.5
    assert "bad_setting" in errors(project.validate(settings=project.settings(max_cost=-1)))
