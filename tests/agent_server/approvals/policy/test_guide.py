"""docs/policy.md tells the truth: the default is the shipped file, and every worked example comes out as written."""

from decimal import Decimal
from pathlib import Path

import pytest

from agent_server.approvals.policy.assess import Facts, assess
from agent_server.approvals.policy.budgets import budget_refusals
from agent_server.approvals.policy.check import settled
from agent_server.approvals.policy.device_use import DeviceUse
from agent_server.approvals.policy.documents import parse_policy, parse_prices
from agent_server.approvals.policy.in_force import PolicyInForce, PricesInForce, shipped_text
from runtime.config.plan import ProcessLayout
from tests.agent_server.approvals.policy.test_budgets import held
from tests.fakes.approvals import START_S, cost_estimate, training_plan
from tools.domain.approval import Assessment

GUIDE = (Path(__file__).parents[4] / "docs" / "policy.md").read_text()
BLOCKS = [block.partition("```")[0] for block in GUIDE.split("```yaml\n")[1:]]
SHIPPED, FREE_TIER, PRICES, LAB = BLOCKS


def lab() -> PolicyInForce:
    read = parse_policy(LAB)
    assert read.model is not None, read.findings
    return PolicyInForce(read.model, "lab-1@0", "", LAB)


def judged(device: str, processes: int, hours: float, path: str, *argv: str) -> Assessment:
    base = training_plan(argv=argv)
    plan = base.model_copy(
        update={
            "layout": ProcessLayout(num_processes=processes, device=device),
            "ceilings": base.ceilings.model_copy(update={"wall_time_s": hours * 3600}),
            "data": (base.data[0].model_copy(update={"path": path}),),
        }
    )
    prices = parse_prices(PRICES, now_s=START_S)
    assert prices.model is not None, prices.findings
    cost = 0.5 if device == "cuda" else None
    use = DeviceUse("free" if device == "cuda" else "none_needed", "")
    facts = Facts(plan, cost_estimate(plan, cost=cost), True, PricesInForce(prices.model, "prices@0"), use)
    return assess(lab(), facts, free_today=0)


def test_the_default_in_the_guide_is_the_shipped_file() -> None:
    assert shipped_text() == SHIPPED


def test_the_free_tier_of_the_guide_is_the_labs() -> None:
    assert (
        parse_policy(
            LAB.replace("free_tier: {max_cost: 1.00, max_device_hours: 0.5, max_per_day: 5}\n", FREE_TIER)
        ).model
        == lab().policy
    )


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ("1 GPU, 20 min, `/data/public/a.csv`", judged("cuda", 1, 1 / 3, "/data/public/a.csv")),
        ("the same with `--push_to_hub`", judged("cuda", 1, 1 / 3, "/data/public/a.csv", "--push_to_hub")),
        ("8 GPUs, 6 h, `/data/public/a.csv`", judged("cuda", 8, 6, "/data/public/a.csv")),
        ("16 GPUs, 6 h, `/data/public/a.csv`", judged("cuda", 16, 6, "/data/public/a.csv")),
        ("8 GPUs, 1 h, `/data/patients/a.csv`", judged("cuda", 8, 1, "/data/patients/a.csv")),
        ("8 GPUs, 1 h, `/home/me/a.csv`", judged("cuda", 8, 1, "/home/me/a.csv")),
        ("CPU only, 1 h, `/data/public/a.csv`", judged("cpu", 1, 1, "/data/public/a.csv")),
    ],
)
def test_each_row_of_the_worked_example(row: str, found: Assessment) -> None:
    (line,) = [line for line in GUIDE.splitlines() if line.startswith(f"| {row} |")]
    _, _, most, needs, _, _ = (cell.strip() for cell in line.split("|"))
    if found.most_cost is None:
        assert most == "unknown"
    else:
        assert most == f"{round(Decimal(found.most_cost), 2)} EUR"
    assert needs == ("nobody" if found.level is None else found.level.value)


def test_the_arithmetic_of_the_budgets_in_the_guide() -> None:
    first, second, third = (held(n, cost="120.00", hours="48.00", hourly_rate="20.00") for n in (1, 2, 3))
    rules = lab()
    assert budget_refusals(rules, [first], second, now_s=START_S) == []
    (words,) = budget_refusals(rules, [first, second], third, now_s=START_S)
    assert "240.00 are used or reserved" in words
    ended = settled(first, elapsed_s=3600.0, basis="measured", now_s=START_S)
    assert ended.actual_cost == "20.00"
    assert budget_refusals(rules, [ended, second], third, now_s=START_S) == []
    assert budget_refusals(rules, [ended, second], held(4, cost="160.00", hours="1.00"), now_s=START_S) == []
    assert budget_refusals(rules, [ended, second], held(4, cost="160.01", hours="1.00"), now_s=START_S)


def test_a_launch_of_unknown_cost_is_refused_by_the_days_budget() -> None:
    assert "unknown" in budget_refusals(lab(), [], held(1, cost=None), now_s=START_S)[0]
