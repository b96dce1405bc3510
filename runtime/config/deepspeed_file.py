"""A DeepSpeed JSON: recognised by its keys, every key of its own known or refused, its numbers checked."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..batch_arithmetic import OPEN, BatchNumber, BatchSettings
from ..deepspeed_keys import HALF, OFFLOAD, OWN, TOP, ZERO
from ..errors import ConfigurationError
from .file_syntax import Branch, Node, Scalar
from .option_kinds import Flag, Number, Whole, Word, WrongValue
from .option_table import nearest

_SECTIONS = {
    "zero_optimization": ZERO,
    "zero_optimization.offload_optimizer": OFFLOAD,
    "zero_optimization.offload_param": OFFLOAD,
    "fp16": HALF,
    "bf16": HALF,
    "bfloat16": HALF,
}
_KINDS: dict[str, Flag | Number | Whole | Word] = {
    "train_batch_size": Whole(1),
    "train_micro_batch_size_per_gpu": Whole(1),
    "gradient_accumulation_steps": Whole(1),
    "gradient_clipping": Number(),
    "zero_optimization.stage": Whole(0, 3),
    "zero_optimization.reduce_bucket_size": Whole(1),
    "zero_optimization.allgather_bucket_size": Whole(1),
    "zero_optimization.overlap_comm": Flag(),
    "zero_optimization.contiguous_gradients": Flag(),
    "zero_optimization.reduce_scatter": Flag(),
    "zero_optimization.offload_optimizer.device": Word(("none", "cpu", "nvme"), no_word="none"),
    "zero_optimization.offload_param.device": Word(("none", "cpu", "nvme"), no_word="none"),
    "zero_optimization.offload_optimizer.pin_memory": Flag(),
    "zero_optimization.offload_param.pin_memory": Flag(),
    "fp16.enabled": Flag(),
    "bf16.enabled": Flag(),
    "bfloat16.enabled": Flag(),
}
_AUTO = "auto"


@dataclass(frozen=True)
class DeepSpeedValue:
    value: Any
    place: str


@dataclass(frozen=True)
class DeepSpeedFile:
    """What of a DeepSpeed configuration matters to a launch.

    Attributes:
        precision: no, fp16 or bf16; None if the file leaves it open.
        batches: its three numbers; "auto" and absent ones are open.
    """

    path: Path
    precision: DeepSpeedValue | None
    zero_stage: DeepSpeedValue | None
    batches: BatchSettings

    def batches_on(
        self, ranks: int, *, dataloader: int | None = None, place: str = "the number of processes"
    ) -> BatchSettings:
        """The settings for settle_batches with this many data-parallel ranks and, if known, the loader's batch."""
        loader = OPEN if dataloader is None else BatchNumber(dataloader, "the script's loader")
        return replace(self.batches, ranks=BatchNumber(ranks, place), dataloader=loader)


def looks_like_deepspeed(entries: Mapping[str, Node]) -> bool:
    """Whether the keys are those of a DeepSpeed configuration. (fp16 alone is an old key of Accelerate's.)"""
    if "compute_environment" in entries or "distributed_type" in entries or "forerun_config" in entries:
        return False
    return any(key in OWN and not (key == "fp16" and isinstance(node, Scalar)) for key, node in entries.items())


def read_deepspeed(path: Path, tree: Branch) -> DeepSpeedFile:
    """Check the whole tree.

    Raises:
        ConfigurationError: a key is unknown, or a value is not of its kind; all are named.
    """
    found: dict[str, DeepSpeedValue] = {}
    problems: list[str] = []
    _walk(tree, "", TOP, found, problems)
    if _is_on(found, "fp16") and (_is_on(found, "bf16") or _is_on(found, "bfloat16")):
        problems.append("fp16 and bf16 are both enabled")
    if problems:
        raise ConfigurationError(
            f"{path} (a DeepSpeed configuration): {'; '.join(problems)}", next_step="correct the file"
        )
    return DeepSpeedFile(
        path=path,
        precision=_precision(found),
        zero_stage=found.get("zero_optimization.stage"),
        batches=BatchSettings(
            train=_number(found, "train_batch_size"),
            micro=_number(found, "train_micro_batch_size_per_gpu"),
            accumulation=_number(found, "gradient_accumulation_steps"),
        ),
    )


def _walk(
    branch: Branch, prefix: str, known: frozenset[str], found: dict[str, DeepSpeedValue], problems: list[str]
) -> None:
    for key, node in (branch.entries or {}).items():
        name = f"{prefix}{key}"
        if key not in known:
            near = nearest(key, known)
            problems.append(f"unknown key {name}" + (f", did you mean {prefix}{near}?" if near else ""))
        elif name in _SECTIONS:
            if isinstance(node, Branch) and node.entries is not None:
                _walk(node, f"{name}.", _SECTIONS[name], found, problems)
            elif not (isinstance(node, Scalar) and (node.text is None or node.text.lower() in ("false", "none"))):
                problems.append(f"{name} is no mapping")
        elif name in _KINDS:
            _check(name, node, found, problems)


def _check(name: str, node: Node, found: dict[str, DeepSpeedValue], problems: list[str]) -> None:
    if isinstance(node, Scalar) and (node.text is None or node.text == _AUTO):
        return
    kind = _KINDS[name]
    try:
        if not isinstance(node, Scalar) or node.text is None:
            raise WrongValue(kind.allowed)
        found[name] = DeepSpeedValue(kind.parse(node.text), node.place)
    except WrongValue as error:
        seen = repr(node.text) if isinstance(node, Scalar) else "a mapping or list"
        problems.append(f"{name} is {seen}, allowed: {error}, or auto")


def _is_on(found: Mapping[str, DeepSpeedValue], name: str) -> bool:
    value = found.get(f"{name}.enabled")
    return value is not None and value.value is True


def _precision(found: Mapping[str, DeepSpeedValue]) -> DeepSpeedValue | None:
    for name, word in (("bf16", "bf16"), ("bfloat16", "bf16"), ("fp16", "fp16")):
        if _is_on(found, name):
            return DeepSpeedValue(word, found[f"{name}.enabled"].place)
    off = [found[f"{name}.enabled"] for name in ("bf16", "bfloat16", "fp16") if f"{name}.enabled" in found]
    return DeepSpeedValue("no", off[0].place) if len(off) > 1 else None


def _number(found: Mapping[str, DeepSpeedValue], name: str) -> BatchNumber:
    value = found.get(name)
    return OPEN if value is None else BatchNumber(value.value, value.place)
