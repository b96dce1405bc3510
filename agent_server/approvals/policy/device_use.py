"""Whether others use the devices that a plan would get, from what the driver says."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from runtime.config.plan import ProcessLayout
from tools.domain.reports import Device

BUSY_PERCENT = 10.0
USED_MEMORY_PERCENT = 10.0


@dataclass(frozen=True)
class DeviceUse:
    """`unknown` takes the strictest row of the table. A run of ours counts as use too: the driver names nobody."""

    state: Literal["none_needed", "free", "in_use", "unknown"]
    words: str


NOT_LOOKED_AT = DeviceUse("unknown", "the devices were not looked at")


def device_use(layout: ProcessLayout, devices: Sequence[Device]) -> DeviceUse:
    """Judge the first devices, as many as the plan has processes on this node."""
    if layout.device == "cpu":
        return DeviceUse("none_needed", "the plan uses no accelerator")
    if layout.device != "cuda":
        return DeviceUse("unknown", f"who uses the {layout.device} devices cannot be asked")
    usable = [d for d in devices if d.usable and d.ordinal is not None]
    usable.sort(key=lambda device: device.ordinal or 0)
    needed = -(-layout.num_processes // layout.num_nodes)
    wanted = usable[:needed]
    if busy := [words for device in wanted if (words := _busy(device))]:
        return DeviceUse("in_use", "; ".join(busy))
    if len(wanted) < needed:
        return DeviceUse("unknown", f"the plan needs {needed} devices on a node, {len(wanted)} usable ones were seen")
    if layout.num_nodes > 1:
        return DeviceUse("unknown", "the devices of the other nodes were not looked at")
    silent = [f"GPU {d.ordinal}" for d in wanted if _used_percent(d) is None]
    if silent:
        return DeviceUse("unknown", f"the driver does not tell how much memory is used on {', '.join(silent)}")
    return DeviceUse("free", f"{needed} device(s) looked at, none is in use")


def _busy(device: Device) -> str:
    """How the device is used, in words; empty if no sign of it was seen."""
    signs = []
    if device.utilisation_percent is not None and device.utilisation_percent > BUSY_PERCENT:
        signs.append(f"{device.utilisation_percent:.0f}% busy")
    used = _used_percent(device)
    if used is not None and used > USED_MEMORY_PERCENT:
        signs.append(f"{used:.0f}% of its memory used")
    return f"GPU {device.ordinal} is in use: {', '.join(signs)}" if signs else ""


def _used_percent(device: Device) -> float | None:
    """Of dedicated memory; memory that is shared with the CPU tells nothing of others."""
    total, free = device.memory_total_bytes, device.memory_free_bytes
    if device.memory_kind != "dedicated" or not total or free is None:
        return None
    return 100.0 * (total - free) / total
