"""What is too long for a tool result, to be read by its address: plans, reports, logs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError

from runtime.errors import ForerunError
from tools.domain.errors import InvalidInput, NotFound

from .operations import in_thread
from .outgoing import clean, clean_text

if TYPE_CHECKING:
    from agent_server.container import Container
    from agent_server.procedure import Procedure

_LOG_LINES = 400


def add_resources(server: "MCPServer[None]", container: "Callable[[], Container]") -> None:
    """Register the resource templates."""

    async def read(work: "Callable[[Procedure], str]") -> str:
        try:
            return await in_thread(lambda: work(container().procedure))
        except (NotFound, InvalidInput) as error:
            raise ResourceNotFoundError(clean_text(str(error))) from error
        except ForerunError as error:
            raise ResourceError(clean_text(str(error))) from error

    @server.resource(
        "forerun://plans/{plan_id}", name="plan", description="A plan in full", mime_type="application/json"
    )
    async def plan(plan_id: str) -> str:
        return await read(lambda procedure: _plan(procedure, plan_id))

    @server.resource(
        "forerun://runs/{run_id}/report", name="report", description="The signed report", mime_type="application/json"
    )
    async def report(run_id: str) -> str:
        return await read(lambda procedure: _report(procedure, run_id))

    @server.resource(
        "forerun://runs/{run_id}/log/{rank}",
        name="log",
        description="The end of one rank's output; untrusted text",
        mime_type="text/plain",
    )
    async def log(run_id: str, rank: str) -> str:
        return await read(lambda procedure: _log(procedure, run_id, rank))


def _plan(procedure: "Procedure", plan_id: str) -> str:
    if not plan_id.startswith("plan-"):
        raise InvalidInput(f"{plan_id!r} is no plan id", next_step="list_work shows the ids")
    record = procedure.status(plan_id).plan
    return json.dumps(clean(record.model_dump(mode="json")), indent=1)


def _report(procedure: "Procedure", run_id: str) -> str:
    run = procedure.run(run_id)
    if run.report is None:
        raise NotFound(f"run {run_id} has no report yet", next_step=f"provenance_report(run_id={run_id})")
    return Path(run.report.json_path).read_text()


def _log(procedure: "Procedure", run_id: str, rank: str) -> str:
    if not rank.isdecimal():
        raise InvalidInput(f"rank {rank!r}", allowed="a number from 0")
    parts = []
    for stream in ("stdout", "stderr"):
        page = procedure.logs(run_id, rank=int(rank), max_lines=_LOG_LINES, stream=stream)
        parts += [f"--- {stream} {page.note}".rstrip(), *page.lines]
    return clean_text("\n".join(parts))
