"""Several machines: what the options say of this one's place among them."""

import math

from ..errors import ConfigurationError
from .order import NodeGroup
from .resolve import Resolved

DEFAULT_PORT = 29500
DEFAULT_DEADLINE_S = 300.0
_DEADLINE_KEYS = ("timeout", "join_timeout")


def node_group(resolved: Resolved) -> NodeGroup | None:
    """This machine's place; None where there is one machine alone.

    Raises:
        ConfigurationError: something that several machines need is missing or wrong; all of it is named.
    """
    count = resolved.get("num_machines")
    if count == 1:
        return None
    problems = []
    if resolved.get("num_processes") is None:
        problems.append(f"num_processes is missing: the total over all {count} machines")
    if not resolved.get("main_process_ip"):
        problems.append("main_process_ip is missing: the address of the machine of rank 0")
    if not resolved["machine_rank"].is_given:
        problems.append(f"machine_rank is missing: 0 to {count - 1}, another one on each machine")
    try:
        settings = _settings(resolved.get("rdzv_conf") or "")
    except ValueError as error:
        problems.append(f"rdzv_conf: {error}")
    if problems:
        raise ConfigurationError(
            f"{resolved['num_machines'].said('num_machines')}, but {'; '.join(problems)}",
            allowed="the same command on every machine, with its own machine_rank",
            next_step="give --num_processes, --main_process_ip and --machine_rank",
        )
    deadlines = [float(settings.pop(key)) for key in _DEADLINE_KEYS if key in settings]
    return NodeGroup(
        num_nodes=count,
        rank=resolved.get("machine_rank"),
        address=resolved.get("main_process_ip"),
        port=resolved.get("main_process_port") or DEFAULT_PORT,
        backend=resolved.get("rdzv_backend") or "static",
        deadline_s=min(deadlines, default=DEFAULT_DEADLINE_S),
        settings=settings,
    )


def _settings(text: str) -> dict[str, str]:
    settings = {}
    for item in filter(None, text.split(",")):
        key, equals, value = item.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"{item!r} is not of the form key=value")
        if key.strip() in _DEADLINE_KEYS and not (_is_number(value) and 0 < float(value) < math.inf):
            raise ValueError(f"{key.strip()} {value!r} is no number of seconds")
        settings[key.strip()] = value.strip()
    return settings


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
