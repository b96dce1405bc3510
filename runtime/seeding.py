"""Random number generators: seeding all of them, and their states as plain data that a checkpoint can hold."""

import hashlib
import random
import sys
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from .env import CUBLAS_WORKSPACE, set_default
from .errors import CheckpointError, UsageError


def set_seed(seed: int, device_specific: bool = False, deterministic: bool = False) -> None:
    """Seed python's, numpy's and torch's generators on every device.

    Args:
        device_specific: add the rank, so that ranks draw different numbers.
        deterministic: also make torch refuse operations without a deterministic implementation, cuDNN choose its
            kernels without timing them, and cuBLAS use a fixed workspace (before the first use of the GPU).

    Raises:
        UsageError: the seed is no integer that every generator takes, or device_specific before ranks are known.
    """
    if not isinstance(seed, (int, np.integer)) or not -(2**63) <= seed < 2**63:
        raise UsageError(f"set_seed({seed!r})", allowed="an integer of 64 bits", next_step="pass a number, such as 42")
    seed = int(seed)
    if device_specific:
        if not dist.is_initialized() and dist.is_torchelastic_launched():
            raise UsageError(
                "set_seed(device_specific=True) before the ranks are known",
                next_step="create the Accelerator first",
            )
        seed += dist.get_rank() if dist.is_initialized() else 0
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    if "torch_xla" in sys.modules:
        sys.modules["torch_xla"].manual_seed(seed)
    if deterministic:
        set_default(CUBLAS_WORKSPACE, ":4096:8")
        torch.backends.cudnn.benchmark = False
        torch.use_deterministic_algorithms(True)


def derive_seed(*parts: int | str) -> int:
    """A seed for one purpose, well mixed, the same on every machine."""
    digest = hashlib.sha256("/".join(str(part) for part in parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def rng_state() -> dict[str, Any]:
    """The state of every generator of this process, as tensors, numbers and lists."""
    version, internal, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "python": [version, list(internal), gauss],
        "numpy": [
            str(name),
            torch.tensor(np.asarray(keys, dtype=np.int64)),
            int(position),
            int(has_gauss),
            float(cached),
        ],
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def restore_rng_state(state: dict[str, Any]) -> None:
    """The inverse of rng_state; CUDA states are restored as far as the devices are here.

    Raises:
        CheckpointError: the state was not written by rng_state.
    """
    try:
        version, internal, gauss = state["python"]
        name, keys, position, has_gauss, cached = state["numpy"]
        torch_state = state["torch"]
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"a state of random generators without {error}", allowed="one saved by forerun"
        ) from error
    random.setstate((version, tuple(internal), gauss))
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(torch_state)
    if torch.cuda.is_available():
        for index, device_state in enumerate(state.get("cuda", ())[: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(device_state, index)
