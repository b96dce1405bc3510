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


class FakeXla:
    """Stands for torch_xla and torch_xla.runtime."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.calls: list[str] = []

    def device_type(self) -> str:
        return self.kind

    def device(self) -> torch.device:
        return torch.device("xla", 0)

    def sync(self, wait: bool = False) -> None:
        self.calls.append(f"sync(wait={wait})")

    def manual_seed(self, seed: int) -> None:
        self.calls.append(f"seed({seed})")


def _machine(monkeypatch: pytest.MonkeyPatch, *, gpus: int = 0, mps: bool = False, xla: FakeXla | None = None) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    monkeypatch.setattr(devices, "find_spec", lambda name: object() if xla is not None else None)
    monkeypatch.setattr(devices, "import_module", lambda name: xla)


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        ({}, "cpu"),
        ({"gpus": 2, "mps": True, "xla": FakeXla("TPU")}, "cuda:1"),
        ({"mps": True, "xla": FakeXla("TPU")}, "mps"),
        ({"xla": FakeXla("TPU")}, "xla:0"),
        ({"xla": FakeXla("CPU")}, "cpu"),
    ],
)
def test_without_a_kind_the_first_that_is_here_is_taken(
    machine: dict[str, object], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _machine(monkeypatch, **machine)  # type: ignore[arg-type]  # keywords
    local_world_size = 2 if machine.get("gpus") else 1
    assert str(devices.pick_device("", local_rank=local_world_size - 1, local_world_size=local_world_size)) == expected


@pytest.mark.parametrize(
    ("kind", "machine", "message"),
    [
        ("cuda", {}, "has no GPU: 0 visible.*device cpu"),
        ("mps", {}, "mps is not available here"),
        ("xla", {"xla": FakeXla("TPU")}, "2 processes on xla.*one process"),
    ],
)
def test_what_is_not_here_is_refused_with_what_is(
    kind: str, machine: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _machine(monkeypatch, **machine)  # type: ignore[arg-type]  # keywords
    with pytest.raises(ConfigurationError, match=message):
        devices.pick_device(kind, local_rank=0, local_world_size=2)


def test_xla_runs_at_the_end_of_a_step_and_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeXla("TPU")
    _machine(monkeypatch, xla=fake)
    for device in (torch.device("cpu"), torch.device("xla", 0)):
        devices.end_step(device)
        devices.synchronize(device)
        devices.release_cached_memory(device)
    assert fake.calls == ["sync(wait=False)", "sync(wait=True)"]


def test_caches_and_waits_go_to_the_devices_own_module(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for module, name in ((torch.cuda, "cuda"), (torch.mps, "mps")):
        monkeypatch.setattr(module, "synchronize", lambda *device, name=name: calls.append(f"{name} wait"))
        monkeypatch.setattr(module, "empty_cache", lambda name=name: calls.append(f"{name} empty"))
    for kind in ("cuda", "mps"):
        devices.synchronize(torch.device(kind))
        devices.release_cached_memory(torch.device(kind))
    assert calls == ["cuda wait", "cuda empty", "mps wait", "mps empty"]
