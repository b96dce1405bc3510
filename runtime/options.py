"""The small option objects that Accelerator takes, as the Accelerate API names them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from typing import Any

from .errors import ConfigurationError

MIXED_PRECISIONS = ("no", "bf16", "fp16")
ABSENT_SETTINGS = (
    "megatron_lm_plugin",
    "torch_tp_plugin",
)
RNG_TYPES = ("torch", "cuda", "generator")
DEFAULT_SHARD_SIZE = "5GB"
"""Of the files of exported weights."""


@dataclass
class DataLoaderConfiguration:
    """How loaders are sharded.

    Attributes:
        split_batches: the loader's batch is the global one, and each rank takes a part; else each rank takes a batch.
        dispatch_batches: rank 0 reads and the others receive; None and False let every rank read its own shard.
        even_batches: all ranks take the same number of full batches; repeated samples never count in metrics.
            False: no sample is repeated, and ranks may have different numbers of batches.
        use_seedable_sampler: accepted for either value: shuffling always depends on seed and epoch alone.
        data_seed: seed of the shuffling; None takes torch's seed of rank 0.
        non_blocking: copy batches to the device without waiting.
        use_stateful_dataloader: after load_state, the next iteration begins where the checkpoint was taken.
            False leaves skipping to skip_first_batches; the epoch is restored in either case.
    """

    split_batches: bool = False
    dispatch_batches: bool | None = None
    even_batches: bool = True
    use_seedable_sampler: bool = True
    data_seed: int | None = None
    non_blocking: bool = False
    use_stateful_dataloader: bool = False


@dataclass(frozen=True)
class GradientAccumulationPlugin:
    """The accumulation window.

    Attributes:
        num_steps: micro-batches of a full window.
        adjust_scheduler: accepted; schedulers always count optimizer steps.
        sync_with_dataloader: the end of the loader ends the window.
        sync_each_batch: reduce gradients after every micro-batch (less memory, more communication).
    """

    num_steps: int = 1
    adjust_scheduler: bool = True
    sync_with_dataloader: bool = True
    sync_each_batch: bool = False


@dataclass(frozen=True)
class ProjectConfiguration:
    """Where checkpoints go.

    Attributes:
        project_dir: the root; checkpoints lie in its folder `checkpoints`.
        automatic_checkpoint_naming: save_state() names checkpoints checkpoint_0, checkpoint_1, ...
        total_limit: number of automatically named checkpoints to keep; older ones go after a new one is complete.
        iteration: number of the first one.
        save_on_each_node: each machine writes a whole checkpoint of its own. Refused, since one checkpoint is complete.
        logging_dir: where trackers write; the project_dir where it is None.
    """

    project_dir: str | None = None
    logging_dir: str | None = None
    automatic_checkpoint_naming: bool = False
    total_limit: int | None = None
    iteration: int = 0
    save_on_each_node: bool = False


@dataclass(frozen=True)
class AutocastKwargs:
    enabled: bool = True
    cache_enabled: bool | None = None


@dataclass(frozen=True)
class GradScalerKwargs:
    init_scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    enabled: bool = True


@dataclass(frozen=True)
class DistributedDataParallelKwargs:
    """Passed on to torch's DistributedDataParallel.

    Attributes:
        comm_hook, comm_wrapper, comm_state_option: accepted where they ask for no hook; this version has none.
    """

    dim: int = 0
    broadcast_buffers: bool = True
    bucket_cap_mb: int = 25
    find_unused_parameters: bool = False
    check_reduction: bool = False
    gradient_as_bucket_view: bool = False
    static_graph: bool = False
    comm_hook: str = "no"
    comm_wrapper: str = "no"
    comm_state_option: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        hooks = [f"{name}={getattr(self, name)!s}" for name in ("comm_hook", "comm_wrapper") if self._hooked(name)]
        if hooks or self.comm_state_option:
            raise ConfigurationError(
                f"communication hooks ({', '.join(hooks) or 'comm_state_option'}): this version does not have them",
                allowed="gradients reduced as they are",
                next_step="leave comm_hook, comm_wrapper and comm_state_option out",
            )

    def _hooked(self, name: str) -> bool:
        value = getattr(self, name)
        return getattr(value, "value", value) not in ("no", None)


@dataclass(frozen=True)
class InitProcessGroupKwargs:
    """The process group.

    Attributes:
        init_method: where the ranks meet; None takes what the launcher says.
        timeout: after which the group itself gives up; None means 30 minutes.
        collective_deadline_s: how long a rank waits in one of our collectives for a rank that does not come.
    """

    backend: str | None = None
    init_method: str | None = None
    timeout: timedelta | None = timedelta(minutes=30)
    collective_deadline_s: float = 300.0


@dataclass(frozen=True)
class ProfileKwargs:
    """For accelerator.profile().

    Attributes:
        activities: cpu, cuda, xpu, mtia, hpu; None takes those that are here.
        schedule_option: wait, warmup, active, repeat, skip_first: numbers of steps, as in torch.profiler.schedule.
        on_trace_ready: called with the profiler when a cycle of the schedule, or the block, is over.
        record_shapes, profile_memory, with_stack, with_flops, with_modules: as torch.profiler.profile has them.
        output_trace_dir: where each rank writes its Chrome trace; None takes the run directory, where there is one.
    """

    activities: Sequence[Any] | None = None
    schedule_option: dict[str, int] | None = None
    on_trace_ready: Any = None
    record_shapes: bool = False
    profile_memory: bool = False
    with_stack: bool = False
    with_flops: bool = False
    with_modules: bool = False
    output_trace_dir: str | None = None


@dataclass(frozen=True)
class Handlers:
    """kwargs_handlers sorted by kind, each with its default."""

    autocast: AutocastKwargs = AutocastKwargs()
    scaler: GradScalerKwargs = GradScalerKwargs()
    ddp: DistributedDataParallelKwargs = DistributedDataParallelKwargs()
    group: InitProcessGroupKwargs = InitProcessGroupKwargs()
    profile: ProfileKwargs = ProfileKwargs()


def sort_handlers(handlers: list[Any] | None) -> Handlers:
    """Refuse unknown and repeated handlers.

    Raises:
        ConfigurationError: a handler is of no known kind, or given twice.
    """
    kinds = {
        AutocastKwargs: "autocast",
        GradScalerKwargs: "scaler",
        DistributedDataParallelKwargs: "ddp",
        InitProcessGroupKwargs: "group",
        ProfileKwargs: "profile",
    }
    given: dict[str, Any] = {}
    for handler in handlers or []:
        name = kinds.get(type(handler))
        if name is None or name in given:
            raise ConfigurationError(
                f"kwargs_handlers holds {'a second ' if name else ''}{type(handler).__name__}",
                allowed=f"at most one of each: {', '.join(kind.__name__ for kind in kinds)}",
                next_step="remove it",
            )
        given[name] = handler
    return Handlers(**given)


def as_keywords(options: Any) -> dict[str, Any]:
    return asdict(options)


def changed_keywords(options: Any) -> dict[str, Any]:
    """The fields that differ from their defaults, so that a backend's own defaults (and deprecations) stay its own."""
    default = as_keywords(type(options)())
    return {name: value for name, value in as_keywords(options).items() if value != default[name]}


def refuse_absent(settings: Mapping[str, Any]) -> None:
    """Name every setting whose backend this version does not have, and every one that nobody has.

    Raises:
        ConfigurationError: one of `settings` was given.
    """
    unknown = sorted(set(settings) - set(ABSENT_SETTINGS))
    if unknown:
        raise ConfigurationError(
            f"Accelerator has no argument {', '.join(unknown)}",
            allowed="the arguments in help(Accelerator)",
            next_step="correct or remove it",
        )
    given = sorted(name for name, value in settings.items() if value is not None)
    if given:
        raise ConfigurationError(
            f"{', '.join(given)}: this version has no backend for it",
            allowed="strategies single, ddp, fsdp2 and deepspeed, mixed_precision no, bf16 and fp16",
            next_step=f"remove {', '.join(given)}; several processes use DDP, or FSDP2 with fsdp_plugin",
        )


def check_precision(name: str) -> str:
    """The precision's name, if this version has it.

    Raises:
        ConfigurationError: it has not (fp8), or nobody has.
    """
    if name not in MIXED_PRECISIONS:
        reason = ": this version does not have it" if name == "fp8" else ""
        raise ConfigurationError(
            f"mixed_precision={name!r}{reason}",
            allowed=", ".join(MIXED_PRECISIONS),
            next_step="use bf16 where the device has it, else fp16 or no",
        )
    return name


def settle_precision(given: str | None, *, said: str | None, place: str, launched: str) -> str:
    """The precision: the script's, else what the strategy's settings say, else the launch's, else no.

    Args:
        said, place: what the strategy's own settings say, and where.

    Raises:
        ConfigurationError: two of the script differ, or this version does not have it.
    """
    if given is not None and said is not None and given != said:
        raise ConfigurationError(
            f"mixed_precision={given!r}, but {said!r} in {place}",
            allowed="one precision",
            next_step="remove one of them",
        )
    return check_precision(given or said or launched or "no")


def accumulation_settings(
    steps: int | None,
    plugin: GradientAccumulationPlugin | None,
    *,
    launched: int | None = None,
    said: int | None = None,
    place: str = "",
) -> GradientAccumulationPlugin:
    """The window, from either of the two arguments of the script, else from the launch, else one micro-batch.

    Args:
        said, place: what the strategy's own settings say, and where; it stands before the launch.

    Raises:
        ConfigurationError: two are given that differ, or the number is not positive.
    """
    if plugin is not None and steps not in (None, 1):
        raise ConfigurationError(
            f"gradient_accumulation_steps={steps} and a gradient_accumulation_plugin",
            allowed="one of them",
            next_step="remove one",
        )
    given = steps if plugin is None else plugin.num_steps
    if said is not None and given not in (None, said) and (plugin is None or given != 1):
        raise ConfigurationError(
            f"gradient_accumulation_steps={given}, but {said} in {place}",
            allowed="one number",
            next_step="remove one of them",
        )
    if said is not None and plugin is not None:
        return replace(plugin, num_steps=said)
    if steps is None:
        steps = said or launched or 1
    chosen = plugin or GradientAccumulationPlugin(num_steps=steps)
    check_accumulation(chosen.num_steps)
    return chosen


def check_accumulation(steps: Any) -> int:
    """The number of micro-batches of a window.

    Raises:
        ConfigurationError: it is none.
    """
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise ConfigurationError(f"gradient_accumulation_steps={steps!r}", allowed="an integer of at least 1")
    return steps


def loader_settings(split_batches: bool, configuration: DataLoaderConfiguration | None) -> DataLoaderConfiguration:
    """How loaders are sharded, from either of the two arguments.

    Raises:
        ConfigurationError: they contradict each other.
    """
    if configuration is None:
        return DataLoaderConfiguration(split_batches=split_batches)
    if split_batches and not configuration.split_batches:
        raise ConfigurationError(
            "split_batches=True, and split_batches=False in dataloader_config",
            allowed="one value",
            next_step="set it in dataloader_config alone",
        )
    return replace(configuration)


def rng_settings(types: Sequence[Any] | None) -> list[str]:
    """The kinds of random generators that are made alike on all ranks where a loader begins.

    Raises:
        ConfigurationError: a kind is unknown.
    """
    names = [str(getattr(kind, "value", kind)) for kind in types or []]
    unknown = [name for name in names if name not in RNG_TYPES]
    if unknown:
        raise ConfigurationError(
            f"rng_types with {', '.join(unknown)}", allowed=", ".join(RNG_TYPES), next_step="correct or remove it"
        )
    return names


def project_settings(directory: Any, configuration: ProjectConfiguration | None) -> ProjectConfiguration:
    """Where checkpoints go, from either of the two arguments.

    Raises:
        ConfigurationError: they name different directories, or total_limit is not positive.
    """
    chosen = configuration or ProjectConfiguration()
    given = None if directory is None else str(directory)
    if given is not None and chosen.project_dir not in (None, given):
        raise ConfigurationError(
            f"project_dir={given!r}, and {chosen.project_dir!r} in project_config",
            allowed="one directory",
            next_step="set it in project_config alone",
        )
    if chosen.save_on_each_node:
        raise ConfigurationError(
            "save_on_each_node=True: a checkpoint is written once, whole, and this version has no second one",
            allowed="False, with a project_dir that all machines see",
            next_step="save to a shared file system, or copy the checkpoint afterwards",
        )
    if chosen.total_limit is not None and chosen.total_limit < 1:
        raise ConfigurationError(f"total_limit={chosen.total_limit}", allowed="None, or at least 1")
    return replace(chosen, project_dir=chosen.project_dir or given)
