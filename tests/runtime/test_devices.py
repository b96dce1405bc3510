"""Picking a device, and saying what is missing."""

from types import SimpleNamespace

import pytest
import torch

from runtime import devices
from runtime.errors import ConfigurationError, MissingDependencyError


def test_cpu_is_cpu() -> None:
    device = devices.pick_device("cpu", local_rank=3, local_world_size=4)
    assert device == torch.device("cpu")
    assert devices.communication_backend(device) == "gloo"
    assert "nccl" in devices.communication_backend(torch.device("cuda", 0))


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"'gpu'.*cpu, cuda, mps, xla"):
        devices.pick_device("gpu", local_rank=0, local_world_size=1)


def test_more_ranks_than_gpus_is_refused_with_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigurationError, match="rank 2 of 3 on this machine has no GPU: 2 visible"):
        devices.pick_device("cuda", local_rank=2, local_world_size=3)


def test_two_processes_on_one_apple_gpu_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    with pytest.raises(ConfigurationError, match="2 processes on one Apple GPU"):
        devices.pick_device("mps", local_rank=0, local_world_size=2)


def test_xla_without_its_package_is_refused() -> None:
    with pytest.raises(MissingDependencyError, match="torch_xla"):
        devices.pick_device("xla", local_rank=0, local_world_size=1)


class _NvmlError(Exception):
    pass


def _fake_nvml(**overrides: object) -> SimpleNamespace:
    def memory(handle: int) -> SimpleNamespace:
        if handle == 1:
            raise _NvmlError("Not Supported")
        return SimpleNamespace(total=80 * 2**30)

    functions = {
        "NVMLError": _NvmlError,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda handle: b"Fake GPU" if handle == 0 else "Fake GPU",
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
        "nvmlDeviceGetMemoryInfo": memory,
    }
    return SimpleNamespace(**(functions | overrides))


def test_a_gpu_that_hides_its_memory_is_unknown_and_not_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "import_module", lambda name: _fake_nvml())
    found = devices.nvml_devices()
    assert [(d.name, d.uuid, d.memory_bytes) for d in found] == [
        ("Fake GPU", "GPU-0", 80 * 2**30),
        ("Fake GPU", "GPU-1", None),
    ]


def test_a_driver_that_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent() -> None:
        raise _NvmlError("Driver Not Loaded")

    monkeypatch.setattr(devices, "import_module", lambda name: _fake_nvml(nvmlInit=silent))
    with pytest.raises(ConfigurationError, match="Driver Not Loaded"):
        devices.nvml_devices()
