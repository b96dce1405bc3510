"""How many processors and how much memory this process may use: the host's, or less where a cgroup limits it."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Source = Literal["host", "cgroup"]
_NO_LIMIT_BYTES = 2**60  # cgroup v1 writes 'no limit' as the largest multiple of a page


@dataclass(frozen=True)
class MachineLimits:
    """Whole processors (at least 1) and bytes, and where each figure comes from."""

    num_cpus: int
    cpu_source: Source
    memory_total_bytes: int
    memory_available_bytes: int
    memory_source: Source


@dataclass(frozen=True)
class ContainerLimits:
    """The tightest limits along a chain of cgroups; None where nothing limits."""

    cpus: float | None
    memory_bytes: int | None
    memory_free_bytes: int | None


def machine_limits(*, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> MachineLimits:
    """Read /proc and the cgroups that this process is in."""
    host_total, host_available = read_meminfo(proc / "meminfo")
    return combine(
        container_limits(own_cgroups(proc / "self/cgroup", cgroups)),
        host_cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        host_total_bytes=host_total,
        host_available_bytes=host_available,
    )


def combine(
    container: ContainerLimits, *, host_cpus: int, host_total_bytes: int, host_available_bytes: int
) -> MachineLimits:
    """The smaller of host and container, figure by figure."""
    cpus_limited = container.cpus is not None and container.cpus < host_cpus
    limit = container.memory_bytes
    memory_limited = limit is not None and limit < host_total_bytes
    free = container.memory_free_bytes if memory_limited else None
    return MachineLimits(
        num_cpus=max(1, math.floor(container.cpus)) if cpus_limited and container.cpus is not None else host_cpus,
        cpu_source="cgroup" if cpus_limited else "host",
        memory_total_bytes=limit if memory_limited and limit is not None else host_total_bytes,
        memory_available_bytes=host_available_bytes if free is None else min(host_available_bytes, free),
        memory_source="cgroup" if memory_limited else "host",
    )


def read_meminfo(path: Path) -> tuple[int, int]:
    """MemTotal and MemAvailable in bytes."""
    values = {}
    for line in path.read_text().splitlines():
        name, _, rest = line.partition(":")
        values[name] = int(rest.split()[0]) * 1024 if rest.split() else 0
    return values["MemTotal"], values.get("MemAvailable", values.get("MemFree", 0))


def own_cgroups(membership: Path, cgroups: Path) -> list[Path]:
    """The directories of this process's cgroups and of all their parents, version 2 and version 1.

    Inside a container the path in /proc/self/cgroup may not exist below the mount; the mount itself is then the
    container's own cgroup.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return []
    found: list[Path] = []
    for line in lines:
        if line.count(":") < 2:
            continue
        _, controllers, path = line.split(":", 2)
        if not controllers:
            bases = [cgroups, cgroups / "unified"]
        elif {"memory", "cpu"} & set(controllers.split(",")):
            bases = [cgroups / controllers, *(cgroups / name for name in controllers.split(","))]
        else:
            continue
        for base in bases:
            current = base / path.lstrip("/")
            while current != base and base in current.parents:
                found.append(current)
                current = current.parent
            found.append(base)
    return [path for path in dict.fromkeys(found) if path.is_dir()]


def container_limits(directories: Sequence[Path]) -> ContainerLimits:
    """The tightest limits that any of these cgroup directories sets."""
    cpus = [value for value in map(_cpus, directories) if value is not None]
    memory = [(limit, directory) for directory in directories if (limit := _memory(directory)) is not None]
    if not memory:
        return ContainerLimits(min(cpus, default=None), None, None)
    limit, directory = min(memory)
    used = _used(directory)
    return ContainerLimits(min(cpus, default=None), limit, None if used is None else max(0, limit - used))


def _cpus(directory: Path) -> float | None:
    fields = _words(directory / "cpu.max")
    if len(fields) == 2 and all(field.isdigit() for field in fields) and int(fields[1]):
        return int(fields[0]) / int(fields[1])
    quota, period = _number(directory / "cpu.cfs_quota_us"), _number(directory / "cpu.cfs_period_us")
    return quota / period if quota is not None and period and quota > 0 else None


def _memory(directory: Path) -> int | None:
    limits = [_number(directory / "memory.max"), _number(directory / "memory.limit_in_bytes")]
    return min((limit for limit in limits if limit is not None and limit < _NO_LIMIT_BYTES), default=None)


def _used(directory: Path) -> int | None:
    """Memory in use less the file cache, which the kernel gives back before it kills."""
    used = _number(directory / "memory.current")
    used = _number(directory / "memory.usage_in_bytes") if used is None else used
    if used is None:
        return None
    try:
        pairs = dict(line.split() for line in (directory / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return used
    cache = pairs.get("total_inactive_file", pairs.get("inactive_file", "0"))
    return max(0, used - int(cache)) if cache.isdigit() else used


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _number(path: Path) -> int | None:
    words = _words(path)
    return int(words[0]) if words and words[0].lstrip("-").isdigit() else None
