"""Bringing DeepSpeed in: imported when asked for, its messages kept off standard output, its compiled parts left out.

Training needs none of DeepSpeed's C++ extensions: the optimizer is torch's, and its shared-memory collectives serve
inference alone. Offloading to NVMe does need one, which is built at its first use.
"""

import logging
import shutil
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

_LIBRARY = "deepspeed"
_LOGGER = "DeepSpeed"
_COMPILERS = ("c++", "g++", "clang++")


def missing_for(device: str, *, offloads_to_nvme: bool, wants_fp16: bool) -> list[str]:
    """Why DeepSpeed cannot train here, in words; empty if it can."""
    missing = []
    if find_spec(_LIBRARY) is None:
        missing.append(
            "strategy deepspeed needs the package deepspeed, which this Python does not have: "
            'pip install "forerun[train]"'
        )
    if device not in ("cpu", "cuda"):
        missing.append(f"strategy deepspeed runs on cpu and cuda, not on {device}")
    if wants_fp16:
        missing.append(
            "mixed_precision='fp16' under strategy deepspeed is not in this version (DeepSpeed itself has none on a "
            "CPU): use bf16 or no"
        )
    if offloads_to_nvme:
        missing += _missing_for_builds()
    return missing


def load(device: str, *, builds_allowed: bool) -> ModuleType:
    """The library, quiet.

    Args:
        device: the kind on which it is to train; by itself it takes the fastest.
        builds_allowed: whether its extensions may be compiled.
    """
    with quiet():
        library, ops = import_module(_LIBRARY), import_module(f"{_LIBRARY}.ops")
        _import_muon()
        chosen = import_module(f"{_LIBRARY}.accelerator")
        if chosen.get_accelerator().device_name() != device and device == "cpu":
            chosen.set_accelerator(import_module(f"{_LIBRARY}.accelerator.cpu_accelerator").CPU_Accelerator())
    logging.getLogger(_LOGGER).setLevel(logging.ERROR)
    if not builds_allowed:
        ops.__compatible_ops__["deepspeed_shm_comm"] = False
    # It calls torch's collectives by names that torch has replaced.
    warnings.filterwarnings("ignore", message=r"`torch\.distributed\.\w+` is deprecated", category=FutureWarning)
    return library


def _import_muon() -> None:
    """Muon is refused, but reductions ask for its module, and that compiles its kernels: seconds for nothing."""
    compiler: Any = import_module(f"{_LIBRARY}.runtime.compiler")
    compiling, compiler.compile = compiler.compile, lambda *_, **__: lambda function: function
    try:
        import_module(f"{_LIBRARY}.runtime.zero.muon.original_muon")
    finally:
        compiler.compile = compiling


def gathered(parameters: Sequence[Any], **options: Any) -> AbstractContextManager[None]:
    """DeepSpeed's own: while inside, sharded parameters are whole on every rank."""
    context: AbstractContextManager[None] = import_module(_LIBRARY).zero.GatheredParameters(parameters, **options)
    return context


@contextmanager
def quiet() -> Iterator[None]:
    """While it is imported or makes an engine: its own warnings, and what it would write to standard output."""
    disabled = logging.root.manager.disable
    with warnings.catch_warnings(), redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(disabled)


def _missing_for_builds() -> list[str]:
    """What compiling an extension lacks."""
    missing = []
    if not any(shutil.which(name) for name in _COMPILERS):
        missing.append(
            f"offloading to NVMe compiles an extension of DeepSpeed, and no C++ compiler is on PATH "
            f"({', '.join(_COMPILERS)}): install one, or offload to cpu"
        )
    beside_python = Path(sys.executable).with_name("ninja").exists()
    if not beside_python and shutil.which("ninja") is None:
        missing.append(
            "offloading to NVMe compiles an extension of DeepSpeed, and ninja is not on PATH: pip install ninja, or "
            "offload to cpu"
        )
    return missing
