"""The Accelerator: what a training script talks to. It delegates, and holds no backend's code."""

from pathlib import Path
from typing import Any

import torch

from .env import read_environment
from .facade.checkpoints import CheckpointDuty
from .facade.gathering import GatheringDuty
from .facade.preparing import PreparingDuty
from .facade.process import ProcessDuty
from .facade.recording import RecordingDuty
from .facade.training import TrainingDuty
from .mesh import ParallelDims
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
    sort_handlers,
)
from .precision.amp import get_precision
from .preemption import Preemption
from .prepared import Prepared
from .reporting import RunReporter
from .saving import StateSaver
from .smoke import SmokeRun
from .state import PartialState
from .strategies.base import StrategyContext
from .strategies.registry import choose_strategy, get_strategy
from .strategies.sharding_options import FullyShardedDataParallelPlugin


class Accelerator(ProcessDuty, PreparingDuty, TrainingDuty, GatheringDuty, CheckpointDuty, RecordingDuty):
    """Runs one training script on one process or many.

    Args:
        mixed_precision: no, bf16 or fp16; None takes FORERUN_MIXED_PRECISION, else no.
        gradient_accumulation_steps: micro-batches of a full window; None takes FORERUN_GRADIENT_ACCUMULATION_STEPS,
            else 1.
        cpu: use the CPU even where an accelerator is present.
        dataloader_config: how loaders are sharded. split_batches is the short form of its field.
        project_dir, project_config: where save_state() without a path writes; else the run directory.
        step_scheduler_with_optimizer: False passes every scheduler.step() on.
        kwargs_handlers: at most one each of the *Kwargs classes of this package.
        fsdp_plugin: FullyShardedDataParallelPlugin, or a dict of its settings: the strategy is FSDP2.
        parallelism_config: degrees, for HYBRID_SHARD; None follows from the strategy.
        absent: deepspeed_plugin, dynamo_plugin, ...: not in this version; anything but None is refused by name.

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
        kwargs_handlers: list[Any] | None = None,
        fsdp_plugin: FullyShardedDataParallelPlugin | dict[str, Any] | None = None,
        parallelism_config: ParallelDims | None = None,
        **absent: Any,
    ) -> None:
        refuse_absent(absent)
        handlers = sort_handlers(kwargs_handlers)
        if mixed_precision is not None:
            check_precision(mixed_precision)
        chosen = choose_strategy(
            read_environment(),
            {"fsdp_plugin": fsdp_plugin},
            dims=parallelism_config,
            ddp_options=changed_keywords(handlers.ddp),
        )
        self.state = PartialState(
            cpu,
            backend=handlers.group.backend or "",
            timeout_s=handlers.group.timeout.total_seconds(),
            collective_deadline_s=handlers.group.collective_deadline_s,
        )
        self.mixed_precision = check_precision(mixed_precision or self.state.environment.mixed_precision or "no")
        self._device_placement = device_placement
        self._step_scheduler_with_optimizer = step_scheduler_with_optimizer
        self._trigger = False
        self._reporter = RunReporter(self.state.environment)
        context = StrategyContext(self.device, self.num_processes, chosen.options, self.mixed_precision)
        precision = get_precision(
            self.mixed_precision,
            device=self.device,
            scaler_options=as_keywords(handlers.scaler),
            autocast_options=as_keywords(handlers.autocast),
        )
        self._prepared = Prepared(
            state=self.state,
            strategy=get_strategy(chosen.name, context),
            precision=precision,
            accumulation=accumulation_settings(
                gradient_accumulation_steps,
                gradient_accumulation_plugin,
                launched=self.state.environment.gradient_accumulation_steps,
            ),
            loaders=loader_settings(split_batches, dataloader_config),
            reporter=self._reporter,
        )
        project = project_settings(project_dir, project_config)
        self._saver = StateSaver(self._prepared, reporter=self._reporter, project=project)
        self._begin_run()

    def _begin_run(self) -> None:
        self._reporter.event(
            "run_started",
            world_size=self.num_processes,
            device=str(self.device),
            mixed_precision=self.mixed_precision,
            strategy=self._prepared.strategy.name,
            torch=torch.__version__,
        )
        if (num_steps := self.state.environment.smoke_steps) is not None:
            smoke = SmokeRun(num_steps, reporter=self._reporter, checkpoint=self._saver.save_and_compare)
            self._prepared.smoke = self._prepared.limit = smoke
        else:
            self._prepared.limit = Preemption(self._prepared, reporter=self._reporter, saver=self._saver)
