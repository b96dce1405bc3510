"""The Accelerator: what a training script talks to. It delegates, and holds no backend's code."""

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from . import collectives
from .data.loader import PreparedLoader, SkippedLoader, skip_first_batches
from .devices import release_cached_memory
from .env import read_environment
from .errors import UsageError
from .mesh import ParallelDims
from .optim.optimizer import PreparedOptimizer
from .optim.scheduler import PreparedScheduler
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
from .reporting import RunReporter, metric_value
from .saving import StateSaver
from .smoke import SmokeRun
from .state import PartialState
from .strategies.base import StrategyContext
from .strategies.registry import choose_strategy, get_strategy
from .strategies.sharding_options import FullyShardedDataParallelPlugin


class Accelerator:
    """Runs one training script on one process or many.

    Args:
        mixed_precision: no, bf16 or fp16; None takes FORERUN_MIXED_PRECISION, else no.
        gradient_accumulation_steps: micro-batches of a full window.
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
        gradient_accumulation_steps: int = 1,
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
            accumulation=accumulation_settings(gradient_accumulation_steps, gradient_accumulation_plugin),
            loaders=loader_settings(split_batches, dataloader_config),
            reporter=self._reporter,
        )
        project = project_settings(project_dir, project_config)
        self._saver = StateSaver(self._prepared, reporter=self._reporter, project=project)
        self._begin_run()

    # Who and where.

    @property
    def device(self) -> torch.device:
        return self.state.device

    @property
    def distributed_type(self) -> str:
        return self._prepared.strategy.distributed_type or self.state.distributed_type

    @property
    def num_processes(self) -> int:
        return self.state.num_processes

    @property
    def process_index(self) -> int:
        return self.state.process_index

    @property
    def local_process_index(self) -> int:
        return self.state.local_process_index

    @property
    def is_main_process(self) -> bool:
        return self.state.is_main_process

    @property
    def is_local_main_process(self) -> bool:
        return self.state.is_local_main_process

    @property
    def is_last_process(self) -> bool:
        return self.state.is_last_process

    @property
    def project_dir(self) -> Path | None:
        return self._saver.root

    @property
    def resume_from(self) -> Path | None:
        """The checkpoint from which a restarted job goes on, which load_state() takes; None in a first attempt."""
        return self.state.environment.resume

    @property
    def save_iteration(self) -> int:
        """Number of the next automatically named checkpoint."""
        return self._saver.iteration

    def wait_for_everyone(self) -> None:
        self.state.wait_for_everyone()

    def main_process_first(self) -> AbstractContextManager[None]:
        return self.state.main_process_first()

    def local_main_process_first(self) -> AbstractContextManager[None]:
        return self.state.local_main_process_first()

    def split_between_processes(self, inputs: Any, apply_padding: bool = False) -> AbstractContextManager[Any]:
        return self.state.split_between_processes(inputs, apply_padding)

    def on_main_process(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return self.state.on_main_process(function)

    def on_local_main_process(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return self.state.on_local_main_process(function)

    def on_last_process(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return self.state.on_last_process(function)

    def print(self, *args: Any, **kwargs: Any) -> None:
        """print() on the main process alone."""
        if self.is_main_process:
            print(*args, **kwargs)  # noqa: T201  # to print is what it is for

    # Preparing.

    def prepare(self, *args: Any, device_placement: Sequence[bool] | None = None) -> Any:
        """Wrap models, optimizers, loaders and schedulers; same order back, one object alone comes back alone.

        Objects of other types pass through.
        """
        places = list(device_placement or [self._device_placement] * len(args))
        if len(places) != len(args):
            raise UsageError(f"{len(places)} values of device_placement for {len(args)} objects")
        result = self._prepared.add_all(args, places, with_optimizer=self._step_scheduler_with_optimizer)
        return result[0] if len(result) == 1 else tuple(result)

    def prepare_model(
        self, model: nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> nn.Module:
        place = self._place(device_placement)
        prepared = self._prepared.add_model(model, place=place, evaluation=evaluation_mode)
        self._prepared.strategy.end_prepare()
        return prepared

    def prepare_optimizer(
        self, optimizer: torch.optim.Optimizer, device_placement: bool | None = None
    ) -> PreparedOptimizer:
        return self._prepared.add_optimizer(optimizer, place=self._place(device_placement))

    def prepare_data_loader(self, data_loader: DataLoader[Any], device_placement: bool | None = None) -> PreparedLoader:
        return self._prepared.add_loader(data_loader, place=self._place(device_placement))

    def prepare_scheduler(self, scheduler: Any) -> PreparedScheduler:
        return self._prepared.add_scheduler(scheduler, with_optimizer=self._step_scheduler_with_optimizer)

    def unwrap_model(self, model: nn.Module, keep_fp32_wrapper: bool = True) -> nn.Module:
        """The model that was prepared; without the autocasting forward if keep_fp32_wrapper is False."""
        inner = self._prepared.strategy.unwrap_model(model)
        return inner if keep_fp32_wrapper else self._prepared.precision.unwrap_model(inner)

    def skip_first_batches(self, dataloader: PreparedLoader, num_batches: int = 0) -> SkippedLoader:
        return skip_first_batches(dataloader, num_batches)

    # Training.

    @property
    def gradient_accumulation_steps(self) -> int:
        return self._prepared.windows.num_steps

    @property
    def sync_gradients(self) -> bool:
        """Whether the current micro-batch is its window's last."""
        return self._prepared.windows.sync_gradients

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the current batch is its loader's last."""
        return self._prepared.activity.at_end

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Whether the last step of an optimizer overflowed (fp16) and changed nothing."""
        return any(optimizer.step_was_skipped for optimizer in self._prepared.optimizers)

    @property
    def scaler(self) -> torch.amp.GradScaler | None:
        return self._prepared.precision.scaler

    def backward(self, loss: torch.Tensor, *, num_items: float | None = None, **options: Any) -> None:
        """Backward of a micro-batch's mean loss, or of a sum over `num_items` items (tokens, say).

        The gradient of an accumulation window is the mean over its micro-batches, or over all items of the window and
        of all ranks. Outside accumulate(), a mean loss is divided by gradient_accumulation_steps.
        """
        self._prepared.backward(loss, num_items, **options)

    def accumulate(self, *models: nn.Module) -> AbstractContextManager[None]:
        """A micro-batch of an accumulation window: inside, step() and zero_grad() act at the window's end alone."""
        return self._prepared.accumulate(*models)

    @contextmanager
    def no_sync(self, *models: nn.Module) -> Iterator[None]:
        """While inside, gradients stay on their rank."""
        with ExitStack() as stack:
            for model in models or self._prepared.models:
                stack.enter_context(self._prepared.strategy.no_sync(model))
            yield

    def join_uneven_inputs(
        self, joinables: Sequence[nn.Module], even_batches: bool | None = None
    ) -> AbstractContextManager[None]:
        """Train on different numbers of batches: a rank that has ended takes part in the others' communication.

        Gradients of steps in which ranks have ended are still divided by the number of all ranks.
        """
        return self._prepared.join(joinables, even_batches)

    def train_step(self, batch: Any, forward: Callable[[Any], torch.Tensor]) -> torch.Tensor:
        """Forward and backward of one micro-batch, as the strategy does it; returns the detached loss."""
        return self._prepared.strategy.train_step(batch, forward=forward, backward=self.backward)

    def autocast(self) -> AbstractContextManager[None]:
        """For computations outside a prepared model's forward, which is autocast by itself."""
        return self._prepared.precision.autocast()

    def unscale_gradients(self) -> None:
        self._prepared.clipper.unscale()

    def clip_grad_norm_(
        self, parameters: Iterable[torch.Tensor] | torch.Tensor, max_norm: float, norm_type: float = 2.0
    ) -> torch.Tensor:
        """Clip the finished window's gradients to a total norm; returns the true norm before."""
        return self._prepared.clipper.clip_norm(parameters, max_norm, norm_type)

    def clip_grad_value_(self, parameters: Iterable[torch.Tensor] | torch.Tensor, clip_value: float) -> None:
        self._prepared.clipper.clip_value(parameters, clip_value)

    # Collectives.

    def gather(self, tensor: Any) -> Any:
        return collectives.gather(tensor)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """Gather predictions or labels of the current batch, each sample of the data set exactly once."""
        return self._prepared.gather_for_metrics(input_data, as_objects=use_gather_object)

    def reduce(self, tensor: Any, reduction: collectives.Reduction = "sum", scale: float = 1.0) -> Any:
        return collectives.reduce(tensor, reduction, scale)

    def pad_across_processes(self, tensor: Any, dim: int = 0, pad_index: float = 0, pad_first: bool = False) -> Any:
        return collectives.pad_across_processes(tensor, dim, pad_index, pad_first)

    def set_trigger(self) -> None:
        """Raise a flag that check_trigger sees on every rank."""
        self._trigger = True

    def check_trigger(self) -> bool:
        """Whether any rank has called set_trigger since the last check; called on every rank."""
        flags = collectives.gather(torch.tensor([self._trigger], device=self.device))
        raised = bool(flags.any())
        if raised:
            self._trigger = False
        return raised

    # Records, checkpoints, the end.

    def log(self, values: dict[str, Any], step: int | None = None, *, all_ranks: bool = False) -> None:
        """Record numbers in the run directory, as seen by rank 0 (or by every rank); nothing is printed."""
        numbers = {name: metric_value(name, value) for name, value in values.items()}
        if self.is_main_process or all_ranks:
            for name, value in numbers.items():
                self._reporter.metric(name, value, step=step)

    def plan_steps(self, optimizer_steps: int) -> None:
        """Say how many optimizer steps the whole training takes, for estimates of the remaining time."""
        self._reporter.event("planned_steps", optimizer_steps=optimizer_steps)

    def register_for_checkpointing(self, *objects: Any) -> None:
        """Add objects with state_dict and load_state_dict to every checkpoint."""
        self._saver.register(*objects)

    def save_state(self, output_dir: str | Path | None = None) -> Path:
        """Write a checkpoint; on all ranks, or on the main process alone. Returns its path."""
        return self._saver.save(output_dir)

    def load_state(self, input_dir: str | Path | None = None) -> Path:
        """Load a checkpoint, else `resume_from` or the newest; on all ranks together. Returns its path."""
        return self._saver.load(input_dir)

    def save_model(self, model: nn.Module, save_directory: str | Path, safe_serialization: bool = True) -> None:
        """Write the weights alone, on the main process: model.safetensors where safetensors is installed."""
        self._saver.save_weights(model, Path(save_directory), safe=safe_serialization)

    def get_state_dict(self, model: nn.Module) -> dict[str, Any]:
        """Whole tensors; where the model is sharded, on the main process alone (all ranks call it)."""
        return self._saver.gather_weights(model, "get_state_dict")

    def free_memory(self, *objects: Any) -> Any:
        """Forget all prepared objects; returns None for each of `objects`, to be assigned to their names."""
        self._prepared.clear()
        gc.collect()
        release_cached_memory(self.device)
        return tuple(None for _ in objects)

    def end_training(self) -> None:
        """Close the process group in good order; no collective may follow."""
        self.state.destroy_process_group()

    def _place(self, wanted: bool | None) -> bool:
        return self._device_placement if wanted is None else wanted

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
