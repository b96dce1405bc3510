"""The Accelerator: what a training script talks to. It delegates, and holds no backend's code."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .accelerator_state import AcceleratorState
from .env import read_environment
from .errors import UsageError
from .facade.absent import AbsentDuties
from .facade.checkpoints import CheckpointDuty
from .facade.gathering import GatheringDuty
from .facade.observing import ObservingDuty
from .facade.preparing import PreparingDuty
from .facade.process import ProcessDuty
from .facade.recording import RecordingDuty
from .facade.training import TrainingDuty
from .gradient_state import GradientState
from .mesh import ParallelDims, ParallelismConfig, parallel_dims
from .options import (
    DataLoaderConfiguration,
    GradientAccumulationPlugin,
    ProjectConfiguration,
    accumulation_settings,
    as_keywords,
    changed_keywords,
    check_precision,
    loader_settings,
    project_settings,
    refuse_absent,
    rng_settings,
    settle_precision,
    sort_handlers,
)
from .precision.amp import get_precision
from .precision.dtype_plan import announce, plan_dtypes
from .preemption import Preemption
from .prepared import Prepared
from .reporting import RunReporter
from .rng_synchronization import SynchronizedStart
from .smoke import SmokeRun
from .state import GROUP_TIMEOUT_S, DistributedType, PartialState
from .strategies.base import StrategyContext
from .strategies.compilation import TorchDynamoPlugin, settle_compilation
from .strategies.registry import choose_strategy, get_strategy
from .tracking.choice import choose_trackers, logging_directory
from .tracking.trackers import Trackers

if TYPE_CHECKING:
    from .strategies.deepspeed_options import DeepSpeedPlugin
    from .strategies.sharding_options import FullyShardedDataParallelPlugin


class Accelerator(
    ProcessDuty,
    PreparingDuty,
    TrainingDuty,
    GatheringDuty,
    CheckpointDuty,
    ObservingDuty,
    RecordingDuty,
    AbsentDuties,
):
    """Runs one training script on one process or many.

    Args:
        mixed_precision: no, bf16 or fp16; None takes FORERUN_MIXED_PRECISION, else no.
        gradient_accumulation_steps: micro-batches of a full window; None takes FORERUN_GRADIENT_ACCUMULATION_STEPS,
            else 1.
        cpu: use the CPU even where an accelerator is present.
        dataloader_config: how loaders are sharded. split_batches is the short form of its field.
        project_dir, project_config: where save_state() without a path writes; else the run directory.
        step_scheduler_with_optimizer: False passes every scheduler.step() on.
        scheduler_counts_processes: schedulers advance by the number of processes at each optimizer step (unless
            batches are split), as Accelerate does; without it, by one.
        kwargs_handlers: at most one each of the *Kwargs classes of this package.
        fsdp_plugin: FullyShardedDataParallelPlugin, or a dict of its settings: the strategy is FSDP2.
        deepspeed_plugin: DeepSpeedPlugin, a dict of its settings, or a mapping name -> DeepSpeedPlugin for several
            models: the strategy is DeepSpeed. deepspeed_plugins is the same.
        parallelism_config: ParallelismConfig or ParallelDims, for HYBRID_SHARD; None follows from the strategy.
        rng_types: random generators (torch, cuda, generator) that are made alike on all ranks where a loader begins.
            None leaves them alone: the order of samples depends on seed and epoch anyway.
        dynamo_backend, dynamo_plugin: compile models with torch.compile.
        log_with: where log() goes beside the run's records: jsonl, tensorboard, all, objects like
            runtime.tracking.GeneralTracker, or a list of these; open after init_trackers().
        megatron_lm_plugin, torch_tp_plugin: not in this version; anything but None is refused by name.
        absent: refused, since nobody has it.

    Attributes:
        dtype_plan: dtypes of parameters, computation, gradient reduction and output; logged at level INFO and recorded.

    Raises:
        ConfigurationError: a setting is unknown, contradicts another, or has no backend in this version.
    """

    def __init__(
        self,
        *,
        device_placement: bool = True,
        split_batches: bool = False,
        mixed_precision: str | None = None,
        gradient_accumulation_steps: int | None = None,
        cpu: bool = False,
        dataloader_config: DataLoaderConfiguration | None = None,
        gradient_accumulation_plugin: GradientAccumulationPlugin | None = None,
        project_dir: str | Path | None = None,
        project_config: ProjectConfiguration | None = None,
        step_scheduler_with_optimizer: bool = True,
        scheduler_counts_processes: bool = False,
        kwargs_handlers: list[Any] | None = None,
        fsdp_plugin: "FullyShardedDataParallelPlugin | dict[str, Any] | None" = None,
        deepspeed_plugin: "DeepSpeedPlugin | Mapping[str, Any] | None" = None,
        deepspeed_plugins: "DeepSpeedPlugin | Mapping[str, Any] | None" = None,
        parallelism_config: ParallelismConfig | ParallelDims | None = None,
        rng_types: Sequence[Any] | None = None,
        dynamo_backend: Any = None,
        dynamo_plugin: TorchDynamoPlugin | None = None,
        log_with: Any = None,
        megatron_lm_plugin: Any = None,
        torch_tp_plugin: Any = None,
        **absent: Any,
    ) -> None:
        self._arguments = {name: value for name, value in locals().items() if name not in ("self", "absent")}
        refuse_absent({"megatron_lm_plugin": megatron_lm_plugin, "torch_tp_plugin": torch_tp_plugin, **absent})
        handlers = sort_handlers(kwargs_handlers)
        if mixed_precision is not None:
            check_precision(mixed_precision)
        generators = rng_settings(rng_types)
        compilation = settle_compilation(dynamo_plugin, dynamo_backend)
        given_dims = parallel_dims(parallelism_config)
        zero = deepspeed_plugins if deepspeed_plugin is None else deepspeed_plugin
        chosen = choose_strategy(
            read_environment(),
            {"fsdp_plugin": fsdp_plugin, "deepspeed_plugin": zero},
            dims=given_dims,
            ddp_options=changed_keywords(handlers.ddp),
        )
        process = PartialState(
            cpu,
            backend=handlers.group.backend or "",
            init_method=handlers.group.init_method,
            timeout_s=GROUP_TIMEOUT_S if handlers.group.timeout is None else handlers.group.timeout.total_seconds(),
            collective_deadline_s=handlers.group.collective_deadline_s,
        )
        self.mixed_precision = settle_precision(
            mixed_precision,
            said=chosen.said.precision,
            place=chosen.said.place,
            launched=process.environment.mixed_precision,
        )
        self._device_placement = device_placement
        self._step_scheduler_with_optimizer = step_scheduler_with_optimizer
        self._trigger = False
        self._reporter = RunReporter(process.environment)
        passes = () if compilation is None else (compilation,)
        context = StrategyContext(process.device, process.num_processes, chosen.options, self.mixed_precision, passes)
        strategy = get_strategy(chosen.name, context)
        self.parallelism_config = parallelism_config
        self._dims = getattr(chosen.options, "dims", None) or (given_dims or ParallelDims()).resolve(
            process.num_processes
        )
        AcceleratorState.settle(
            self.mixed_precision,
            DistributedType(strategy.distributed_type or process.distributed_type),
            {
                "fsdp_plugin": fsdp_plugin,
                "deepspeed_plugin": zero,
                "dynamo_plugin": dynamo_plugin,
                "parallelism_config": parallelism_config,
            },
        )
        self.state = AcceleratorState()
        precision = get_precision(
            self.mixed_precision,
            device=process.device,
            scaler_options=as_keywords(handlers.scaler),
            autocast_options=as_keywords(handlers.autocast),
        )
        accumulation = accumulation_settings(
            gradient_accumulation_steps,
            gradient_accumulation_plugin,
            launched=self.state.environment.gradient_accumulation_steps,
            said=chosen.said.accumulation,
            place=chosen.said.place,
        )
        self._prepared = Prepared(
            state=self.state,
            strategy=strategy,
            precision=precision,
            accumulation=accumulation,
            loaders=loader_settings(split_batches, dataloader_config),
            reporter=self._reporter,
        )
        self._prepared.opens_windows = chosen.said.accumulation is not None
        if scheduler_counts_processes and not self.split_batches:
            self._prepared.scheduler_steps = process.num_processes
        self.gradient_state = GradientState.of(self._prepared.windows, self._prepared.activity, accumulation)
        project = project_settings(project_dir, project_config)
        self._profile = handlers.profile
        self._logging_dir = logging_directory(project, self._reporter.layout)
        self._trackers = Trackers(
            choose_trackers(log_with, logging_dir=self._logging_dir),
            logging_dir=self._logging_dir,
            is_main=process.is_main_process,
            reporter=self._reporter,
        )
        from .saving import StateSaver  # brings all that checkpoints need, which the import of a name does not

        self._saver = StateSaver(self._prepared, reporter=self._reporter, project=project)
        self._begin_run(handlers.autocast.enabled)
        if generators:
            self._prepared.limit = SynchronizedStart(generators, self._prepared.limit)

    def _begin_run(self, autocasts: bool) -> None:
        self.dtype_plan = plan_dtypes(self.mixed_precision, autocasts=autocasts, own=self._prepared.strategy.dtypes())
        announce(self.dtype_plan, is_main=self.is_main_process)
        self._reporter.event(
            "run_started",
            world_size=self.num_processes,
            device=str(self.device),
            mixed_precision=self.mixed_precision,
            strategy=self._prepared.strategy.name,
            torch=torch.__version__,
            dtypes=asdict(self.dtype_plan),
        )
        if (num_steps := self.state.environment.smoke_steps) is not None:
            smoke = SmokeRun(num_steps, reporter=self._reporter, checkpoint=self._saver.save_and_compare)
            self._prepared.smoke = self._prepared.limit = smoke
        else:
            self._prepared.limit = Preemption(self._prepared, reporter=self._reporter, saver=self._saver)

    def __reduce__(self) -> Any:
        """An unpickled Accelerator has the same settings, and nothing prepared."""
        return _unpickle, (self._arguments,)


def _unpickle(arguments: dict[str, Any]) -> Accelerator:
    if PartialState._process is None and read_environment().world_size > 1:
        raise UsageError(
            "an Accelerator unpickled in a process that is no rank of its job (a loader's worker, say)",
            allowed="ranks, which have started their process group",
            next_step="hand over the numbers that the worker needs instead",
        )
    return Accelerator(**arguments)
