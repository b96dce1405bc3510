"""The folder that DeepSpeed's save_checkpoint writes, stages 0 to 3: whole weights and optimizer states from it."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ...errors import CheckpointError
from .accelerate_folder import read_beside_the_model
from .contents import ForeignContents, ForeignOptimizer
from .plain_file import DEEPSPEED, NUMPY, load_plain
from .zero_partitions import Group, join_flat, join_fragments, join_pieces

LATEST = "latest"
_MODEL = re.compile(r"(?:zero_pp_rank_(\d+)_)?mp_rank_(\d+)_model_states\.pt")
_OPTIMIZER = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")


def find_deepspeed_folder(directory: Path) -> Path | None:
    """The folder with the states: `directory` itself, or the one that its file `latest` names; None without any."""
    if _numbered(directory, _MODEL):
        return directory
    latest = directory / LATEST
    if not latest.is_file():
        return None
    tag = latest.read_text(errors="replace").strip()
    inner = directory / tag
    if not tag or Path(tag).name != tag or not inner.is_dir() or not _numbered(inner, _MODEL):
        raise CheckpointError(
            f"{latest} names {tag[:80]!r}, which is no folder of model states beside it",
            allowed="the name of a folder that save_checkpoint wrote",
            next_step="give that folder itself",
        )
    return inner


def read_deepspeed_folder(directory: Path, *, rank: int) -> ForeignContents:
    """Everything in it that this runtime can use; what Accelerate wrote beside it is read too.

    Args:
        directory: what was given to save_checkpoint or save_state, or the folder of one step in it.

    Raises:
        CheckpointError: a file is missing, damaged, short, or of a model that was split by tensor or pipeline.
    """
    inner = find_deepspeed_folder(directory)
    assert inner is not None, "the caller has recognised it"
    files = _numbered(inner, _MODEL)
    models = [_load(path) for path in files]
    first = models[0]
    _require_whole_model(inner, first)
    shards = [_load(path) for path in _numbered(inner, _OPTIMIZER)]
    states = [_entry(shard, "optimizer_state_dict", inner) for shard in shards]
    if states:
        _require_all_ranks(inner, states)
        weights, optimizer = _zero(inner, models, states)
    else:
        weights, optimizer = _plain(first, inner)
    beside = read_beside_the_model(directory, rank=rank)
    left_out = list(beside.pop("left_out"))
    if beside["rng"] is None:
        left_out = [line for line in left_out if not line.startswith("random_states")]
        left_out.append("random states: DeepSpeed saves none; they follow from the present ones")
    schedule = first.get("lr_scheduler")
    schedulers = beside.pop("schedulers") or ([dict(schedule)] if isinstance(schedule, Mapping) else [])
    left_out += [
        f"{name}: of DeepSpeed's own data pipeline" for name in ("data_sampler", "random_ltd") if first.get(name)
    ]
    if states and states[0].get("dynamic_loss_scale"):
        left_out.append("loss scale: it starts anew")
    client = sorted(set(first) - _KNOWN)
    if client:
        left_out.append(f"client state {', '.join(map(str, client))}: no object here asks for it")
    return ForeignContents(
        **beside
        | {
            "kind": "deepspeed",
            "models": [weights],
            "optimizers": [optimizer] if optimizer else [],
            "schedulers": schedulers,
            "num_ranks": len(states) or beside["num_ranks"] or first.get("dp_world_size"),
            "optimizer_steps": first.get("global_steps"),
            "left_out": tuple(left_out),
        }
    )


_KNOWN = frozenset(
    {
        "module",
        "buffer_names",
        "optimizer",
        "param_shapes",
        "frozen_param_shapes",
        "shared_params",
        "frozen_param_fragments",
        "lr_scheduler",
        "data_sampler",
        "random_ltd",
        "sparse_tensor_module_names",
        "skipped_steps",
        "global_steps",
        "global_samples",
        "dp_world_size",
        "mp_world_size",
        "ds_config",
        "ds_version",
        "checkpoint_parallel_dimensions",
        "num_experts",
    }
)


def _zero(
    inner: Path, models: list[dict[str, Any]], states: list[dict[str, Any]]
) -> tuple[dict[str, Any], ForeignOptimizer | None]:
    stage = int(states[0].get("zero_stage") or 0)
    first = models[0]
    shapes = [dict(group) for group in first.get("param_shapes") or []]
    if not shapes:
        raise CheckpointError(
            f"{inner} does not say which parameters its partitions hold (param_shapes)",
            next_step="convert it with the zero_to_fp32.py that lies beside it",
        )
    if stage == 3:
        if len(models) != len(states):
            raise CheckpointError(
                f"{inner} has model states of {len(models)} ranks and optimizer states of {len(states)}",
                next_step="bring all files together",
            )
        partitions = [_entry(state, "fp32_flat_groups", inner) for state in states]
        flat = {name: shape for group in shapes for name, shape in group.items()}
        master = join_pieces(flat, partitions, place="the weights")
        optimizer = _stage3_optimizer(inner, states, shapes)
    else:
        gaps = states[0].get("param_alignment_paddings") or [()] * len(shapes)
        groups = [Group(group, gap) for group, gap in zip(shapes, gaps, strict=True)]
        partitions = [_entry(state, "single_partition_of_fp32_groups", inner) for state in states]
        master = {}
        for index, group in enumerate(groups):
            parts = [_at(parts, index, inner) for parts in partitions]
            master |= join_flat(group, parts, place=f"parameter group {index}")
        optimizer = _flat_optimizer(inner, states, groups)
    whole = dict(_buffers(first))
    whole |= _frozen(models, stage)
    whole |= master
    for alias, kept in dict(first.get("shared_params") or {}).items():
        if kept in whole:
            whole[alias] = whole[kept]
    order = [name for name in first["module"] if name in whole]
    lost = [name for name in first["module"] if name not in whole and stage == 3]
    if lost:
        raise CheckpointError(f"{inner} has no values of {', '.join(lost[:5])}", next_step="take another checkpoint")
    rest = {name: value for name, value in first["module"].items() if name not in whole}
    return {name: whole[name] for name in order} | rest | whole, optimizer


def _buffers(first: dict[str, Any]) -> dict[str, torch.Tensor]:
    names = set(first.get("buffer_names") or ())
    return {name: value for name, value in first["module"].items() if name in names}


def _frozen(models: list[dict[str, Any]], stage: int) -> dict[str, torch.Tensor]:
    """Parameters that were not trained, in their own precision."""
    shapes = models[0].get("frozen_param_shapes") or {}
    frozen = {}
    for name, shape in shapes.items():
        fragments = [dict(model.get("frozen_param_fragments") or {}).get(name) for model in models]
        present = [fragment for fragment in fragments if isinstance(fragment, torch.Tensor)]
        if stage != 3:
            present = present[:1]
        if not present or (stage == 3 and len(present) != len(models)):
            raise CheckpointError(
                f"the frozen parameter {name} is not in every file of model states",
                next_step="bring all files together",
            )
        frozen[name] = join_fragments(name, shape, present)
    return frozen


def _flat_optimizer(inner: Path, states: list[dict[str, Any]], groups: Sequence[Group]) -> ForeignOptimizer | None:
    bases = [state.get("base_optimizer_state") for state in states]
    if not all(isinstance(base, Mapping) and "state" in base for base in bases):
        return None  # the elastic form; the caller says that there is none
    gathered: dict[str, dict[str, Any]] = {}
    for index, group in enumerate(groups):
        held = [dict(base["state"]).get(index, {}) for base in bases if base is not None]
        for name, value in held[0].items():
            values = [state.get(name) for state in held]
            if isinstance(value, torch.Tensor) and value.dim():
                parts = join_flat(group, [_tensor(v, name, inner) for v in values], place=f"{name} of group {index}")
            else:
                parts = _each_its_own(group.shapes, value)
            for parameter, part in parts.items():
                gathered.setdefault(parameter, {})[name] = part
    return _named(inner, gathered, bases[0], [list(group.shapes) for group in groups])


def _stage3_optimizer(
    inner: Path, states: list[dict[str, Any]], shapes: Sequence[Mapping[str, Any]]
) -> ForeignOptimizer | None:
    bases = [state.get("optimizer_state_dict") for state in states]
    if not all(isinstance(base, Mapping) and "state" in base for base in bases):
        return None
    flat = {name: shape for group in shapes for name, shape in group.items()}
    gathered: dict[str, dict[str, Any]] = {name: {} for name in flat}
    held = [[dict(base["state"])[key] for key in sorted(base["state"])] for base in bases if base is not None]
    for name, value in (held[0][0] if held and held[0] else {}).items():
        if isinstance(value, torch.Tensor) and value.dim():
            ranks = [[_tensor(sub.get(name), name, inner) for sub in subs] for subs in held]
            parts = join_pieces(flat, ranks, place=name)
        else:
            parts = _each_its_own(flat, value)
        for parameter, part in parts.items():
            gathered[parameter][name] = part
    return _named(inner, gathered, bases[0], [list(group) for group in shapes])


def _each_its_own(names: Mapping[str, Any], value: Any) -> dict[str, Any]:
    """A value that a group has in common (the count of steps); a tensor is copied, since each one is stepped on."""
    return {name: value.clone() if isinstance(value, torch.Tensor) else value for name in names}


def _named(inner: Path, gathered: dict[str, Any], base: Any, names: Sequence[Sequence[str]]) -> ForeignOptimizer | None:
    groups = [dict(group) for group in base.get("param_groups", [])]
    if len(groups) != len(names):
        raise CheckpointError(
            f"{inner} has {len(names)} groups of parameters and settings of {len(groups)}",
            next_step="take another checkpoint",
        )
    listed = [{**group, "params": list(own)} for group, own in zip(groups, names, strict=True)]
    # Nothing of an optimizer without states (plain SGD) is lost: its groups say all.
    return ForeignOptimizer({"state": {k: v for k, v in gathered.items() if v}, "param_groups": listed}, by_name=True)


def _plain(first: dict[str, Any], inner: Path) -> tuple[dict[str, Any], ForeignOptimizer | None]:
    """Stage 0: everything is in the model's file."""
    state = first.get("optimizer")
    if not isinstance(state, Mapping):
        return dict(first["module"]), None
    inner_state = state.get("optimizer_state_dict", state)
    if not isinstance(inner_state, Mapping) or not {"state", "param_groups"} <= inner_state.keys():
        raise CheckpointError(
            f"{inner}: the optimizer's state has another form: {', '.join(map(str, state))}",
            next_step="load it with DeepSpeed and save with ZeRO",
        )
    return dict(first["module"]), ForeignOptimizer(dict(inner_state), by_name=False)


def _require_whole_model(inner: Path, first: dict[str, Any]) -> None:
    if int(first.get("mp_world_size") or 1) > 1 or any(match[2] != "00" for match in _matches(inner, _MODEL)):
        raise CheckpointError(
            f"{inner} is of a model split over ranks by tensor or pipeline parallelism",
            allowed="ZeRO alone",
            next_step="convert it with DeepSpeed's ds_to_universal",
        )
    if "module" not in first:
        raise CheckpointError(f"{inner} has no model (module)", next_step="take another checkpoint")


def _require_all_ranks(inner: Path, states: list[dict[str, Any]]) -> None:
    counts = states[0].get("partition_count")
    count = max(counts) if isinstance(counts, (list, tuple)) else counts
    if count is not None and int(count) != len(states):
        raise CheckpointError(
            f"{inner} was saved by {count} ranks and has optimizer states of {len(states)}",
            allowed="the files of all ranks",
            next_step="bring them together",
        )


def _load(path: Path) -> dict[str, Any]:
    loaded = load_plain(path, allowed=(*NUMPY, *DEEPSPEED))
    if not isinstance(loaded, dict):
        raise CheckpointError(f"{path} holds a {type(loaded).__name__}", next_step="take another checkpoint")
    return loaded


def _matches(directory: Path, pattern: re.Pattern[str]) -> list[re.Match[str]]:
    try:
        found = [match for path in directory.iterdir() if (match := pattern.fullmatch(path.name))]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(found, key=lambda match: (int(match[1] or 0), int(match[2])))


def _numbered(directory: Path, pattern: re.Pattern[str]) -> list[Path]:
    """Files of all ranks, in the order of ranks."""
    return [directory / match[0] for match in _matches(directory, pattern)]


def _entry(state: Mapping[str, Any], name: str, inner: Path) -> Any:
    if name not in state:
        raise CheckpointError(
            f"{inner}: a file of states has no {name}; it holds {', '.join(map(str, list(state)[:8]))}",
            next_step="take another checkpoint",
        )
    return state[name]


def _at(parts: Sequence[Any], index: int, inner: Path) -> torch.Tensor:
    if index >= len(parts):
        raise CheckpointError(f"{inner}: a rank lacks parameter group {index}", next_step="take another checkpoint")
    return _tensor(parts[index], f"group {index}", inner)


def _tensor(value: Any, name: str, inner: Path) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    raise CheckpointError(f"{inner}: {name} is no tensor on every rank", next_step="take another checkpoint")
