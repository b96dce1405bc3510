"""The folder that Accelerate's save_state writes: model, optimizer, scheduler, scaler, random states, custom ones."""

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...errors import CheckpointError, MissingDependencyError
from .contents import ForeignContents, ForeignOptimizer
from .distributed_folder import METADATA, DistributedFolder
from .plain_file import NUMPY, load_plain

_MODELS = ("model", "pytorch_model", "pytorch_model_fsdp")


def is_accelerate_folder(directory: Path) -> bool:
    """Whether its files are those of save_state, and not of a model's export alone."""
    if not _has_model(directory):
        return False
    return any((directory / name).exists() for name in ("optimizer.bin", "optimizer_0", "random_states_0.pkl"))


def read_accelerate_folder(directory: Path, *, rank: int) -> ForeignContents:
    """Everything in it that this runtime can use, and the random states of `rank`.

    Raises:
        CheckpointError: a file is damaged, or holds objects that only unpickling would bring back.
        MissingDependencyError: it has safetensors, and the package is absent.
    """
    return ForeignContents(
        kind="accelerate",
        models=_numbered(lambda index: _model(directory, index)),
        **read_beside_the_model(directory, rank=rank),
    )


def read_beside_the_model(directory: Path, *, rank: int) -> dict[str, Any]:
    """The fields of ForeignContents that Accelerate writes whatever the strategy."""
    optimizers = _numbered(lambda index: _optimizer(directory, index))
    ranks = [path for path in directory.glob("random_states_*.pkl") if re.fullmatch(r"random_states_\d+", path.stem)]
    rng, left_out = _random_states(directory / f"random_states_{rank}.pkl")
    for path in sorted([*directory.glob("sampler*.bin"), *directory.glob("dl_state_dict*.bin")]):
        left_out.append(f"{path.name}: the position in the data is kept differently here; loaders start an epoch anew")
    scaler = directory / "scaler.pt"
    return {
        "optimizers": optimizers,
        "schedulers": _numbered(lambda index: _plain(directory, "scheduler", index)),
        "custom": _numbered(lambda index: _custom(directory, index)),
        "scaler": load_plain(scaler) if scaler.is_file() else None,
        "rng": rng,
        "num_ranks": len(ranks) or None,
        "optimizer_steps": steps_of(optimizers[0].state) if optimizers else None,
        "left_out": tuple(left_out),
    }


def steps_of(state: dict[str, Any]) -> int | None:
    """The optimizer steps that a state has seen, where it counts them."""
    counts = [int(values["step"]) for values in state["state"].values() if "step" in values]
    return max(counts, default=None)


def read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    """A file of safetensors, with tied names given back their tensor.

    Raises:
        CheckpointError: it is damaged.
        MissingDependencyError: the package is absent.
    """
    try:
        library: Any = import_module("safetensors")
    except ImportError as error:
        raise MissingDependencyError(
            f"{path} needs the package safetensors", next_step="pip install safetensors"
        ) from error
    try:
        with library.safe_open(path, framework="pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  # no mapping
            aliases = dict(opened.metadata() or {})
    except (OSError, library.SafetensorError) as error:
        raise CheckpointError(f"{path} does not load: {error}", next_step="take another checkpoint") from error
    return tensors | {name: tensors[kept] for name, kept in aliases.items() if kept in tensors}


def _has_model(directory: Path) -> bool:
    files = [f"{_MODELS[0]}.safetensors", f"{_MODELS[1]}.bin", f"{_MODELS[2]}.bin", f"{_MODELS[2]}_0/{METADATA}"]
    return any((directory / name).is_file() for name in files)


def _numbered(read: Callable[[int], Any]) -> list[Any]:
    """What `read` finds for 0, 1, ...; None ends it."""
    found: list[Any] = []
    while (item := read(len(found))) is not None:
        found.append(item)
    return found


def _model(directory: Path, index: int) -> dict[str, Any] | None:
    ending = f"_{index}" if index else ""
    safe = directory / f"model{ending}.safetensors"
    if safe.is_file():
        return read_safetensors(safe)
    for stem in _MODELS[1:]:
        path = directory / f"{stem}{ending}.bin"
        if path.is_file():
            return _mapping(load_plain(path), path)
    sharded = directory / f"pytorch_model_fsdp_{index}"
    if sharded.is_dir():
        inner = DistributedFolder(sharded).nested()
        return _mapping(inner.get("model", inner), sharded)
    return None


def _optimizer(directory: Path, index: int) -> ForeignOptimizer | None:
    path = directory / f"optimizer{f'_{index}' if index else ''}.bin"
    sharded = directory / f"optimizer_{index}"
    if path.is_file():
        state = _mapping(load_plain(path), path)
    elif sharded.is_dir():
        path, inner = sharded, DistributedFolder(sharded).nested()
        state = _mapping(inner.get("optimizer", inner), sharded)
        groups = state.get("param_groups", {})
        state["param_groups"] = [groups[place] for place in sorted(groups)] if isinstance(groups, dict) else groups
        state.setdefault("state", {})
    else:
        return None
    if not {"state", "param_groups"} <= state.keys():
        raise CheckpointError(
            f"{path} is no optimizer's state: it holds {', '.join(map(str, list(state)[:5])) or 'nothing'}",
            allowed="state and param_groups",
            next_step="take another checkpoint",
        )
    names = [name for group in state["param_groups"] for name in group["params"]]
    return ForeignOptimizer(state, by_name=any(isinstance(name, str) for name in names))


def _plain(directory: Path, stem: str, index: int) -> dict[str, Any] | None:
    path = directory / f"{stem}{f'_{index}' if index else ''}.bin"
    return _mapping(load_plain(path), path) if path.is_file() else None


def _custom(directory: Path, index: int) -> Any:
    path = directory / f"custom_checkpoint_{index}.pkl"
    return load_plain(path, allowed=NUMPY) if path.is_file() else None


def _random_states(path: Path) -> tuple[dict[str, Any] | None, list[str]]:
    """The states in this runtime's form; where they are of a form that is not known, the reason."""
    if not path.is_file():
        return None, [f"{path.name} is missing: this rank's random states follow from the present ones"]
    states = load_plain(path, allowed=NUMPY)
    try:
        version, internal, gauss = states["random_state"]
        name, keys, position, has_gauss, cached = states["numpy_random_seed"]
        rng = {
            "python": [version, list(internal), gauss],
            "numpy": [str(name), torch.tensor(np.asarray(keys, dtype=np.int64)), int(position), int(has_gauss), cached],
            "torch": states["torch_manual_seed"],
        }
        if "torch_cuda_manual_seed" in states:
            rng["cuda"] = list(states["torch_cuda_manual_seed"])
    except (KeyError, TypeError, ValueError) as error:
        return None, [f"{path.name}: random states of another form ({type(error).__name__}: {error})"]
    return rng, []


def _mapping(value: Any, path: Path) -> dict[str, Any]:
    if isinstance(value, dict):
        return dict(value)
    raise CheckpointError(f"{path} holds a {type(value).__name__}, not a state", next_step="take another checkpoint")
