"""DeepSpeed's hostfile and its filters: hosts and slots, and what they say of the launch on this machine.

    worker-0 slots=8      one host a line; # begins a comment
    worker-1 slots=8

A filter is NAME[:SLOT[,SLOT...]][@NAME...], such as worker-0@worker-1:0,2.
"""

import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from ..errors import ConfigurationError
from .resolve import Resolved, Value

LAUNCHER_ONLY = (
    "deepspeed_hostfile",
    "deepspeed_inclusion_filter",
    "deepspeed_exclusion_filter",
    "deepspeed_multinode_launcher",
)
"""Options that a launch acts on by itself: workers are not told of them."""

Slots = Mapping[str, tuple[int, ...]]
_LINE = re.compile(r"(?P<host>[^\s=#:@,]+)\s+slots\s*=\s*(?P<slots>[0-9]{1,5})\Z")
_PART = re.compile(r"(?P<host>[^\s:@,]+)(?::(?P<slots>[0-9]{1,5}(?:,[0-9]{1,5})*))?\Z")
_HERE = ("localhost", "127.0.0.1", "::1")
_NEXT = "correct the file, or the filter"


def read_hostfile(path: Path) -> dict[str, int]:
    """Host -> number of its slots, in the file's order.

    Raises:
        ConfigurationError: the file cannot be read, or lines are malformed; all of them are named by number.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"hostfile {path} cannot be read: {getattr(error, 'strerror', None) or 'it is no text'}",
            allowed="a text file with lines such as: worker-0 slots=8",
            next_step="correct deepspeed_hostfile",
        ) from error
    return parse_hostfile(text, place=str(path))


def parse_hostfile(text: str, *, place: str) -> dict[str, int]:
    """The same from a text; raises as read_hostfile does."""
    hosts: dict[str, int] = {}
    lines: dict[str, int] = {}
    problems: list[str] = []
    for number, row in enumerate(text.splitlines(), start=1):
        line = row.partition("#")[0].strip()
        if not line:
            continue
        match = _LINE.match(line)
        if match is None or int(match["slots"]) < 1:
            problems.append(f"{place}:{number}: {line[:80]!r}")
        elif match["host"] in hosts:
            problems.append(f"{place}:{number}: {match['host']} stands in line {lines[match['host']]} already")
        else:
            hosts[match["host"]], lines[match["host"]] = int(match["slots"]), number
    if not problems and not hosts:
        problems.append(f"{place}: no host")
    if problems:
        raise ConfigurationError(
            "; ".join(problems), allowed="lines such as: worker-0 slots=8, each host once", next_step=_NEXT
        )
    return hosts


def filter_hosts(hosts: Mapping[str, int], *, include: str | None, exclude: str | None) -> dict[str, tuple[int, ...]]:
    """Host -> the slots that take part, in the hostfile's order; a host without any is left out.

    Raises:
        ConfigurationError: both filters are given, one names what is not there, or nothing is left.
    """
    everything = {host: tuple(range(count)) for host, count in hosts.items()}
    if include and exclude:
        raise ConfigurationError(
            "deepspeed_inclusion_filter and deepspeed_exclusion_filter",
            allowed="one of them",
            next_step="leave one out",
        )
    if not include and not exclude:
        return everything
    name = "deepspeed_inclusion_filter" if include else "deepspeed_exclusion_filter"
    named = _parse_filter(include or exclude or "", everything, name)
    left: dict[str, tuple[int, ...]] = {}
    for host, slots in everything.items():
        kept = named.get(host, ()) if include else tuple(s for s in slots if s not in named.get(host, ()))
        if kept:
            left[host] = kept
    if not left:
        raise ConfigurationError(f"{name} leaves no slot", allowed="at least one slot", next_step=_NEXT)
    return left


def apply_hostfile(resolved: Resolved, *, is_here: Callable[[str], bool] | None = None) -> Resolved:
    """The options with what the hostfile says of processes, machines and this machine's place; unchanged without one.

    Args:
        is_here: whether a host is this machine; None asks the network's names and addresses.

    Raises:
        ConfigurationError: hostfile or filters are wrong, contradict other options, or do not tell this machine.
    """
    named = resolved["deepspeed_hostfile"]
    filters = {name: resolved[f"deepspeed_{name}_filter"] for name in ("inclusion", "exclusion")}
    if named.value is None:
        if given := [value.said(f"deepspeed_{name}_filter") for name, value in filters.items() if value.is_given]:
            raise ConfigurationError(
                f"{given[0]} without deepspeed_hostfile",
                allowed="a filter of a hostfile",
                next_step="name the hostfile",
            )
        return resolved
    path = resolved.path("deepspeed_hostfile")
    slots = filter_hosts(read_hostfile(path), include=filters["inclusion"].value, exclude=filters["exclusion"].value)
    counts = {len(numbers) for numbers in slots.values()}
    if len(counts) > 1:
        rows = ", ".join(f"{host} {len(numbers)}" for host, numbers in slots.items())
        raise ConfigurationError(
            f"the hosts of {path} take part with different numbers of slots: {rows}",
            allowed="the same number on every host",
            next_step="even them out with deepspeed_inclusion_filter or deepspeed_exclusion_filter",
        )
    found: dict[str, object] = {"num_machines": len(slots), "num_processes": sum(map(len, slots.values()))}
    rank = _own_rank(resolved, list(slots), is_here or is_this_machine, path)
    if len(slots) > 1:
        found |= {"machine_rank": rank}
        if not resolved["main_process_ip"].is_given:
            found |= {"main_process_ip": next(iter(slots))}
    own = list(slots.values())[rank]
    if own != tuple(range(len(own))) and not _on_cpu(resolved):
        found |= {"gpu_ids": ",".join(map(str, own))}
    return _with(resolved, found, place=str(path))


def is_this_machine(host: str) -> bool:
    """Whether a name or address means this machine: its own name, or an address that a socket here can have."""
    own = socket.gethostname()
    if host.lower() in (*_HERE, own.lower(), own.partition(".")[0].lower()):
        return True
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    for family, kind, _, _, address in found:
        try:
            with socket.socket(family, kind) as probe:
                probe.bind(address)
        except OSError:
            continue
        return True
    return False


def _parse_filter(text: str, hosts: Slots, name: str) -> dict[str, tuple[int, ...]]:
    named: dict[str, tuple[int, ...]] = {}
    problems: list[str] = []
    for part in text.split("@"):
        match = _PART.match(part.strip())
        if match is None:
            problems.append(f"{part.strip()!r} is not NAME or NAME:SLOT,SLOT")
            continue
        host = match["host"]
        if host not in hosts:
            problems.append(f"{host} is no host of the hostfile ({', '.join(list(hosts)[:5])})")
            continue
        chosen = hosts[host] if match["slots"] is None else tuple(dict.fromkeys(map(int, match["slots"].split(","))))
        if wrong := [str(slot) for slot in chosen if slot not in hosts[host]]:
            problems.append(f"{host} has no slot {', '.join(wrong)} (0 to {len(hosts[host]) - 1})")
        named[host] = tuple(dict.fromkeys((*named.get(host, ()), *chosen)))
    if problems:
        raise ConfigurationError(
            f"{name} {text!r}: {'; '.join(problems)}",
            allowed="NAME[:SLOT[,SLOT...]], several joined by @",
            next_step=_NEXT,
        )
    return named


def _own_rank(resolved: Resolved, hosts: list[str], is_here: Callable[[str], bool], path: Path) -> int:
    """This machine's place among the hosts: by its name, else as given."""
    given = resolved["machine_rank"]
    found = [rank for rank, host in enumerate(hosts) if is_here(host)]
    if given.is_given:
        if given.value >= len(hosts) or (len(found) == 1 and found[0] != given.value):
            why = f"{hosts[found[0]]} of {path} is this machine" if len(found) == 1 else f"{path} gives {len(hosts)}"
            ranks = f"{found[0]}" if len(found) == 1 else f"0 to {len(hosts) - 1}"
            raise ConfigurationError(
                f"{given.said('machine_rank')}, but {why}", allowed=ranks, next_step="leave machine_rank out"
            )
        return int(given.value)
    if len(found) != 1:
        which = "none of the hosts" if not found else f"{len(found)} of the hosts"
        raise ConfigurationError(
            f"{which} of {path} is this machine ({socket.gethostname()}): {', '.join(hosts[:8])}",
            allowed="a hostfile that names each machine once, as the machine calls itself",
            next_step=f"give --machine_rank, 0 to {len(hosts) - 1}, or start the launch on one of these hosts",
        )
    return found[0]


def _with(resolved: Resolved, found: Mapping[str, object], *, place: str) -> Resolved:
    values = dict(resolved.values)
    for name, value in found.items():
        said = values[name]
        if said.is_given and said.value != value:
            raise ConfigurationError(
                f"{said.said(name)}, but the hostfile says {value} ({place})",
                allowed="one value",
                next_step=f"leave {name} out, or correct the hostfile or its filter",
            )
        if not said.is_given:
            values[name] = Value(value, "file", place)
    return replace(resolved, values=values)


def _on_cpu(resolved: Resolved) -> bool:
    kind = str(resolved.get("distributed_type") or "")
    return bool(resolved.get("cpu")) or resolved.get("device") == "cpu" or kind == "MULTI_CPU"
