"""What a client sees before any run: the tools, their schemas, the instructions, and how wrong calls are refused."""

import json
import subprocess
import sys
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.types import TextContent

from agent_server.mcp_api.instructions import INSTRUCTIONS
from agent_server.mcp_api.server import TOOL_NAMES, build_server
from tools.domain.errors import Refused

CHARACTERS_PER_TOKEN = 4
FROZEN = [
    "inspect_environment",
    "check_api",
    "validate_inputs",
    "answer_questions",
    "smoke_test",
    "estimate_cost",
    "request_approval",
    "launch_training",
    "monitor_run",
    "read_logs",
    "cancel_run",
    "diagnose_failure",
    "verify_metrics",
    "provenance_report",
    "list_work",
]
HEAVY = ("torch", "sqlalchemy", "alembic", "sklearn", "scipy", "pyarrow", "numpy", "psutil", "jinja2", "yaml")
MODES = ("auto", "legacy")


class NoContainer:
    """A container that cannot be built: whatever asks for it has gone too far."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error or AssertionError("the container was built")

    def __call__(self) -> Any:
        raise self.error


def listed() -> list[dict[str, Any]]:
    async def ask() -> list[dict[str, Any]]:
        async with Client(build_server(NoContainer())) as client:
            tools = (await client.list_tools()).tools
            return [tool.model_dump(by_alias=True, exclude_none=True, mode="json") for tool in tools]

    return anyio.run(ask)


def called(name: str, arguments: dict[str, Any], *, error: BaseException | None = None, mode: str = "auto") -> Any:
    async def ask() -> Any:
        async with Client(build_server(NoContainer(error)), mode=mode) as client:  # type: ignore[arg-type]  # a plain str
            return await client.call_tool(name, arguments)

    return anyio.run(ask)


def text_of(result: Any) -> str:
    assert result.is_error
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


def test_the_fifteen_tools_are_frozen_in_name_and_order() -> None:
    assert [tool["name"] for tool in listed()] == FROZEN
    assert list(TOOL_NAMES) == FROZEN


def test_schemas_are_flat_described_and_portable() -> None:
    for tool in listed():
        schema = tool["inputSchema"]
        assert schema["type"] == "object", tool["name"]
        assert schema["additionalProperties"] is False
        for name, described in schema["properties"].items():
            assert described.get("description"), f"{tool['name']}.{name} is not described"
            assert described["type"] in ("string", "integer", "number", "array"), f"{tool['name']}.{name}"
            if described["type"] == "array":
                assert described["items"] == {"type": "string"}
        text = json.dumps(schema)
        for word in ("anyOf", "oneOf", "allOf", "$ref", "null"):
            assert word not in text, f"{tool['name']}: {word}"
        assert tool["outputSchema"]["type"] == "object"
        assert tool["description"]


def test_the_list_of_tools_stays_within_its_tokens() -> None:
    assert len(json.dumps(listed())) / CHARACTERS_PER_TOKEN <= 4500


def test_no_tool_can_approve() -> None:
    for tool in listed():
        assert not [name for name in tool["inputSchema"]["properties"] if "approv" in name], tool["name"]
    assert "approve" not in FROZEN


def test_the_instructions_say_the_order_the_ids_and_the_rules_in_the_space_that_clients_give() -> None:
    assert len(INSTRUCTIONS) <= 2048
    order = [INSTRUCTIONS.index(name) for name in FROZEN if name in INSTRUCTIONS.split("\n\n")[1]]
    assert order == sorted(order)
    words = ("plan-", "req-", "run-", "verbatim", "END YOUR TURN", "forerun wait", "source=assumption", "base_plan_id")
    for word in (*words, "untrusted", "not verified", "check_api", "`next`"):
        assert word in INSTRUCTIONS, word


def test_the_server_is_built_without_any_heavy_import() -> None:
    code = (
        "import sys\n"
        "from agent_server.mcp_api.server import build_server\n"
        "build_server(lambda: None)\n"
        f"print(sorted(set({HEAVY!r}) & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("mode", MODES)
def test_an_unknown_tool_is_refused_with_the_list(mode: str) -> None:
    text = text_of(called("start_training", {}, mode=mode))
    assert "'start_training'" in text
    assert "launch_training" in text
    assert "Next:" in text


def test_an_unknown_argument_is_refused_and_never_dropped() -> None:
    text = text_of(called("launch_training", {"plan_id": "plan-0123456789", "approved": True}))
    assert "'approved'" in text
    assert "Allowed: plan_id" in text


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("smoke_test", {}, ["plan_id: Field required", "Next: call smoke_test"]),
        ("monitor_run", {"id": "run-0123456789", "wait_s": 60}, ["wait_s", "25", "(seen: 60)"]),
        ("monitor_run", {"id": 7, "wait_s": "x"}, ["id:", "wait_s:"]),
        ("answer_questions", {"plan_id": "p", "answers": ["a=b"], "source": "me"}, ["user", "assumption", "'me'"]),
        ("answer_questions", {"plan_id": "p", "answers": ["no equals"], "source": "user"}, ["name=value", "no equals"]),
        ("validate_inputs", {"settings": ["seed=1", "seed=2"]}, ["twice"]),
        ("read_logs", {"run_id": "run-0123456789", "rank": -1}, ["rank"]),
    ],
)
def test_wrong_arguments_are_all_named_with_what_is_allowed(
    tool: str, arguments: dict[str, Any], words: list[str]
) -> None:
    text = text_of(called(tool, arguments))
    assert text.startswith("invalid_input: ")
    for word in (*words, "Allowed:", "Next:"):
        assert word in text, text
    assert "pydantic" not in text


def test_a_refusal_keeps_its_words_and_hides_escapes_and_secrets() -> None:
    error = Refused("plan \x1b[2J is off, token=hf_abcdefghijklmnopqrstuv", allowed="an approval", next_step="ask")
    text = text_of(called("launch_training", {"plan_id": "plan-0123456789"}, error=error))
    assert text.startswith("refused: plan \\x1b[2J is off")
    assert "hf_abcdefghijklmnopqrstuv" not in text
    assert text.endswith("Allowed: an approval. Next: ask.")


@pytest.mark.parametrize("mode", MODES)
def test_a_bug_is_logged_under_a_reference_and_nothing_of_it_reaches_the_client(
    mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    text = text_of(called("list_work", {}, error=RuntimeError("secret internals"), mode=mode))
    assert "secret internals" not in text
    assert text.startswith("internal error ")
    reference = text.split()[2]
    assert reference in caplog.text
    assert "secret internals" in caplog.text


def test_the_prompt_holds_the_six_steps() -> None:
    async def ask() -> str:
        async with Client(build_server(NoContainer())) as client:
            prompt = await client.get_prompt("procedure", {"task": "the digits"})
            content = prompt.messages[0].content
            assert isinstance(content, TextContent)
            return content.text

    text = anyio.run(ask)
    assert "Train the digits" in text
    for number in range(1, 7):
        assert f"\n{number}. " in text
