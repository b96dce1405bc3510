"""All accelerators of the machine as reports: what each is, what a job would call it, and why a value is unknown."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ..domain.findings import Finding
from ..domain.reports import Device
from .limits import MachineLimits
from .nvml import NO_PERMISSION, NOT_SUPPORTED, Nvml, NvmlFailure, NvmlMissing, open_nvml
from .visible import Candidate, select_visible

T = TypeVar("T")
_LIBRARY_NOT_FOUND = 12
# GPUs that have no memory of their own: their memory call answers 'not supported', and the system's memory is theirs.
_INTEGRATED = ("GB10", "Tegra", "Orin", "Xavier", "Thor", "Jetson", "DGX Spark")


@dataclass(frozen=True)
class DeviceSurvey:
    devices: tuple[Device, ...]
    driver_version: str | None
    cuda_version: str | None
    findings: tuple[Finding, ...]

    @property
    def usable(self) -> tuple[Device, ...]:
        """What a job would see and could use, in the job's own order."""
        found = [d for d in self.devices if d.usable and d.ordinal is not None]
        return tuple(sorted(found, key=lambda d: d.ordinal or 0))


@dataclass
class _Seen:
    """One GPU or MIG instance while its report is put together."""

    physical_index: int
    name: str
    uuid: str | None
    is_mig: bool
    is_parent: bool
    total_bytes: int | None
    free_bytes: int | None
    memory_kind: str
    utilisation: float | None
    broken: bool
    reasons: list[str]


def survey_devices(
    environment: Mapping[str, str], limits: MachineLimits, open_driver: Callable[[], Nvml] = open_nvml
) -> DeviceSurvey:
    """All NVIDIA devices, or none and a finding that says why."""
    try:
        nvml = open_driver()
    except NvmlMissing as error:
        absent = error.code in (None, _LIBRARY_NOT_FOUND)
        finding = Finding(
            code="no_nvml",
            level="note" if absent else "warning",
            message=f"no NVIDIA device can be seen: {error}",
            hint="training runs on the CPU" if absent else "mend the driver (restart after an update of it)",
        )
        return DeviceSurvey((), None, None, (finding,))
    try:
        return _ask_driver(
            nvml,
            environment=environment,
            memory_total_bytes=limits.memory_total_bytes,
            memory_available_bytes=limits.memory_available_bytes,
        )
    finally:
        with contextlib.suppress(NvmlFailure):
            nvml.close()


def _ask_driver(
    nvml: Nvml, *, environment: Mapping[str, str], memory_total_bytes: int, memory_available_bytes: int
) -> DeviceSurvey:
    """Ask the driver for every device; one that fails hides no other.

    Args:
        environment: the job's; CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER are read.
        memory_total_bytes, memory_available_bytes: the system's, for GPUs that share it.
    """
    reasons: list[str] = []
    count = _ask(nvml.count, reasons, "number of devices")
    seen: list[_Seen] = []
    for index in range(count or 0):
        seen += _look(nvml, index, memory_total_bytes, memory_available_bytes)
    candidates = [
        Candidate(key, item.physical_index, item.uuid, item.is_mig)
        for key, item in enumerate(seen)
        if not item.is_parent
    ]
    selection = select_visible(environment.get("CUDA_VISIBLE_DEVICES"), candidates)
    ordinals = {key: ordinal for ordinal, key in enumerate(selection.keys)}
    devices = tuple(_device(item, ordinals.get(key)) for key, item in enumerate(seen))
    findings = [_warning("visible_devices", text) for text in selection.problems]
    findings += [_warning("nvml", text) for text in reasons]
    findings += [_warning("device_unusable", _unusable(d)) for key, d in enumerate(devices) if seen[key].broken]
    findings += _order_findings(environment, devices)
    return DeviceSurvey(
        devices=devices,
        driver_version=_ask(nvml.driver_version, [], ""),
        cuda_version=_ask(nvml.cuda_version, [], ""),
        findings=tuple(findings),
    )


def _look(nvml: Nvml, index: int, memory_total: int, memory_available: int) -> list[_Seen]:
    reasons: list[str] = []
    handle = _ask(lambda: nvml.device(index), reasons, "device")
    if handle is None:
        words = [reason.removeprefix("device: ") for reason in reasons]
        return [_Seen(index, f"GPU {index}", None, False, False, None, None, "unknown", None, True, words)]
    gpu = _read(nvml, handle, index, is_mig=False)
    if not _ask(lambda: nvml.mig_enabled(handle), [], ""):
        _settle_unified(gpu, memory_total, memory_available)
        return [gpu]
    gpu.is_parent = True
    gpu.reasons.append("MIG mode is on: its instances are the devices")
    found = [gpu]
    for part in _ask(lambda: nvml.mig_devices(handle), gpu.reasons, "MIG instances") or []:
        instance = _read(nvml, part, index, is_mig=True)
        instance.reasons.append(f"instance of {gpu.name} ({gpu.uuid or f'GPU {index}'})")
        found.append(instance)
    return found


def _read(nvml: Nvml, handle: Any, index: int, *, is_mig: bool) -> _Seen:
    reasons: list[str] = []
    suffix = " on MIG" if is_mig else ""
    name = _ask(lambda: nvml.name(handle), reasons, "name", suffix=suffix)
    uuid = _ask(lambda: nvml.uuid(handle), reasons, "UUID", suffix=suffix)
    broken, memory = False, None
    try:
        memory = nvml.memory(handle)
    except NvmlFailure as failure:
        broken = failure.code not in (NOT_SUPPORTED, NO_PERMISSION)
        reasons.append(f"memory unknown ({failure.code}): {failure}")
    utilisation = _ask(lambda: nvml.utilisation_percent(handle), reasons, "utilisation", suffix=suffix)
    return _Seen(
        physical_index=index,
        name=name or f"GPU {index}",
        uuid=uuid,
        is_mig=is_mig,
        is_parent=False,
        total_bytes=memory.total_bytes if memory else None,
        free_bytes=memory.free_bytes if memory else None,
        memory_kind="dedicated" if memory else "unknown",
        utilisation=utilisation,
        broken=broken,
        reasons=reasons,
    )


def _settle_unified(gpu: _Seen, memory_total: int, memory_available: int) -> None:
    if gpu.total_bytes is not None or gpu.broken or not any(word in gpu.name for word in _INTEGRATED):
        return
    gpu.memory_kind = "unified"
    gpu.total_bytes, gpu.free_bytes = memory_total, memory_available
    gpu.reasons = [reason for reason in gpu.reasons if not reason.startswith("memory unknown")]
    gpu.reasons.append("memory is shared with the CPU: the figures are the system's, and approximate")


def _device(item: _Seen, ordinal: int | None) -> Device:
    reasons = list(item.reasons)
    usable = not item.is_parent and not item.broken and ordinal is not None
    if ordinal is None and not item.is_parent:
        reasons.append("not among the visible devices")
    return Device.model_validate(
        {
            "kind": "cuda",
            "name": item.name,
            "ordinal": ordinal,
            "physical_index": item.physical_index,
            "uuid": item.uuid,
            "memory_total_bytes": item.total_bytes,
            "memory_free_bytes": item.free_bytes,
            "memory_kind": item.memory_kind,
            "utilisation_percent": item.utilisation,
            "usable": usable,
            "reasons": tuple(reasons),
        }
    )


def _order_findings(environment: Mapping[str, str], devices: tuple[Device, ...]) -> list[Finding]:
    kinds = {(d.name, d.memory_total_bytes) for d in devices if d.memory_total_bytes is not None}
    if len(kinds) < 2 or environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return []
    text = "the devices differ, and CUDA counts the fastest first unless CUDA_DEVICE_ORDER=PCI_BUS_ID"
    hint = "set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name devices by UUID; the ordinals here assume the driver's order"
    return [Finding(code="device_order", level="warning", message=text, hint=hint)]


def _ask(question: Callable[[], T], reasons: list[str], what: str, *, suffix: str = "") -> T | None:
    """The answer, or None and a reason."""
    try:
        return question()
    except NvmlFailure as failure:
        words = f"not supported{suffix} (3)" if failure.code == NOT_SUPPORTED else str(failure)
        reasons.append(f"{what}: {words}")
        return None


def _unusable(device: Device) -> str:
    return f"GPU {device.physical_index} cannot be used: {'; '.join(device.reasons)}"


def _warning(code: str, text: str) -> Finding:
    return Finding(code=code, level="warning", message=text)
