"""The seam to the NVIDIA driver: what we ask of NVML, and nvidia-ml-py as its answer, imported when asked."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

NOT_SUPPORTED = 3
NO_PERMISSION = 4
_WORDS = {
    1: "not initialised",
    2: "invalid argument",
    3: "not supported",
    4: "no permission",
    6: "not found",
    9: "driver not loaded",
    10: "time-out",
    12: "library not found",
    13: "function not found in this driver",
    15: "lost",
    16: "reset required",
    17: "blocked by the operating system",
    18: "driver and library versions differ",
    999: "unknown error",
}


class NvmlFailure(Exception):
    """NVML answered with this return code."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(f"{_WORDS.get(code, 'error')} ({code})")


class NvmlMissing(Exception):
    """There is no NVML to ask: no nvidia-ml-py, no driver library, or it does not start. `code` is None or NVML's."""

    def __init__(self, reason: str, code: int | None = None) -> None:
        self.code = code
        super().__init__(reason)


@dataclass(frozen=True)
class DeviceMemory:
    total_bytes: int
    free_bytes: int


class Nvml(Protocol):
    """The questions, each of which may raise NvmlFailure. A handle is opaque and never used after it failed."""

    def driver_version(self) -> str: ...
    def cuda_version(self) -> str: ...
    def count(self) -> int: ...
    def device(self, index: int) -> Any: ...
    def name(self, device: Any) -> str: ...
    def uuid(self, device: Any) -> str: ...
    def memory(self, device: Any) -> DeviceMemory: ...
    def utilisation_percent(self, device: Any) -> float: ...
    def mig_enabled(self, device: Any) -> bool: ...
    def mig_devices(self, device: Any) -> list[Any]: ...
    def close(self) -> None: ...


def open_nvml() -> Nvml:
    """Load and start NVML.

    Raises:
        NvmlMissing: see there.
    """
    try:
        library = import_module("pynvml")
    except ImportError as error:
        raise NvmlMissing("nvidia-ml-py is not installed") from error
    try:
        library.nvmlInit()
    except library.NVMLError as error:
        failure = NvmlFailure(error.value)
        raise NvmlMissing(f"NVML does not start: {failure}", error.value) from error
    return PynvmlNvml(library)


class PynvmlNvml:
    """nvidia-ml-py, which has started."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def driver_version(self) -> str:
        return str(self._call("nvmlSystemGetDriverVersion"))

    def cuda_version(self) -> str:
        number = int(self._call("nvmlSystemGetCudaDriverVersion"))
        return f"{number // 1000}.{number % 1000 // 10}"

    def count(self) -> int:
        return int(self._call("nvmlDeviceGetCount"))

    def device(self, index: int) -> Any:
        return self._call("nvmlDeviceGetHandleByIndex", index)

    def name(self, device: Any) -> str:
        return str(self._call("nvmlDeviceGetName", device))

    def uuid(self, device: Any) -> str:
        return str(self._call("nvmlDeviceGetUUID", device))

    def memory(self, device: Any) -> DeviceMemory:
        """The second version of the call tells reserved memory apart; older drivers have the first alone."""
        version = getattr(self._library, "nvmlMemory_v2", None)
        if version is not None:
            try:
                return self._memory(self._call("nvmlDeviceGetMemoryInfo", device, version))
            except NvmlFailure as failure:
                if failure.code not in (NOT_SUPPORTED, 13, 25):
                    raise
        return self._memory(self._call("nvmlDeviceGetMemoryInfo", device))

    def utilisation_percent(self, device: Any) -> float:
        return float(self._call("nvmlDeviceGetUtilizationRates", device).gpu)

    def mig_enabled(self, device: Any) -> bool:
        return bool(self._call("nvmlDeviceGetMigMode", device)[0])

    def mig_devices(self, device: Any) -> list[Any]:
        """Handles of this GPU's MIG instances; slots without one answer 'not found' and are passed over."""
        found = []
        for index in range(int(self._call("nvmlDeviceGetMaxMigDeviceCount", device))):
            try:
                found.append(self._call("nvmlDeviceGetMigDeviceHandleByIndex", device, index))
            except NvmlFailure as failure:
                if failure.code not in (2, 6):
                    raise
        return found

    def close(self) -> None:
        self._call("nvmlShutdown")

    @staticmethod
    def _memory(info: Any) -> DeviceMemory:
        return DeviceMemory(int(info.total), int(info.free))

    def _call(self, function: str, *arguments: Any) -> Any:
        try:
            return getattr(self._library, function)(*arguments)
        except self._library.NVMLError as error:
            raise NvmlFailure(error.value) from error
