"""A ceiling of cost: below price x wall time it counts, and without a price it is refused, not forgotten."""

from pathlib import Path

import pytest

from agent_server.procedure.asking import request_approval
from agent_server.procedure.starting import Started, launch_training
from runtime.layout import RunLayout
from runtime.run_files import read_order
from tests.fakes.approvals import cost_estimate
from tests.fakes.bench import Bench
from tests.fakes.policies import apply_file, write
from tools.domain.errors import Refused
from tools.domain.plan_state import PlanRecord
from tools.request_approval import shown_text

PRICES = "{currency: EUR, source: contract 17, as_of: 2026-01-01, prices: [{amount: 6.00, per: node_hour}]}\n"


def put(bench: Bench, *, ceiling: float | None, estimated: float | None) -> PlanRecord:
    """A plan of at most 600 s at 6.00 EUR an hour: 1.00 EUR."""
    plan = bench.plan()
    ceilings = plan.ceilings.model_copy(update={"cost": ceiling})
    return bench.put(plan.model_copy(update={"ceilings": ceilings}), cost=estimated)


@pytest.mark.parametrize(("ceiling", "most"), [(None, "1.00"), (0.4, "0.40"), (7.0, "1.00")])
def test_the_supervisor_is_told_the_lesser_of_ceiling_and_wall_time(
    bench: Bench, ceiling: float | None, most: str
) -> None:
    apply_file(bench.human, "prices", write(bench.project.parent / "prices.yaml", PRICES))
    record = put(bench, ceiling=ceiling, estimated=0.15)
    request = request_approval(bench.place, record.plan_id, "").request
    bench.human.decide(request)
    assert [held.cost for held in bench.store.reservations()] == [most]
    started = launch_training(bench.place, record.plan_id)
    assert isinstance(started, Started)
    order = read_order(RunLayout(Path(started.run.run_dir)))
    assert order is not None
    assert order.cost is not None
    assert (order.cost.most, order.cost.hourly_rate) == (most, "6.00")


def test_without_a_price_a_ceiling_is_refused_before_anybody_is_asked(bench: Bench) -> None:
    record = put(bench, ceiling=0.4, estimated=None)
    with pytest.raises(Refused, match=r"max_cost 0.4 cannot be enforced: the cost is unknown"):
        request_approval(bench.place, record.plan_id, "")
    assert bench.store.requests(limit=9) == []


def test_without_a_price_and_a_ceiling_the_run_has_its_other_limits(bench: Bench) -> None:
    started = launch_training(bench.place, bench.approved().plan_id)
    assert isinstance(started, Started)
    order = read_order(RunLayout(Path(started.run.run_dir)))
    assert order is not None
    assert (order.cost, order.wall_time_s) == (None, 600)


def test_an_estimate_above_the_ceiling_is_a_warning_to_the_human(bench: Bench) -> None:
    apply_file(bench.human, "prices", write(bench.project.parent / "prices.yaml", PRICES))
    warnings = []
    for estimated in (0.15, 0.9):
        record = put(bench, ceiling=0.4, estimated=0.15)
        request = request_approval(bench.place, record.plan_id, "").request
        dearer = request.model_copy(update={"estimate": cost_estimate(bench.plan(), cost=estimated)})
        warnings.append("above the ceiling of cost" in shown_text(record, dearer, spec=None, differences=()))
    assert warnings == [False, True]
