"""The demo's parts: what it counts, what makes it fail, what it reads off the screen."""

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.types import CallToolResult, ListToolsResult, TextContent, Tool

from examples.demo_agent import Agent, StepFailed, Task, walk
from examples.demo_human import ActedHuman, seen
from examples.demo_view import essential_lines, sparkline

TASK = Task(
    script="train.py",
    args=(),
    smoke_args=(),
    data=("train=/data/train.csv",),
    settings={},
    evaluation={},
    python="python3",
    answers={"seed": "0"},
)
GOOD: dict[str, dict[str, Any]] = {
    "inspect_environment": {},
    "validate_inputs": {"plan_id": "plan-1", "state": "drafted", "questions": [{"id": "seed"}]},
    "answer_questions": {"plan_id": "plan-1", "state": "valid"},
    "smoke_test": {"run_id": "run-1", "state": "succeeded", "smoke": {"verdict": "passed"}},
    "estimate_cost": {},
    "launch_training": {"status": "approval_required"},
    "request_approval": {"request_id": "req-1"},
}


class Server:
    """A client of a server that gives fixed answers."""

    instructions = "x" * 100

    def __init__(self, **changed: dict[str, Any] | str) -> None:
        self.answers = GOOD | changed

    async def list_tools(self) -> ListToolsResult:
        return ListToolsResult(tools=[Tool(name="smoke_test", input_schema={"type": "object"})])

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> CallToolResult:
        answer = self.answers[name]
        if isinstance(answer, str):
            return CallToolResult(content=[TextContent(type="text", text=answer)], is_error=True)
        return CallToolResult(content=[TextContent(type="text", text="ok")], structured_content=answer)


class NoHuman:
    async def approve(self, request_id: str) -> str:
        raise StepFailed("nobody answered")


def outcome(server: Server) -> str:
    agent = Agent(server)  # type: ignore[arg-type]  # a fake of the three things that are used

    async def go() -> None:
        await walk(agent, TASK, NoHuman(), show=lambda step, result: None)

    with pytest.raises(StepFailed) as failure:
        anyio.run(go)
    return str(failure.value)


def test_everything_a_model_reads_is_counted() -> None:
    agent = Agent(Server())  # type: ignore[arg-type]

    async def go() -> None:
        assert await agent.read_instructions() == ["smoke_test"]
        listed = agent.characters
        assert listed > 100
        await agent.call("smoke_test", plan_id="plan-1")
        assert agent.characters == listed + len(json.dumps(GOOD["smoke_test"]))

    anyio.run(go)
    assert (agent.num_calls, agent.num_waits) == (1, 0)


def test_walk_without_a_human_ends_at_the_approval() -> None:
    assert outcome(Server()) == "nobody answered"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"estimate_cost": "wrong_step: smoke first"}, "estimate_cost answered: wrong_step: smoke first"),
        ({"launch_training": {"run_id": "run-2"}}, "started a run that nobody had approved"),
        ({"smoke_test": GOOD["smoke_test"] | {"smoke": {"verdict": "not_shown"}}}, "did not pass: not_shown"),
        ({"smoke_test": GOOD["smoke_test"] | {"smoke": {}}}, "did not pass: succeeded"),
        ({"validate_inputs": {"plan_id": "p", "state": "drafted", "questions": [{"id": "lr"}]}}, "no answer for: lr"),
        ({"answer_questions": {"plan_id": "p", "state": "drafted"}}, "the plan is drafted"),
    ],
)
def test_walk_stops_where_a_step_went_wrong(changed: dict[str, Any], words: str) -> None:
    assert words in outcome(Server(**changed))


def test_human_gives_up_on_a_command_that_fails(tmp_path: Path) -> None:
    human = ActedHuman(tmp_path / "state", tmp_path / "keys")
    with pytest.raises(StepFailed, match=r"(?s)forerun approve req-0000000000 ended with \d.*no key|req-0000000000"):
        human.decide("req-0000000000")


def test_answers_are_read_off_the_screen() -> None:
    shown = "\x1b[1mCost:   unknown\x1b[0m\r\nRequest digest: abc (short: d187ef96)\r\n"
    assert seen(r"^Cost:\s+(unknown|[\d.]+)")(shown) == "unknown"
    assert seen(r"\(short: (\w+)\)")(shown) == "d187ef96"
    with pytest.raises(StepFailed, match="nothing on the screen"):
        seen(r"^Price: (\d+)")(shown)


def test_curve_falls_with_the_loss() -> None:
    assert sparkline([4.0, 3.0, 2.0, 1.0]) == "█▆▃▁"
    assert len(sparkline([float(i) for i in range(500)])) <= 60
    assert sparkline([1.0, 1.0]) == "▁▁"


def test_essential_lines_keep_what_was_typed_and_count_the_rest() -> None:
    lines = ["APPROVAL REQUEST r", "Data:", "  train", "Cost:   unknown", "Cost, as shown: unknown", "Passphrase:"]
    assert essential_lines(lines) == [
        "APPROVAL REQUEST r",
        "Cost:   unknown",
        "(and 2 more lines: code, data, environment, settings; all of it is in the audit log)",
        "Cost, as shown: unknown",
        "Passphrase:",
    ]
