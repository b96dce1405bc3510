"""Budgets in exact decimals: what fits is never more than the limit, and what is unknown never fits."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_server.approvals.policy.budgets import budget_lines, budget_refusals, counts_now, free_launches, used
from agent_server.approvals.policy.check import settled
from agent_server.approvals.policy.documents import parse_policy
from agent_server.approvals.policy.in_force import PolicyInForce
from tests.fakes.approvals import START_S
from tests.fakes.policies import policy_text
from tools.domain.budget import Reservation

DAY_S = 86_400.0


def in_force(budgets: str, *, floor: bool = False) -> PolicyInForce:
    text = policy_text(budgets=budgets)
    read = parse_policy(text)
    assert read.model is not None, read.findings
    if floor:
        plain = parse_policy(policy_text()).model
        assert plain is not None
        return PolicyInForce(plain, "shipped-1", "", "", (), read.model)
    return PolicyInForce(read.model, "lab-1@0", "", text)


def held(
    number: int = 0,
    *,
    cost: str | None = "1.00",
    hours: str = "1.00",
    at_s: float = START_S,
    project: str = "/p",
    requester: str = "agent",
    currency: str = "EUR",
    run: bool = True,
    **changes: object,
) -> Reservation:
    values: dict[str, object] = {
        "reservation_id": f"req-{number:010}",
        "plan_id": f"plan-{number:010}",
        "run_id": f"run-{number:010}" if run else None,
        "project": project,
        "requester": requester,
        "reserved_at_s": at_s,
        "expires_at_s": at_s + 3600,
        "currency": currency,
        "cost": cost,
        "device_hours": hours,
        "hourly_rate": None if cost is None else "2.00",
        "num_processes": 2,
        **changes,
    }
    return Reservation.model_validate(values)


amounts = st.decimals(min_value=0, max_value=1000, places=6, allow_nan=False, allow_infinity=False)
DAY = "{{day: {{cost: {0}}}, project: null, requester: null}}"


@given(limit=amounts, wanted=st.lists(amounts, max_size=30))
def test_what_is_let_in_never_exceeds_the_limit_and_is_refused_only_when_it_would(
    limit: Decimal, wanted: list[Decimal]
) -> None:
    rules = in_force(DAY.format(f"{limit:f}"))
    others: list[Reservation] = []
    total = Decimal(0)
    for number, cost in enumerate(wanted):
        new = held(number, cost=f"{cost:f}")
        refused = budget_refusals(rules, others, new, now_s=START_S)
        assert bool(refused) == (total + cost > limit)
        if not refused:
            others.append(new)
            total += cost
    assert total <= limit


@given(
    wanted=st.lists(st.tuples(amounts, st.floats(0, 1e6, allow_nan=False), st.booleans()), max_size=12),
    rate=amounts,
)
def test_settling_replaces_what_was_reserved_and_adds_nothing(
    wanted: list[tuple[Decimal, float, bool]], rate: Decimal
) -> None:
    budget = in_force(DAY.format("1000")).policy.budgets.day
    assert budget is not None
    rows, expected = [], Decimal(0)
    for number, (cost, elapsed_s, over) in enumerate(wanted, start=1):
        row = held(number, cost=f"{cost:f}", hourly_rate=f"{rate:f}")
        if over:
            row = settled(row, elapsed_s=elapsed_s, basis="measured", now_s=START_S)
            assert row.actual_cost is not None
            exact = rate * Decimal(repr(elapsed_s)) / 3600
            assert 0 <= Decimal(row.actual_cost) - exact <= Decimal("0.000002")
            expected += Decimal(row.actual_cost)
        else:
            expected += cost
        rows.append(row)
    found = used(rows, held(), scope="day", budget=budget, currency="EUR", now_s=START_S)
    assert (found.cost, found.uncounted) == (expected, 0)


def test_an_exact_fit_fits_and_a_cent_more_does_not() -> None:
    rules = in_force(DAY.format("0.30"))
    others = [held(1, cost="0.10"), held(2, cost="0.10")]
    assert budget_refusals(rules, others, held(3, cost="0.10"), now_s=START_S) == []
    (words,) = budget_refusals(rules, others, held(3, cost="0.11"), now_s=START_S)
    assert "0.30 EUR: 0.20 are used or reserved, this launch may cost 0.11" in words


def test_the_scopes_are_day_project_and_requester() -> None:
    rules = in_force("{day: {cost: 3}, project: {device_hours: 3}, requester: {cost: 3, over_days: 2}}")
    full = [held(n) for n in (1, 2, 3)]
    new = held(9)
    assert len(budget_refusals(rules, full, new, now_s=START_S)) == 3
    yesterday = [row.model_copy(update={"reserved_at_s": START_S - DAY_S}) for row in full]
    names = [words.partition(" is ")[0] for words in budget_refusals(rules, yesterday, new, now_s=START_S)]
    assert names == ["the budget of project /p", "the budget of requester agent over 2 days"]
    long_ago = [row.model_copy(update={"reserved_at_s": START_S - 2 * DAY_S}) for row in full]
    assert [words.partition(" is ")[0] for words in budget_refusals(rules, long_ago, new, now_s=START_S)] == [
        "the budget of project /p"
    ]
    others = [row.model_copy(update={"project": "/q", "requester": "bob"}) for row in yesterday]
    assert budget_refusals(rules, others, new, now_s=START_S) == []


def test_an_unknown_cost_never_fits_into_a_budget_of_cost_and_is_not_counted_as_nothing() -> None:
    rules = in_force(DAY.format("3"))
    (words,) = budget_refusals(rules, [], held(1, cost=None), now_s=START_S)
    assert "the cost of this launch is unknown" in words
    lines = budget_lines(rules, [held(2, cost=None), held(3, currency="USD")], held(4), now_s=START_S)
    assert "2 launch(es) of unknown cost or another currency are not counted" in lines[0]
    assert "0.00 of 3.00 EUR used, this adds 1.00" in lines[0]
    (words,) = budget_refusals(rules, [], held(1, currency="USD"), now_s=START_S)
    assert "priced in USD" in words


def test_device_hours_are_known_without_a_price() -> None:
    rules = in_force("{day: {device_hours: 2}, project: null, requester: null}")
    assert budget_refusals(rules, [held(1, cost=None)], held(2, cost=None), now_s=START_S) == []
    assert budget_refusals(rules, [held(1, cost=None)], held(2, cost=None, hours="1.01"), now_s=START_S)


@pytest.mark.parametrize(
    ("changes", "now_s", "counted"),
    [
        ({"run": False}, START_S + 3599, True),
        ({"run": False}, START_S + 3600, False),
        ({"run": True}, START_S + 9e6, True),
        ({"run": True, "settled_at_s": START_S, "actual_cost": "0.00", "actual_device_hours": "0.00"}, START_S, True),
    ],
)
def test_an_approval_that_expired_unused_holds_nothing(changes: dict[str, object], now_s: float, counted: bool) -> None:
    row = held(1, **changes)  # type: ignore[arg-type]  # the parametrised fields
    assert counts_now(row, now_s=now_s) is counted


def test_a_run_that_nobody_saw_end_counts_in_full() -> None:
    row = settled(held(1, cost="5.00"), elapsed_s=None, basis="nobody saw the run end", now_s=START_S)
    assert (row.actual_cost, row.actual_device_hours) == ("5.00", "1.00")
    assert "what was reserved counts in full" in row.basis
    assert settled(held(1, cost=None), elapsed_s=3600.0, basis="x", now_s=START_S).actual_cost is None


@pytest.mark.parametrize("elapsed_s", [float("inf"), float("nan"), 1e300, -1.0])
def test_a_time_that_no_job_can_have_run_counts_as_unknown(elapsed_s: float) -> None:
    row = settled(held(1, cost="5.00"), elapsed_s=elapsed_s, basis="a forged file", now_s=START_S)
    assert (row.actual_cost, row.actual_device_hours) == ("5.00", "1.00")
    assert held(1).spent_after(elapsed_s) is None


def test_budgets_of_an_edited_policy_file_still_hold() -> None:
    rules = in_force(DAY.format("0"), floor=True)
    assert budget_refusals(rules, [], held(1), now_s=START_S)
    assert budget_lines(rules, [], held(1), now_s=START_S)


def test_free_launches_are_counted_by_the_utc_day() -> None:
    rows = [held(1, free=True), held(2), held(3, free=True, at_s=START_S - DAY_S)]
    assert free_launches(rows, now_s=START_S) == 1
