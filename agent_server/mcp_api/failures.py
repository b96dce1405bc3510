"""Errors become tool results that an agent can act on; nothing of an unexpected error reaches the client."""

import logging
import secrets
from typing import Any

from mcp.types import CallToolResult, TextContent
from pydantic import ValidationError

from runtime.errors import ForerunError
from tools.domain.errors import InvalidInput

from .outgoing import clean_text

_log = logging.getLogger("forerun")
_MAX_CHARACTERS = 6_000


def refusal(error: ForerunError) -> CallToolResult:
    """The isError result for an error raised on purpose: its code, what was wrong, what is allowed, what is next."""
    text = f"{error.code}: {error}"
    if not error.next_step:
        text += " Next: list_work shows where things stand."
    return _failed(text)


def crash(tool: str, error: BaseException) -> CallToolResult:
    """The isError result for a bug: a reference that leads to the traceback on stderr, and nothing else."""
    reference = secrets.token_hex(4)
    _log.error("internal error %s in %s", reference, tool, exc_info=error)
    return _failed(
        f"internal error {reference} in {tool}: the traceback is on the server's stderr. "
        "Nothing is known to have changed. Next: list_work shows where things stand; tell the user the reference."
    )


def unknown_tool(name: str, known: tuple[str, ...]) -> InvalidInput:
    """The refusal of a call to a tool that does not exist."""
    return InvalidInput(f"no tool {name!r}", allowed=", ".join(known), next_step="call one of these")


def unknown_arguments(tool: str, names: list[str], schema: dict[str, Any]) -> InvalidInput:
    """The refusal of arguments that the tool does not have: they are never silently dropped."""
    known = ", ".join(schema.get("properties", {})) or "no arguments"
    return InvalidInput(
        f"{tool} has no argument {', '.join(map(repr, names))}",
        allowed=known,
        next_step=f"call {tool} with these arguments only",
    )


def bad_arguments(tool: str, error: ValidationError, schema: dict[str, Any]) -> InvalidInput:
    """The refusal of arguments of a wrong type or outside their range; every one is named at once."""
    problems, allowed = [], []
    properties: dict[str, dict[str, Any]] = schema.get("properties", {})
    for item in error.errors(include_url=False):
        name = str(item["loc"][0]) if item["loc"] else "arguments"
        seen = "" if item["type"] == "missing" else f" (seen: {_short(item['input'])})"
        problems.append(f"{name}: {item['msg']}{seen}")
        described = properties.get(name, {})
        kind = " or ".join(described["enum"]) if "enum" in described else described.get("type", "value")
        hint = f"{name} ({kind}): {described.get('description', '')}"
        if hint not in allowed:
            allowed.append(hint)
    return InvalidInput(
        f"wrong arguments for {tool}: {'; '.join(problems)}",
        allowed="; ".join(allowed),
        next_step=f"call {tool} again with these mended",
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _failed(text: str) -> CallToolResult:
    cleaned = clean_text(text)
    if len(cleaned) > _MAX_CHARACTERS:
        cleaned = cleaned[:_MAX_CHARACTERS] + " [cut]"
    return CallToolResult(content=[TextContent(type="text", text=cleaned)], is_error=True)
