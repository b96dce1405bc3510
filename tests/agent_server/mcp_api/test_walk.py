"""The whole procedure through the SDK's own client over stdio, every part real, and what it costs to read."""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.types import TextContent

from tests.agent_server.mcp_api.conftest import Site
from tests.fakes.wire import server_argv

pytestmark = pytest.mark.multiprocess

CHARACTERS_PER_TOKEN = 4
SCRIPT = """
import argparse, csv, json, os, struct
parser = argparse.ArgumentParser()
parser.add_argument("--train", required=True)
parser.add_argument("--holdout", required=True)
parser.add_argument("--steps", type=int, default=30)
options = parser.parse_args()
rows = list(csv.DictReader(open(options.train)))
weight = 0.0
for step in range(1, options.steps + 1):
    row = rows[step % len(rows)]
    error = weight * float(row["x"]) - float(row["label"])
    weight -= 0.3 * error * float(row["x"])
    print(json.dumps({"step": step, "loss": (weight - 2.0) ** 2}), flush=True)
header = json.dumps({"weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
with open("checkpoint.safetensors", "wb") as handle:
    handle.write(struct.pack("<Q", len(header)) + header + struct.pack("<f", weight))
with open("predictions.csv", "w") as handle:
    handle.write("id,prediction\\n")
    for row in csv.DictReader(open(options.holdout)):
        handle.write(f"{row['id']},{weight * float(row['x'])}\\n")
"""


class Reader:
    """An agent that pays for every character: text and structured content both."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.sizes: dict[str, int] = {}
        self.calls = 0

    async def start(self) -> None:
        listed = await self.client.list_tools()
        self.sizes["tools"] = len(listed.model_dump_json(by_alias=True, exclude_none=True))
        self.sizes["instructions"] = len(self.client.instructions or "")

    async def __call__(self, tool: str, **arguments: Any) -> dict[str, Any]:
        answer = await self.client.call_tool(tool, arguments)
        (block,) = answer.content
        assert isinstance(block, TextContent)
        assert not answer.is_error, f"{tool}: {block.text}"
        found = answer.structured_content
        assert isinstance(found, dict)
        assert found["next"], tool
        assert f"Next: {found['next']}" in block.text
        self.calls += tool != "monitor_run"
        size = len(block.text) + len(json.dumps(found, ensure_ascii=False))
        self.sizes[tool] = self.sizes.get(tool, 0) + size
        return found

    @property
    def tokens(self) -> float:
        return sum(self.sizes.values()) / CHARACTERS_PER_TOKEN


def project(site: Site) -> dict[str, Any]:
    """A regression on real rows of x and label = 2x, plus a little."""
    site.project.joinpath("train.py").write_text(SCRIPT)
    for name, start, rows in (("train", 0, 40), ("holdout", 100, 30)):
        lines = ["id,x,label"]
        for number in range(start, start + rows):
            x = (number * 7 % 13) / 13 + number * 0.001
            lines.append(f"{number},{x:.4f},{2 * x + (number % 5 - 2) * 0.01:.4f}")
        site.project.joinpath(f"{name}.csv").write_text("\n".join(lines) + "\n")
    data = {name: str(site.project / f"{name}.csv") for name in ("train", "holdout")}
    files = [text for name, path in data.items() for text in (f"--{name}", path)]
    return {
        "script": "train.py",
        "args": [*files, "--steps", "60"],
        "smoke_args": [*files, "--steps", "12"],
        "data": [f"{name}={path}" for name, path in data.items()],
        "python": sys.executable,
        "settings": ["num_processes=1", "device=cpu", "wall_time_s=300", "smoke_steps=8"],
        "evaluation": [
            "predictions=work/predictions.csv",
            "holdout=holdout",
            "train=train",
            "task=regression",
            "metrics=rmse,mae",
            "baselines=mean",
        ],
    }


async def walk(site: Site, client: Client) -> Reader:
    agent = Reader(client)
    await agent.start()
    inputs = project(site)
    await agent("inspect_environment", python=sys.executable, paths=["train.csv", "holdout.csv"])
    names = (await agent("check_api", names=["csv.DictReader", "csv.DictRaeder"], python=sys.executable))["names"]
    assert [name["found"] for name in names] == [True, False]
    plan = await agent("validate_inputs", **inputs)
    same = await agent("validate_inputs", **inputs)
    assert same["plan_id"] == plan["plan_id"]
    if plan["state"] == "drafted":
        answers = [f"{question['id']}=none" for question in plan["questions"]]
        plan = await agent("answer_questions", plan_id=plan["plan_id"], answers=answers, source="user")
    assert plan["state"] == "valid", plan
    plan_id = plan["plan_id"]
    smoke = await agent("smoke_test", plan_id=plan_id)
    while smoke["state"] in ("launching", "running"):
        smoke = await agent("monitor_run", id=smoke["run_id"], wait_s=25)
    assert smoke["smoke"]["verdict"] == "passed", smoke
    assert "estimate_cost" in smoke["next"]
    estimate = await agent("estimate_cost", plan_id=plan_id)
    assert estimate["cost"] == "unknown"
    early = await agent("launch_training", plan_id=plan_id)
    assert early["status"] == "approval_required"
    request = await agent("request_approval", plan_id=plan_id, reason="to see whether it works")
    assert request["command"].startswith("forerun ")
    assert request["command"].endswith(f"approve {request['request_id']}")
    waiting = await agent("monitor_run", id=request["request_id"], wait_s=0)
    assert waiting["state"] == "requested"
    await anyio.to_thread.run_sync(site.decide, request["request_id"])
    run = await agent("launch_training", plan_id=plan_id)
    seen = await agent("monitor_run", id=run["run_id"], wait_s=25)
    while seen["state"] in ("launching", "running"):
        seen = await agent("monitor_run", id=run["run_id"], wait_s=25)
    assert seen["state"] == "succeeded", seen
    assert (seen["step"], seen["loss"] < 0.5) == (60, True)
    page = await agent("read_logs", run_id=run["run_id"], cursor="", pattern='"step": 60')
    assert len(page["lines"]) == 1
    verified = await agent("verify_metrics", run_id=run["run_id"])
    while verified.get("state") == "verifying":
        verified = await agent("verify_metrics", run_id=run["run_id"])
    assert verified["verdict"] == "verified", verified
    rmse = next(metric for metric in verified["metrics"] if metric["name"] == "rmse")
    assert rmse["low"] <= rmse["value"] <= rmse["high"]
    assert rmse["n"] == 30
    report = await agent("provenance_report", run_id=run["run_id"], summary=f"RMSE {rmse['value']}.")
    assert Path(report["html_path"]).is_file()
    assert report["not_verified"]
    resource = await client.read_resource(report["resource"])
    assert json.loads(resource.contents[0].text)  # type: ignore[union-attr]  # JSON is text
    log = await client.read_resource(f"forerun://runs/{run['run_id']}/log/0")
    assert '"step": 60' in log.contents[0].text  # type: ignore[union-attr]
    work = await agent("list_work")
    assert {plan_id, request["request_id"], run["run_id"]} <= {item["id"] for item in work["items"]}
    return agent


def test_the_whole_procedure_in_the_modern_era_within_its_tokens(site: Site) -> None:
    async def main() -> Reader:
        command, *arguments = server_argv(site.state, site.project)
        async with Client(StdioServerParameters(command=command, args=arguments, cwd="/")) as client:
            assert client.protocol_version == "2026-07-28"
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                return await walk(site, client)

    agent = anyio.run(main)
    assert agent.tokens <= 15_000, agent.sizes
    print({name: round(size / CHARACTERS_PER_TOKEN) for name, size in agent.sizes.items()}, round(agent.tokens))


def test_the_handshake_era_refuses_and_answers_alike(site: Site) -> None:
    async def main() -> None:
        command, *arguments = server_argv(site.state, site.project)
        parameters = StdioServerParameters(command=command, args=arguments, cwd="/")
        async with Client(parameters, mode="legacy") as client:
            assert client.protocol_version is not None
            assert client.protocol_version < "2026"
            agent = Reader(client)
            await agent.start()
            inputs = project(site)
            plan = await agent("validate_inputs", **inputs)
            assert plan["plan_id"]
            refused = await client.call_tool("launch_training", {"plan_id": plan["plan_id"]})
            assert refused.is_error
            assert isinstance(refused.content[0], TextContent)
            assert "Next:" in refused.content[0].text
            templates = await client.list_resource_templates()
            assert len(templates.resource_templates) == 3

    anyio.run(main)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"script": "trian.py"}, ["trian.py", "train.py"]),
        ({"script": "/etc/passwd"}, ["outside", "allowed roots"]),
        ({"args": ["--train", "train.csv", "--holdout", "holdout.csv", "--lr", "1"]}, ["--lr"]),
        ({"settings": ["num_processes=0", "device=cpu", "wall_time_s=300"]}, ["num_processes", "1"]),
        ({"data": ["train=nowhere.csv"]}, ["nowhere.csv"]),
        ({"data": ["train=train.csv", "holdout=holdout.csv", "all=x.csv"]}, ["all", "holdout"]),
    ],
)
def test_bad_inputs_are_errors_that_change_nothing(site: Site, change: dict[str, Any], words: list[str]) -> None:
    inputs = project(site) | change
    server = site.serve()
    result = server.tool("validate_inputs", **inputs)
    text = result["content"][0]["text"]
    assert result["isError"], text
    for word in (*words, "Next:"):
        assert word in text, text
    assert not server.data("list_work").get("items")
