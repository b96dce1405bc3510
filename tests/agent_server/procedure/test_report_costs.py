"""What the report bills: every run at the price of its own job, each second that ran, once."""

import json
from pathlib import Path

from agent_server.procedure.asking import request_approval
from agent_server.procedure.concluding import report
from agent_server.procedure.starting import Started, launch_training
from runtime.config.plan import ProcessLayout
from runtime.layout import RunLayout
from tests.fakes.bench import Bench
from tests.fakes.launcher import end_run
from tests.fakes.policies import apply_file, write
from tools.domain.plan_state import PlanRecord, PlanState
from tools.report.statement import body_of

PRICES = "{currency: EUR, source: contract 17, as_of: 2026-01-01, prices: [{amount: 2.50, per: device_hour}]}\n"


def ran(bench: Bench, record: PlanRecord, *, elapsed_s: float) -> str:
    """The id of this plan's run, approved and ended."""
    bench.human.decide(request_approval(bench.place, record.plan_id, "").request)
    started = launch_training(bench.place, record.plan_id)
    assert isinstance(started, Started)
    end_run(RunLayout(Path(started.run.run_dir)), elapsed_s=elapsed_s)
    return started.run.run_id


def test_an_earlier_run_on_more_devices_is_not_billed_at_the_price_of_this_one(bench: Bench) -> None:
    apply_file(bench.human, "prices", write(bench.project.parent / "prices.yaml", PRICES))
    plans = [bench.plan().model_copy(update={"layout": ProcessLayout(num_processes=n), "seed": n}) for n in (8, 1)]
    large = bench.put(plans[0], cost=0.5)  # 90 s on 8 devices
    before = ran(bench, large, elapsed_s=360.0)
    small = bench.put(plans[1], cost=0.0625)
    small = small.model_copy(update={"base_plan_id": large.plan_id})
    bench.store.save_plan(small, expect=PlanState.ESTIMATED)
    run_id = ran(bench, small, elapsed_s=360.0)
    written = report(bench.place, run_id, "")
    account = body_of(json.loads(Path(written.json_path).read_text()))["account"]
    costs = {line["run_id"]: line["cost"] for line in account["lines"]}
    assert costs == {run_id: 0.25, before: 2.0}
    assert (account["total_cost"], account["currency"]) == (2.25, "EUR")
