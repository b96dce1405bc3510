"""The MCP server object, for both protocol eras; and serving it over stdin and stdout."""

import inspect
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.types import CallToolResult, InputRequiredResult, ToolAnnotations
from pydantic import ValidationError

from runtime.errors import ForerunError

from .failures import bad_arguments, crash, refusal, unknown_arguments, unknown_tool
from .instructions import INSTRUCTIONS, PROCEDURE
from .lifetime import last_words, run_until_the_client_is_gone
from .operations import Pending, start_thread
from .outgoing import clean_text
from .resources import add_resources
from .runs import RunTools
from .steps import PlanTools

if TYPE_CHECKING:
    from agent_server.container import Container
    from agent_server.settings import Settings
    from tools.domain.paths import AllowedRoots

# Frozen: names, order and meaning.
TOOL_NAMES = (
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
)
_READ_ONLY = frozenset(
    {"inspect_environment", "check_api", "monitor_run", "read_logs", "diagnose_failure", "list_work"}
)
_DESTRUCTIVE = frozenset({"cancel_run"})
_OUTPUT_SCHEMA = {"type": "object", "properties": {"next": {"type": "string"}}, "required": ["next"]}


Lifespan = Callable[[MCPServer[None]], AbstractAsyncContextManager[None]]


class ForerunServer(MCPServer[None]):
    """MCPServer whose refusals are all of one form."""

    def __init__(self, tools: list[Tool], *, lifespan: Lifespan | None = None) -> None:
        super().__init__(
            "forerun",
            title="forerun",
            instructions=INSTRUCTIONS,
            version=version("forerun"),
            tools=tools,
            log_level="WARNING",
            lifespan=lifespan,
        )
        self._input_schemas = {tool.name: tool.parameters for tool in tools}

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[None, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        """Run a tool; every error becomes an isError result that says what is wrong, allowed and next."""
        schema = self._input_schemas.get(name)
        if schema is None:
            return refusal(unknown_tool(name, TOOL_NAMES))
        unknown = sorted(set(arguments) - set(schema["properties"]))
        if unknown:
            return refusal(unknown_arguments(name, unknown, schema))
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            cause = error.__cause__
            if isinstance(cause, ForerunError):
                return refusal(cause)
            if isinstance(cause, ValidationError) and type(error) is ToolError:
                return refusal(bad_arguments(name, cause, schema))
            return crash(name, cause or error)


def build_server(container: "Callable[[], Container]", *, lifespan: Lifespan | None = None) -> ForerunServer:
    """The server with its tools, resources and prompt. `container` is called at the first tool call, not here."""
    pending: Pending[Any] = Pending()
    plans, runs = PlanTools(container, pending), RunTools(container, pending)
    tools = [_tool(name, getattr(plans, name, None) or getattr(runs, name)) for name in TOOL_NAMES]
    server = ForerunServer(tools, lifespan=lifespan)
    add_resources(server, container)

    @server.prompt(name="procedure", description="The six steps, for one training task")
    def procedure(task: str = "the model") -> str:
        return PROCEDURE.format(task=clean_text(task))

    return server


def serve(settings: "Settings", roots: "AllowedRoots") -> None:
    """Serve these settings over stdio until the client is gone."""

    def build() -> "Container":
        from agent_server.container import build as build_container  # deferred: the store, SQLAlchemy, crypto
        from agent_server.upkeep import Upkeep

        container = build_container(settings, roots)
        upkeep = Upkeep(container.store, container.reconciler, settings)
        start_thread(lambda: upkeep.keep(threading.Event()), name="forerun-upkeep")
        return container

    run_until_the_client_is_gone(build_server(_once(build), lifespan=last_words))


def _once(build: "Callable[[], Container]") -> "Callable[[], Container]":
    lock = threading.Lock()
    made: list[Container] = []

    def get() -> "Container":
        with lock:
            if not made:
                made.append(build())
            return made[0]

    return get


def _tool(name: str, step: Callable[..., Any]) -> Tool:
    tool = Tool.from_function(
        step,
        name=name,
        description=inspect.getdoc(step),
        annotations=ToolAnnotations(
            read_only_hint=name in _READ_ONLY, destructive_hint=None if name in _READ_ONLY else name in _DESTRUCTIVE
        ),
    )
    tool.parameters = _slim(tool.parameters) | {"additionalProperties": False}
    tool.fn_metadata.output_schema = _OUTPUT_SCHEMA
    return tool


def _slim(schema: dict[str, Any]) -> dict[str, Any]:
    """Without the titles that pydantic makes of the names: they cost an agent tokens and say nothing."""
    slim = {name: value for name, value in schema.items() if name != "title"}
    slim["properties"] = {
        name: {key: value for key, value in described.items() if key != "title"}
        for name, described in schema.get("properties", {}).items()
    }
    return slim
