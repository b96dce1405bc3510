"""CUDA_VISIBLE_DEVICES, read as CUDA reads it: indices, UUIDs, unique beginnings of UUIDs, MIG instances. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_INDEX = re.compile(r"[+-]?[0-9]+")


@dataclass(frozen=True)
class Candidate:
    """A device that CUDA could enumerate. A GPU in MIG mode is none itself; its instances are."""

    key: int
    physical_index: int
    uuid: str | None
    is_mig: bool


@dataclass(frozen=True)
class Selection:
    """Keys of the visible devices in CUDA's order; `problems` explain what was not taken as meant."""

    keys: tuple[int, ...]
    problems: tuple[str, ...] = ()


def select_visible(value: str | None, candidates: Sequence[Candidate]) -> Selection:
    """Which candidates a process with this CUDA_VISIBLE_DEVICES sees; None is an unset variable, '' hides all.

    CUDA stops at the first entry that it cannot resolve, and a repeated device makes it see none at all.
    """
    if value is None:
        return _usable_together([c.key for c in _enumerated(candidates)], candidates, [])
    keys: list[int] = []
    problems: list[str] = []
    shown = f"CUDA_VISIBLE_DEVICES={value!r}"
    if not value.strip():
        return Selection((), (f"{shown} hides every device",))
    for entry in (part.strip() for part in value.split(",")):
        key, problem = _resolve(entry, candidates)
        if key is None:
            problems.append(f"{shown}: {entry!r} {problem}; CUDA stops there")
            break
        if key in keys:
            return Selection((), (f"{shown}: {entry!r} names a device twice, and CUDA then sees none",))
        keys.append(key)
        number = _INDEX.match(entry)
        if number and number[0] != entry:
            problems.append(f"{shown}: CUDA reads {entry!r} as {number[0]}; devices are separated by commas alone")
    return _usable_together(keys, candidates, problems)


def _enumerated(candidates: Sequence[Candidate]) -> list[Candidate]:
    """What an index counts: whole GPUs, and of each GPU in MIG mode its first instance."""
    seen: set[int] = set()
    found = []
    for candidate in candidates:
        if candidate.physical_index not in seen:
            seen.add(candidate.physical_index)
            found.append(candidate)
    return found


def _usable_together(keys: list[int], candidates: Sequence[Candidate], problems: list[str]) -> Selection:
    """A process can use one MIG instance and nothing beside it."""
    by_key = {c.key: c for c in candidates}
    for position, key in enumerate(keys):
        if by_key[key].is_mig and len(keys) > 1:
            taken = keys[:1] if position == 0 else keys[:position]
            text = "CUDA uses one MIG instance in a process and nothing beside it; the entries after it are not seen"
            return Selection(tuple(taken), (*problems, text))
    return Selection(tuple(keys), tuple(problems))


def _resolve(entry: str, candidates: Sequence[Candidate]) -> tuple[int | None, str]:
    if entry.startswith(("GPU-", "MIG-")):
        return _by_uuid(entry, candidates)
    digits = _INDEX.match(entry)
    if digits is None:
        return None, _no_name(entry)
    index = int(digits[0])
    if index < 0:
        return None, "ends the list"
    enumerated = _enumerated(candidates)
    of_index = next((c for c in enumerated if c.physical_index == index), None)
    if of_index is None:
        return None, f"is no such device (there are {len(enumerated)})"
    return of_index.key, ""


def _no_name(entry: str) -> str:
    if entry.startswith(("'", '"')):
        return "begins with a quote, which the shell did not take away"
    if entry.upper().startswith(("GPU-", "MIG-")):
        return "is no UUID: GPU- and MIG- are written in capitals"
    return "is no index, GPU-... or MIG-..."


def _by_uuid(entry: str, candidates: Sequence[Candidate]) -> tuple[int | None, str]:
    wants_mig = entry.startswith("MIG-")
    matching = [c for c in candidates if c.uuid and c.is_mig == wants_mig and c.uuid.startswith(entry)]
    exact = [c for c in matching if c.uuid == entry]
    if len(exact) == 1 or len(matching) == 1:
        return (exact or matching)[0].key, ""
    if matching:
        names = ", ".join(str(c.uuid) for c in matching)
        return None, f"is ambiguous: it begins the UUID of {len(matching)} devices ({names})"
    return None, "is no such device"
