"""The command that a human types to decide on a request."""

import shlex
from pathlib import Path

from agent_server.settings import Settings


def approve_command(settings: Settings, request_id: str, *, verb: str = "approve") -> str:
    """What the human types in a terminal of their own; it names the directories that are not the defaults."""
    fields = type(settings).model_fields
    parts = ["forerun"]
    for name, option in (("state_dir", "--state-dir"), ("keys_dir", "--keys-dir")):
        value: Path = getattr(settings, name)
        if value != fields[name].default:
            parts += [option, str(value)]
    return shlex.join([*parts, verb, request_id])
