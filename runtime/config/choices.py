"""What the options mean together: device, strategy, precision, batches. Answers that cannot both hold are errors."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from ..batch_arithmetic import BatchNumber, BatchVerdict, settle_batches
from ..errors import ConfigurationError
from ..mesh import ParallelDims
from .deepspeed_file import DeepSpeedFile
from .hostfile import LAUNCHER_ONLY
from .launch_options import DEVICES, SAGEMAKER_TYPES
from .loader import Given, deepspeed_values, load
from .option_kinds import write_text
from .option_table import table
from .resolve import Resolved

_RANKS = {"argument": 0, "command line": 1, "environment": 2, "file": 3}
_BUILT_STRATEGIES = ("single", "ddp", "fsdp", "deepspeed")
_BUILT_PRECISIONS = ("no", "bf16", "fp16")
_BY_TYPE = {
    "NO": ("", "single"),
    "MULTI_CPU": ("cpu", ""),
    "MULTI_GPU": ("cuda", ""),
    "XLA": ("xla", ""),
    "DEEPSPEED": ("", "deepspeed"),
    "FSDP": ("", "fsdp"),
    "MEGATRON_LM": ("", "megatron_lm"),
    **dict.fromkeys(SAGEMAKER_TYPES, ("", "")),
}
_ONLY_IF_CHOSEN = ("deepspeed", "fsdp", "megatron_lm", "fp8")


@dataclass(frozen=True)
class Answer:
    """What one option says about a question; `rank` orders the sources."""

    value: str
    said: str
    rank: int


@dataclass(frozen=True)
class Choices:
    """The launch as a whole.

    Attributes:
        device: a device kind, or a maker's kind that this version does not know; empty: the fastest.
        wants_gpus: a GPU option was given, so that the number of processes follows from the GPUs.
        strategy: empty: by the number of processes.
        precision: None: nobody said.
        unavailable: what this version refuses to launch, and what to use in its place.
        batches: of a DeepSpeed configuration; None without one.
        overruled: answers of weaker sources that differ.
        variables: what workers are told of the strategy, its settings and the window.
    """

    device: str
    wants_gpus: bool
    strategy: str
    precision: str | None
    num_processes: int | None
    unavailable: tuple[str, ...]
    deepspeed: DeepSpeedFile | None = None
    batches: BatchVerdict | None = None
    overruled: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)


def choose(resolved: Resolved) -> Choices:
    """Settle the questions that several options answer.

    Raises:
        ConfigurationError: answers contradict each other; both places are named.
    """
    deepspeed = _deepspeed_file(resolved)
    overruled: list[str] = []
    precision = _decide("mixed precision", _precision_answers(resolved, deepspeed), overruled)
    device = _decide("the device", _device_answers(resolved), overruled)
    strategy = _decide("the strategy", _strategy_answers(resolved), overruled)
    _require_whole(resolved, device, strategy)
    batches = None
    if deepspeed is not None:
        batches = _batches(resolved, deepspeed)
    word = strategy.value if strategy and strategy.value != "auto" else ""
    return Choices(
        device=device.value if device else "",
        wants_gpus=bool(device and device.value == "cuda") or resolved["gpu_ids"].is_given,
        strategy=word,
        precision=precision.value if precision else None,
        num_processes=resolved.get("num_processes"),
        unavailable=tuple(_unavailable(resolved, word, device, precision)),
        deepspeed=deepspeed,
        batches=batches,
        overruled=tuple(overruled),
        variables=_variables(resolved, strategy, deepspeed),
    )


def dims_of(resolved: Resolved, choices: Choices, *, world_size: int, local_world_size: int) -> ParallelDims:
    """The mesh that workers will make, if the script does not say otherwise."""
    if choices.strategy != "fsdp":
        return ParallelDims().resolve(world_size)
    words = {str(resolved.get(name)) for name in ("fsdp_sharding_strategy", "fsdp_reshard_after_forward")}
    hybrid = bool(words & {"HYBRID_SHARD", "HYBRID_SHARD_ZERO2", "4", "5"})
    return ParallelDims(data_shard=local_world_size if hybrid else world_size).resolve(world_size)


def _variables(resolved: Resolved, strategy: Answer | None, deepspeed: DeepSpeedFile | None) -> dict[str, str]:
    """The window, the strategy and the given settings of its section; they win over the caller's own variables."""
    section = "" if strategy is None else strategy.value
    told = {
        table()[name].variable: write_text(value.value)
        for name, value in resolved.given().items()
        if name == "gradient_accumulation_steps"
        or (section and table()[name].section == section and name not in LAUNCHER_ONLY)
    }
    if deepspeed is not None:  # whichever way it was given, workers find it from their own directory
        told[table()["deepspeed_config_file"].variable] = str(deepspeed.path.absolute())
    return told if strategy is None else {table()["strategy"].variable: strategy.value, **told}


def _decide(question: str, answers: Iterable[Answer], overruled: list[str]) -> Answer | None:
    """The answer of the strongest source; two different ones of equal strength are an error."""
    ordered = sorted(answers, key=lambda answer: answer.rank)
    if not ordered:
        return None
    first = ordered[0]
    for other in ordered[1:]:
        if other.rank == first.rank and other.value != first.value:
            raise ConfigurationError(
                f"{question} is {first.value} by {first.said}, but {other.value} by {other.said}",
                allowed="one of them",
                next_step="leave one of them out",
            )
        if other.value != first.value:
            overruled.append(f"{other.said} gives way to {first.said}")
    return first


def _answer(resolved: Resolved, name: str, word: str) -> Answer:
    value = resolved[name]
    return Answer(word, value.said(name), _RANKS[value.origin])


def _device_answers(resolved: Resolved) -> Iterator[Answer]:
    for name, word in (("cpu", "cpu"), ("multi_gpu", "cuda"), ("tpu", "xla")):
        if resolved[name].is_given and resolved.get(name):
            yield _answer(resolved, name, word)
    if resolved["device"].is_given:
        yield _answer(resolved, "device", resolved.get("device"))
    kind = resolved.get("distributed_type")
    if kind:
        word = _BY_TYPE[kind][0] if kind in _BY_TYPE else kind.removeprefix("MULTI_").lower()
        if word:
            yield _answer(resolved, "distributed_type", word)


def _strategy_answers(resolved: Resolved) -> list[Answer]:
    answers = [
        _answer(resolved, name, name.removeprefix("use_"))
        for name in ("use_deepspeed", "use_fsdp", "use_megatron_lm")
        if resolved.get(name)
    ]
    if resolved["strategy"].is_given:
        answers.append(_answer(resolved, "strategy", resolved.get("strategy")))
    kind = resolved.get("distributed_type")
    if kind in _BY_TYPE and _BY_TYPE[kind][1]:
        answers.append(_answer(resolved, "distributed_type", _BY_TYPE[kind][1]))
    if resolved.get("multi_gpu"):  # stronger than a file's word for one process, but no strategy of its own
        plain = _answer(resolved, "multi_gpu", "auto")
        answers += [] if any(answer.rank <= plain.rank for answer in answers) else [plain]
    return answers


def _precision_answers(resolved: Resolved, deepspeed: DeepSpeedFile | None) -> Iterator[Answer]:
    said = resolved["mixed_precision"]
    if said.is_given:
        yield _answer(resolved, "mixed_precision", said.value)
    if resolved.get("fp16"):
        yield _answer(resolved, "fp16", "fp16")
    theirs = deepspeed.precision if deepspeed is not None else None
    if theirs is None:
        return
    if said.is_given and said.value != theirs.value:
        raise ConfigurationError(
            f"{said.said('mixed_precision')}, but the DeepSpeed configuration says {theirs.value} ({theirs.place})",
            allowed="one precision",
            next_step="leave mixed_precision out, or change the DeepSpeed configuration",
        )
    yield Answer(theirs.value, f"mixed_precision {theirs.value} ({theirs.place})", _RANKS["file"])


def _deepspeed_file(resolved: Resolved) -> DeepSpeedFile | None:
    """The DeepSpeed JSON, given as the configuration file or by name; what is said beside it must agree with it."""
    main = resolved.file.deepspeed if resolved.file is not None else None
    named = resolved["deepspeed_config_file"]
    if named.value is None or str(named.value).lower() == "none":
        found = main
    else:
        other = load(resolved.path("deepspeed_config_file")).deepspeed
        if other is None:
            raise ConfigurationError(
                f"{named.said('deepspeed_config_file')} is no DeepSpeed configuration",
                allowed="a JSON with keys such as zero_optimization",
                next_step="give it to --config-file, or correct the name",
            )
        if main is not None and main.path != other.path:
            raise ConfigurationError(
                f"two DeepSpeed configurations: {main.path} and {named.said('deepspeed_config_file')}",
                allowed="one",
                next_step="leave one of them out",
            )
        found = other
    if found is not None:
        _require_agreement(resolved, deepspeed_values(found))
    return found


def _require_agreement(resolved: Resolved, theirs: dict[str, Given]) -> None:
    for name in ("zero_stage", "gradient_accumulation_steps"):
        said, given = resolved[name], theirs.get(name)
        if given is not None and said.is_given and said.value != given.value:
            raise ConfigurationError(
                f"{said.said(name)}, but {write_text(given.value)} in the DeepSpeed configuration ({given.place})",
                allowed="one value",
                next_step=f"leave {name} out, or set it to auto in the DeepSpeed configuration",
            )


def _batches(resolved: Resolved, deepspeed: DeepSpeedFile) -> BatchVerdict:
    settings = deepspeed.batches
    steps = resolved["gradient_accumulation_steps"]
    if settings.accumulation.value is None and steps.is_given:
        settings = replace(settings, accumulation=BatchNumber(steps.value, steps.place))
    processes = resolved["num_processes"]
    if processes.value is not None:
        settings = replace(settings, ranks=BatchNumber(processes.value, processes.place))
    return settle_batches(settings)


def _require_whole(resolved: Resolved, device: Answer | None, strategy: Answer | None) -> None:
    """Numbers that must fit together."""
    machines, rank, processes = resolved["num_machines"], resolved["machine_rank"], resolved["num_processes"]
    if rank.value >= machines.value:
        _clash(rank.said("machine_rank"), machines.said("num_machines"), f"ranks 0 to {machines.value - 1}")
    if processes.value is not None and processes.value % machines.value:
        _clash(
            processes.said("num_processes"),
            machines.said("num_machines"),
            "a number of processes that the number of machines divides",
        )
    if strategy is not None and strategy.value == "single" and (processes.value or 1) > 1:
        _clash(processes.said("num_processes"), strategy.said, "one process without distributed training")
    if resolved.get("multi_gpu") and processes.value == 1 and resolved["multi_gpu"].origin == processes.origin:
        _clash(processes.said("num_processes"), resolved["multi_gpu"].said("multi_gpu"), "two or more processes")
    if (
        device is not None
        and device.value == "cpu"
        and resolved["gpu_ids"].is_given
        and resolved.get("gpu_ids") != "all"
    ):
        _clash(device.said, resolved["gpu_ids"].said("gpu_ids"), "one or the other: no GPU is used with the device cpu")


def _clash(one: str, other: str, allowed: str) -> None:
    raise ConfigurationError(f"{one} does not go with {other}", allowed=allowed, next_step="change one of them")


def _unavailable(resolved: Resolved, strategy: str, device: Answer | None, precision: Answer | None) -> Iterator[str]:
    if strategy and strategy not in _BUILT_STRATEGIES:
        yield f"strategy {strategy}: not in this version (single, ddp, fsdp and deepspeed are)"
    if device is not None and device.value not in DEVICES:
        yield f"{device.said}: no device kind of this version ({', '.join(DEVICES)} are)"
    if precision is not None and precision.value not in _BUILT_PRECISIONS:
        yield f"{precision.said}: not in this version (no, bf16 and fp16 are)"
    for name, value in resolved.given().items():
        option = table()[name]
        chosen = option.section == strategy and strategy in _BUILT_STRATEGIES
        if option.section in _ONLY_IF_CHOSEN and not chosen:
            continue  # it asks for nothing, or was refused above
        absent = option.effect == "absent" and option.asks_for_something(value.value)
        if absent or (option.accepts and value.value not in option.accepts):
            yield f"{value.said(name)}: {option.remark}"
