"""NVML as a JSON file tells it: return codes included, so that recorded machines can be replayed."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.machine.nvml import DeviceMemory, NvmlFailure, NvmlMissing

_NOT_SUPPORTED = 3


@dataclass(frozen=True)
class Handle:
    """What a healthy device answers with; a failed one never gives a handle."""

    data: dict[str, Any]


class FakeNvml:
    """Answers from the data of one recorded machine."""

    def __init__(self, data: dict[str, Any]) -> None:
        if data["nvmlInit"] != 0:
            raise NvmlMissing(f"NVML does not start: {NvmlFailure(data['nvmlInit'])}", data["nvmlInit"])
        self._data = data
        self.closed = False

    @classmethod
    def read(cls, path: Path) -> "FakeNvml":
        return cls(json.loads(path.read_text()))

    def driver_version(self) -> str:
        if "driver" not in self._data:
            raise NvmlFailure(_NOT_SUPPORTED)
        return str(self._data["driver"])

    def cuda_version(self) -> str:
        raise NvmlFailure(_NOT_SUPPORTED)

    def count(self) -> int:
        return int(self._data.get("count", len(self._data["devices"])))

    def device(self, index: int) -> Handle:
        data = self._data["devices"][index]
        _check(data.get("handle_rc", 0))
        return Handle(data)

    def name(self, device: Handle) -> str:
        profile = device.data.get("profile")
        return f"FAKE MIG {profile}" if profile else str(device.data.get("name", "FAKE GPU"))

    def uuid(self, device: Handle) -> str:
        if "uuid" not in device.data:
            raise NvmlFailure(_NOT_SUPPORTED)
        return str(device.data["uuid"])

    def memory(self, device: Handle) -> DeviceMemory:
        memory = device.data["memory"]
        _check(memory["rc"])
        return DeviceMemory(memory["total"], memory["total"] - memory.get("used", 0))

    def utilisation_percent(self, device: Handle) -> float:
        utilisation = device.data.get("utilization", {"rc": _NOT_SUPPORTED})
        _check(utilisation["rc"])
        return float(utilisation["gpu"])

    def mig_enabled(self, device: Handle) -> bool:
        if "mig_mode" not in device.data:
            raise NvmlFailure(_NOT_SUPPORTED)
        return bool(device.data["mig_mode"])

    def mig_devices(self, device: Handle) -> list[Handle]:
        return [Handle(data) for data in device.data["mig"]]

    def close(self) -> None:
        self.closed = True


def _check(code: int) -> None:
    if code != 0:
        raise NvmlFailure(code)
