"""What all tools share: the container, made at the first call, and work that may outlast the call that began it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from mcp.types import CallToolResult
from pydantic import Field

from .operations import Pending, in_thread
from .reply import Reply

if TYPE_CHECKING:
    from agent_server.container import Container
    from agent_server.procedure import Procedure

T = TypeVar("T")
REQUESTER = "agent over MCP"
ANSWER_WITHIN_S = 22.0

PlanId = Annotated[str, Field(description="a plan-... id")]
RunId = Annotated[str, Field(description="a run-... id")]


class ToolSet:
    """The tools of one group are its public methods."""

    def __init__(self, container: "Callable[[], Container]", pending: Pending[Any]) -> None:
        self._container = container
        self._pending = pending

    async def _procedure(self) -> "Procedure":
        return await in_thread(lambda: self._container().procedure)

    async def _bounded(self, tool: str, key: str, work: Callable[[], T], reply: Callable[[T], Reply]) -> CallToolResult:
        """The reply to the work's result; if it takes too long, to call again: the same work is then found by `key`."""
        found = await self._pending.run(f"{tool} {key}", work, wait_s=ANSWER_WITHIN_S)
        if found is None:
            step = f"call {tool} again with the same arguments"
            return Reply(f"{tool} is still at work.", step, {"state": "working", "next_poll_s": 5}).result()
        return reply(found).result()
