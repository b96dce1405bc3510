"""A sweep through the tools: which run is meant, and which are left."""

from typing import Any

import anyio
from mcp import Client

from agent_server.container import Container
from agent_server.mcp_api.server import build_server
from agent_server.procedure import Procedure
from agent_server.procedure.asking import request_approval
from tests.fakes.bench import Bench
from tools.domain.plan_state import PlanState

SWEEP = (("--lr", "0.1"), ("--lr", "0.2"))


def call(bench: Bench, *calls: tuple[str, dict[str, Any]]) -> list[tuple[bool, dict[str, Any], str]]:
    container = Container(bench.store, Procedure(bench.place), bench.place.reconciler)

    async def ask() -> list[tuple[bool, dict[str, Any], str]]:
        async with Client(build_server(lambda: container)) as client:
            found = []
            for name, arguments in calls:
                result = await client.call_tool(name, arguments)
                found.append((bool(result.is_error), dict(result.structured_content or {}), str(result.content)))
            return found

    return anyio.run(ask)


def test_a_launch_names_its_run_and_hears_which_are_left(bench: Bench) -> None:
    record = bench.record(PlanState.ESTIMATED, sweep=SWEEP)
    request = request_approval(bench.place, record.plan_id, "two rates").request
    bench.human.decide(request)
    launch = {"plan_id": record.plan_id}
    unnamed, truth, unlisted, first, again, last, work = call(
        bench,
        ("launch_training", launch),
        ("launch_training", launch | {"member": True}),
        ("launch_training", launch | {"member": 3}),
        ("launch_training", launch | {"member": 2}),
        ("launch_training", launch | {"member": 2}),
        ("launch_training", launch | {"member": 1}),
        ("list_work", {"kind": "runs"}),
    )
    assert unnamed[0]
    assert "member 1 to 2" in unnamed[2]
    assert truth[0]
    assert "neither true nor false" in truth[2]
    assert unlisted[0]
    assert (first[1]["member"], first[1]["already_launched"], first[1].get("members_left")) == (2, False, [1])
    assert "member=1" in first[1]["next"]
    assert (again[1]["run_id"], again[1]["already_launched"]) == (first[1]["run_id"], True)
    assert last[1]["member"] == 1
    assert not last[1].get("members_left")
    assert sorted(item["detail"] for item in work[1]["items"]) == ["full (member 1)", "full (member 2)"]
    ((_, monitored, text),) = call(bench, ("monitor_run", {"id": first[1]["run_id"]}))
    assert monitored["member"] == 2
    assert "member 2 of the sweep" in text


def test_the_request_for_a_sweep_says_what_comes_next(bench: Bench) -> None:
    record = bench.record(PlanState.ESTIMATED, sweep=SWEEP)
    ((error, asked, text),) = call(bench, ("request_approval", {"plan_id": record.plan_id, "reason": "three rates"}))
    assert not error, text
    assert "member=1" in asked["next"]
