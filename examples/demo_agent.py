"""The agent's part of the demo: the whole procedure over MCP, each call counted as a model would pay for it."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from mcp import Client
from mcp.types import CallToolResult, TextContent

CHARACTERS_PER_TOKEN = 4
WAITING = "monitor_run"
RUN_ENDED = frozenset({"succeeded", "failed", "cancelled", "stopped_at_limit", "lost"})

Result = dict[str, Any]
Show = Callable[[str, Result], None]


class StepFailed(Exception):
    """A step of the procedure did not come out as it should; the text says which and why."""


@dataclass(frozen=True)
class Task:
    """What the user asked the agent to train, in the words of validate_inputs."""

    script: str
    args: tuple[str, ...]
    smoke_args: tuple[str, ...]
    data: tuple[str, ...]
    settings: dict[str, str]
    evaluation: dict[str, str]
    python: str
    answers: dict[str, str] = field(default_factory=dict)
    reason: str = ""


class Human(Protocol):
    """The one who approves."""

    async def approve(self, request_id: str) -> str:
        """Look at the request and approve it; returns what was shown."""
        ...


@dataclass
class Agent:
    """Calls tools through an MCP client. `characters` is everything that a model would have read."""

    client: Client
    wait_s: int = 25
    characters: int = 0
    calls: list[str] = field(default_factory=list)

    @property
    def num_calls(self) -> int:
        """Calls beside waits."""
        return sum(name != WAITING for name in self.calls)

    @property
    def num_waits(self) -> int:
        return sum(name == WAITING for name in self.calls)

    @property
    def tokens(self) -> int:
        return self.characters // CHARACTERS_PER_TOKEN

    async def read_instructions(self) -> list[str]:
        """Take in the server's instructions and its list of tools; returns their names."""
        tools = await self.client.list_tools()
        self.characters += len(tools.model_dump_json(by_alias=True, exclude_none=True))
        self.characters += len(self.client.instructions or "")
        return [tool.name for tool in tools.tools]

    async def call(self, tool: str, **arguments: Any) -> Result:
        """The structured result of a tool.

        Raises:
            StepFailed: the tool answered with an error.
        """
        answer = await self._call(tool, arguments)
        if answer.is_error:
            raise StepFailed(f"{tool} answered: {_text(answer)}")
        result = answer.structured_content
        if not isinstance(result, dict):
            raise StepFailed(f"{tool} gave no structured result")
        return result

    async def wait(self, run_id: str, show: Callable[[Result], None]) -> Result:
        """Call monitor_run until the run has ended; each answer is shown."""
        while True:
            progress = await self.call(WAITING, id=run_id, wait_s=self.wait_s)
            show(progress)
            if progress["state"] in RUN_ENDED:
                return progress

    async def _call(self, tool: str, arguments: dict[str, Any]) -> CallToolResult:
        answer = await self.client.call_tool(tool, arguments)
        self.calls.append(tool)
        structured = json.dumps(answer.structured_content or {}, ensure_ascii=False)
        self.characters += max(len(_text(answer)), len(structured))
        return answer


def _text(answer: CallToolResult) -> str:
    return "\n".join(block.text for block in answer.content if isinstance(block, TextContent))


@dataclass
class Walked:
    """What came out: the last result of each step, by the step's name, and the losses that were seen on the way."""

    results: dict[str, Result] = field(default_factory=dict)
    progress: list[Result] = field(default_factory=list)

    @property
    def run_id(self) -> str:
        return str(self.results["launch"]["run_id"])


async def walk(agent: Agent, task: Task, human: Human, *, show: Show) -> Walked:
    """The whole procedure for one task; `show` is called with each step's name and result as it is done.

    Raises:
        StepFailed: a step came out otherwise than a careful agent can go on from.
    """
    walked = Walked()

    def done(step: str, result: Result) -> Result:
        walked.results[step] = result
        show(step, result)
        return result

    data_paths = [entry.partition("=")[2] for entry in task.data]
    done("environment", await agent.call("inspect_environment", python=task.python, paths=data_paths))
    plan = await _settle(agent, task, done)
    plan_id = plan["plan_id"]
    await _smoke(agent, plan_id, done)
    done("estimate", await agent.call("estimate_cost", plan_id=plan_id))
    early = await agent.call("launch_training", plan_id=plan_id)
    _require(
        early.get("status") == "approval_required", "launch_training started a run that nobody had approved", early
    )
    done("gate", early)
    request = done("request", await agent.call("request_approval", plan_id=plan_id, reason=task.reason))
    done("approval", {"shown": await human.approve(request["request_id"])})
    launched = done("launch", await agent.call("launch_training", plan_id=plan_id))
    _require("run_id" in launched, "the approved plan did not launch", launched)

    def watch(progress: Result) -> None:
        walked.progress.append(progress)
        show("progress", progress)

    ended = done("ended", await agent.wait(launched["run_id"], watch))
    _require(ended["state"] == "succeeded", f"the run is {ended['state']}", ended)
    await _conclude(agent, launched["run_id"], done)
    return walked


Done = Callable[[str, Result], Result]


async def _settle(agent: Agent, task: Task, done: Done) -> Result:
    plan = done(
        "inputs",
        await agent.call(
            "validate_inputs",
            script=task.script,
            args=list(task.args),
            data=list(task.data),
            python=task.python,
            settings=pairs(task.settings),
            smoke_args=list(task.smoke_args),
            evaluation=pairs(task.evaluation),
        ),
    )
    questions = [question["id"] for question in plan.get("questions", ())]
    unknown = [question for question in questions if question not in task.answers]
    _require(not unknown, f"questions that the user has no answer for: {', '.join(unknown)}", plan)
    if questions:
        answers = pairs({question: task.answers[question] for question in questions})
        call = agent.call("answer_questions", plan_id=plan["plan_id"], answers=answers, source="user")
        plan = done("answers", await call)
    _require(plan["state"] == "valid", f"the plan is {plan['state']}", plan)
    return plan


async def _smoke(agent: Agent, plan_id: str, done: Done) -> None:
    run = await agent.call("smoke_test", plan_id=plan_id)
    if run["state"] not in RUN_ENDED:
        run = await agent.wait(run["run_id"], lambda _: None)
    done("smoke", run)
    verdict = run.get("smoke", {}).get("verdict", run["state"])
    _require(verdict == "passed", f"the smoke run did not pass: {verdict}", run)


async def _conclude(agent: Agent, run_id: str, done: Done) -> None:
    verified = await agent.call("verify_metrics", run_id=run_id)
    while verified.get("state") == "verifying":
        await agent.call(WAITING, id=run_id, wait_s=agent.wait_s)
        verified = await agent.call("verify_metrics", run_id=run_id)
    done("verification", verified)
    _require(verified["verdict"] == "verified", f"the metrics are {verified['verdict']}", verified)
    done("report", await agent.call("provenance_report", run_id=run_id, summary=summary_of(verified)))


def pairs(values: dict[str, str]) -> list[str]:
    """name=value for each, as the tools take them."""
    return [f"{name}={value}" for name, value in values.items()]


def summary_of(verified: Result) -> str:
    """A sentence a number, each of them the server's."""
    sentences = []
    for metric in verified["metrics"]:
        interval = f"95% interval {metric['low']:.4f} to {metric['high']:.4f}"
        sentences.append(f"{metric['name']} on the hold-out is {metric['value']:.4f} ({interval}, n={metric['n']}).")
    for row in verified.get("comparisons", ()):
        sentences.append(f"{row['metric']} of the {row['baseline']} baseline: {row['value']:.4f}.")
    return " ".join(sentences)


def _require(condition: bool, otherwise: str, result: Result) -> None:
    if not condition:
        raise StepFailed(f"{otherwise}. The server said: {json.dumps(result, ensure_ascii=False)[:2000]}")
