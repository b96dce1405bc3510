"""Kinds of devices: which one this process uses, its communication backend, and how to wait for it."""

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from .errors import ConfigurationError, MissingDependencyError

DEVICE_KINDS = ("cpu", "cuda", "mps", "xla")

_PEAK_HALF = {
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA A100-PCIE-40GB": 312e12,
    "NVIDIA A100 80GB PCIe": 312e12,
    "NVIDIA A10": 125e12,
    "NVIDIA B200": 2250e12,
    "NVIDIA H100 80GB HBM3": 989.4e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100 NVL": 835e12,
    "NVIDIA H200": 989.4e12,
    "NVIDIA L4": 121e12,
    "NVIDIA L40S": 362e12,
}
_PEAK_FP16_ONLY = {"Tesla V100-SXM2-16GB": 125e12, "Tesla V100-SXM2-32GB": 125e12, "Tesla T4": 65e12}


def pick_device(kind: str, *, local_rank: int, local_world_size: int) -> torch.device:
    """The device of this process.

    Args:
        kind: one of DEVICE_KINDS, or empty to take the first that is here of cuda, mps, a TPU, cpu.

    Raises:
        ConfigurationError: the kind is unknown, absent on this machine, or has fewer devices than ranks.
    """
    kind = kind or _fastest()
    if kind == "cpu":
        return torch.device("cpu")
    if kind == "cuda":
        return _cuda(local_rank, local_world_size)
    if kind == "mps":
        return _mps(local_world_size)
    if kind == "xla":
        return _xla(local_world_size)
    raise ConfigurationError(f"device kind {kind!r}", allowed=", ".join(DEVICE_KINDS), next_step="correct the device")


def communication_backend(device: torch.device) -> str:
    """The torch.distributed backend; on CUDA, gloo stays for tensors in host memory."""
    return {"cuda": "cpu:gloo,cuda:nccl"}.get(device.type, "gloo")


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all that was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
    elif device.type == "xla":
        import_module("torch_xla").sync(wait=True)


def end_step(device: torch.device) -> None:
    """An optimizer has stepped: XLA runs what it has only written down so far, the others have begun long ago."""
    if device.type == "xla":
        import_module("torch_xla").sync()


def release_cached_memory(device: torch.device) -> None:
    """Give unused memory back to the device's allocator."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def peak_flops(device: torch.device, precision: str) -> float | None:
    """Dense peak of one device in FLOP/s for bf16 or fp16, from its maker's data sheet; None where it is not known.

    A peak is only known for a device by its full name: what looks alike (PCIe, NVL, a slice) differs.
    """
    if device.type != "cuda" or precision not in ("bf16", "fp16"):
        return None
    name = torch.cuda.get_device_name(device)
    if precision == "fp16" and name in _PEAK_FP16_ONLY:
        return _PEAK_FP16_ONLY[name]
    return _PEAK_HALF.get(name)


@dataclass(frozen=True)
class NvmlDevice:
    """One GPU as the driver sees it; `memory_bytes` is None where the driver does not say."""

    index: int
    name: str
    uuid: str
    memory_bytes: int | None


def nvml_devices() -> list[NvmlDevice]:
    """Ask the NVIDIA driver for its GPUs; imports pynvml only now.

    Raises:
        MissingDependencyError: nvidia-ml-py is not installed.
        ConfigurationError: the driver does not answer.
    """
    if find_spec("pynvml") is None:
        raise MissingDependencyError("pynvml is not installed", next_step="pip install nvidia-ml-py")
    nvml: Any = import_module("pynvml")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise ConfigurationError(f"NVML does not start: {error}", next_step="check the NVIDIA driver") from error
    try:
        return [_nvml_device(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    finally:
        nvml.nvmlShutdown()


def _nvml_device(nvml: Any, index: int) -> NvmlDevice:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    try:
        memory: int | None = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    except nvml.NVMLError:
        memory = None
    return NvmlDevice(
        index=index,
        name=_text(nvml.nvmlDeviceGetName(handle)),
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        memory_bytes=memory,
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _fastest() -> str:
    if torch.cuda.is_available():
        return "cuda"
    if torch.backends.mps.is_available():
        return "mps"
    return "xla" if _has_tpu() else "cpu"


def _has_tpu() -> bool:
    """torch_xla may be installed where there is no TPU; its own CPU device is slower than torch's."""
    return find_spec("torch_xla") is not None and import_module("torch_xla.runtime").device_type() == "TPU"


def _cuda(local_rank: int, local_world_size: int) -> torch.device:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if local_rank >= count:
        raise ConfigurationError(
            f"rank {local_rank} of {local_world_size} on this machine has no GPU: {count} visible",
            allowed=f"at most {count} processes on this machine" if count else "device cpu",
            next_step="start fewer processes, make more GPUs visible, or use Accelerator(cpu=True)",
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def _mps(local_world_size: int) -> torch.device:
    if not torch.backends.mps.is_available():
        raise ConfigurationError("device mps is not available here", allowed="cpu", next_step="use another device")
    if local_world_size > 1:
        raise ConfigurationError(
            f"{local_world_size} processes on one Apple GPU",
            allowed="one process on mps",
            next_step="start one process, or use Accelerator(cpu=True)",
        )
    return torch.device("mps")


def _xla(local_world_size: int) -> torch.device:
    if find_spec("torch_xla") is None:
        raise MissingDependencyError("device xla needs torch_xla", next_step="install torch_xla for your TPU")
    if local_world_size > 1:
        raise ConfigurationError(
            f"{local_world_size} processes on xla: this version has no communication between XLA devices",
            allowed="one process on xla",
            next_step="start one process, or use several on cuda or cpu",
        )
    device: torch.device = import_module("torch_xla").device()
    return device
