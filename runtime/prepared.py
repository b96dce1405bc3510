"""The prepared objects of one Accelerator, and the training step that goes through all of them."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from . import collectives
from .data.activity import Activity, Iteration, LoaderLimit, valid_part
from .data.loader import PreparedLoader, loader_seed, prepare_loader
from .data.same_data import describe, require_same
from .devices import end_step
from .errors import UsageError
from .mesh import effective_batch
from .optim.clipping import GradientClipper
from .optim.loss_scale import LossScale
from .optim.optimizer import PreparedOptimizer
from .optim.scheduler import PreparedScheduler, followed_optimizers
from .optim.window import AccumulationWindows, MicroBatch, scale_gradients
from .optim.window_state import WindowKeeper
from .options import DataLoaderConfiguration, GradientAccumulationPlugin
from .precision.base import Precision
from .prepared_state import PreparedState
from .reporting import RunReporter
from .smoke import SmokeRun
from .state import PartialState
from .strategies.base import Strategy
from .structures import all_tensors, map_leaves
from .wrong_use import FirstStep, require_prepared

_SKIPS_WORTH_A_WORD = 3


class Prepared(PreparedState):
    """Wraps what the script hands over, and runs backward and the accumulation window over it.

    Args:
        smoke, limit: set later by the owner: the smoke run, and what may end loaders early.
        scheduler_steps: how often a scheduler advances at an optimizer step.
        opens_windows: set later too: a backward outside accumulate() is a micro-batch of a window as well.
    """

    def __init__(
        self,
        *,
        state: PartialState,
        strategy: Strategy,
        precision: Precision,
        accumulation: GradientAccumulationPlugin,
        loaders: DataLoaderConfiguration,
        reporter: RunReporter,
    ) -> None:
        self.state = state
        self.strategy = strategy
        self.precision = precision
        self.smoke: SmokeRun | None = None
        self.limit: LoaderLimit | None = None
        self.activity = Activity()
        self.models: list[nn.Module] = []
        self.optimizers: list[PreparedOptimizer] = []
        self.schedulers: list[PreparedScheduler] = []
        self.loaders: list[PreparedLoader] = []
        self.custom: list[Any] = []
        self.windows = AccumulationWindows(
            accumulation.num_steps,
            data_parallel=state.num_processes,
            sum_items=self._sum_items,
            local_gradients=strategy.local_gradients,
        )
        self.clipper = GradientClipper(
            self.windows,
            self.optimizers,
            norm=strategy.clip_grad_norm,
            finish=self.finish_window,
            local_gradients=strategy.local_gradients,
            value=strategy.clip_grad_value,
            has_scaler=precision.scaler is not None,
        )
        self._keeper = WindowKeeper(
            self.windows, self.optimizers, held=strategy.held_gradients, hold=strategy.hold_gradients
        )
        self._loss_scale: LossScale | None = None
        if precision.scaler is not None:
            self._loss_scale = LossScale(precision.scaler, self.optimizers, local_gradients=strategy.local_gradients)
        self._accumulation = accumulation
        self.configuration = loaders
        self._reporter = reporter
        self._window_models: tuple[nn.Module, ...] = ()
        self._trained_loaders = self.activity.trained
        self.opens_windows = False
        self.scheduler_steps = 1

    def add_all(self, things: Sequence[Any], places: Sequence[bool], *, with_optimizer: bool) -> list[Any]:
        """Prepare objects that belong together, models first and schedulers last; the results are in their order."""
        self.strategy.begin_prepare(things, batch_sizes=self._batch_sizes(things), accumulation=self.windows.num_steps)
        added = list(things)
        for kind in (nn.Module, (DataLoader, torch.optim.Optimizer)):
            for index, (thing, place) in enumerate(zip(things, places, strict=True)):
                if isinstance(thing, kind):
                    added[index] = self._add(thing, place)
        self.strategy.end_prepare()
        for index, thing in enumerate(things):
            if is_scheduler(thing):
                added[index] = self.add_scheduler(thing, with_optimizer=with_optimizer)
        return added

    def add_model(self, model: nn.Module, *, place: bool, evaluation: bool) -> nn.Module:
        """Check, move and wrap a model.

        Args:
            evaluation: it is not trained, so it needs no gradient communication.
        """
        if any(model is known for known in self.models):
            return model
        if not evaluation:
            self.precision.check_model(model)
        if place:
            model = model.to(self.state.device) if evaluation else self.strategy.place(model)
        model = self.precision.prepare_model(model)
        prepared = model if evaluation else self.strategy.prepare_model(model)
        self.models.append(prepared)
        return prepared

    def add_optimizer(self, optimizer: torch.optim.Optimizer, *, place: bool) -> PreparedOptimizer:
        if isinstance(optimizer, PreparedOptimizer):
            return optimizer
        self.strategy.prepare_optimizer(optimizer)
        prepared = PreparedOptimizer(
            optimizer,
            windows=self.windows,
            scaler=self.precision.scaler,
            before_step=FirstStep(optimizer, self.models, self.finish_window)
            if self.state.use_distributed and not self.strategy.flattens
            else self.finish_window,
            after_step=self._after_step,
            drop_gradients=self.strategy.drop_local_gradients,
            step=self.strategy.step,
            zero_grad=self.strategy.zero_grad,
            update_scale=None if self._loss_scale is None else self._loss_scale.stepped,
        )
        if place:
            prepared.move_state(self.state.device)
        self.optimizers.append(prepared)
        return prepared

    def add_scheduler(self, scheduler: Any, *, with_optimizer: bool) -> PreparedScheduler:
        if isinstance(scheduler, PreparedScheduler):
            return scheduler
        prepared = PreparedScheduler(
            scheduler,
            optimizers=followed_optimizers(scheduler, self.optimizers),
            windows=self.windows,
            with_optimizer=with_optimizer,
            steps_per_call=self.scheduler_steps,
        )
        self.schedulers.append(prepared)
        return prepared

    def add_loader(self, loader: DataLoader[Any], *, place: bool) -> PreparedLoader:
        if isinstance(loader, PreparedLoader):
            if all(loader is not known for known in self.loaders):  # another Accelerator's, or forgotten
                loader.adopt(self.activity, self.limit)
                self.loaders.append(loader)
            return loader
        if self.state.guard is not None and not self.configuration.dispatch_batches:
            require_same(self.state.guard.meet("prepare of a loader", details=describe(loader)))
        seed = torch.tensor([loader_seed(loader, self.configuration.data_seed) % 2**63], device=self.state.device)
        prepared = prepare_loader(
            loader,
            rank=self.state.process_index,
            world_size=self.state.num_processes,
            device=self.state.device if place else None,
            configuration=self.configuration,
            seed=int(collectives.broadcast(seed)),
            index=len(self.loaders),
            activity=self.activity,
            limit=self.limit,
        )
        self.loaders.append(prepared)
        return prepared

    def accumulate(self, *models: nn.Module) -> AbstractContextManager[None]:
        """One micro-batch; gradients stay on their rank until the window's last."""
        return MicroBatch(partial(self._begin_micro_batch, models), self.windows.leave)

    @contextmanager
    def join(self, models: Sequence[nn.Module], even_batches: bool | None) -> Iterator[None]:
        """Ranks may take different numbers of batches; even_batches holds for all loaders while inside."""
        with ExitStack() as stack:
            if even_batches is not None:
                for loader in self.loaders:
                    stack.enter_context(loader.evened(even_batches))
            self.activity.joining = True
            stack.callback(setattr, self.activity, "joining", False)
            stack.enter_context(self.strategy.join(models))
            yield

    def backward(self, loss: torch.Tensor, num_items: float | None, **options: Any) -> None:
        """Backward of one micro-batch's loss, scaled so that the window's gradient is a mean."""
        require_prepared(self.models, self.optimizers)
        if not isinstance(loss, torch.Tensor):
            raise UsageError(
                f"backward() of a {type(loss).__name__}",
                allowed="the loss, a tensor that a prepared model's output led to",
                next_step="pass the tensor itself, not loss.item(); a model that gives its loss needs labels",
            )
        if self.opens_windows and not self.windows.is_inside:
            with self.accumulate():
                self._backward(loss, num_items, **options)
        else:
            self._backward(loss, num_items, **options)

    def _backward(self, loss: torch.Tensor, num_items: float | None, **options: Any) -> None:
        iteration = self.activity.current
        if iteration is not None and id(iteration.loader) not in self._trained_loaders:
            self._begin_training(iteration)
        if self.smoke is not None:
            self.smoke.saw_backward(None if iteration is None else iteration.loader, loss, num_items)
        if num_items is not None and self.activity.joining:
            raise UsageError(
                "backward(num_items=...) inside join_uneven_inputs: ranks that have ended cannot add their items",
                allowed="mean losses there",
                next_step="train with even_batches=True, or without num_items",
            )
        factor = self.windows.loss_factor(self._parameters(), num_items)
        if factor != 1.0:
            loss = loss * factor
        if self.precision.scaler is not None and self._loss_scale is not None:
            self._loss_scale.settle()
            loss = self.precision.scaler.scale(loss)
        loss.backward(**options)  # type: ignore[no-untyped-call]  # untyped in torch
        self.strategy.finish_backward(self._parameters(), synchronized=self.windows.sync_gradients)

    def finish_window(self) -> None:
        """Correct and average what the window holds, if its last micro-batch had no backward that did so."""
        correction = self.windows.unfinished_correction()
        if correction is not None:
            parameters = list(self._parameters())
            scale_gradients(self.strategy.local_gradients(parameters), correction)
            self.windows.restore_left_over()
            self.strategy.reduce_gradients(parameters)

    def gather_for_metrics(self, data: Any, *, as_objects: bool) -> Any:
        """Data of the current batch from all ranks, less the repetitions that filled it up."""
        iteration = self.activity.innermost
        num_valid = None if iteration is None else iteration.num_valid
        length = None if iteration is None else iteration.length
        if all_tensors(data) and not as_objects:
            return collectives.gather_uneven(map_leaves(lambda leaf: valid_part(leaf, num_valid, length), data))
        return collectives.gather_objects_for_metrics(valid_part(data, num_valid, length), counts=num_valid != 0)

    def trains(self, loader: PreparedLoader) -> bool:
        """Whether a batch of this loader has had a backward."""
        return id(loader) in self._trained_loaders

    @property
    def optimizer_steps(self) -> int:
        """Steps that changed parameters; with several optimizers, of the one that took most."""
        return max((optimizer.num_steps for optimizer in self.optimizers), default=0)

    def clear(self) -> None:
        """Forget everything."""
        for things in (self.models, self.optimizers, self.schedulers, self.loaders, self.custom):
            things.clear()
        self._window_models = ()
        self._trained_loaders.clear()
        self.windows.reset()

    def _begin_micro_batch(self, models: tuple[nn.Module, ...]) -> AbstractContextManager[Any] | None:
        """Enter a window; returns what keeps gradients on their rank, if they are to stay there."""
        at_end = self._accumulation.sync_with_dataloader and self.activity.at_end
        is_last = self.windows.enter(models, at_end=at_end)
        self._window_models = models
        if is_last or self._accumulation.sync_each_batch:
            return None
        local = models or self.models
        if len(local) == 1:
            return self.strategy.no_sync(local[0])
        return self._no_sync(local)

    @contextmanager
    def _no_sync(self, models: Sequence[nn.Module]) -> Iterator[None]:
        with ExitStack() as stack:
            for model in models:
                stack.enter_context(self.strategy.no_sync(model))
            yield

    def _add(self, thing: Any, place: bool) -> Any:
        if isinstance(thing, nn.Module):
            return self.add_model(thing, place=place, evaluation=False)
        if isinstance(thing, DataLoader):
            return self.add_loader(thing, place=place)
        return self.add_optimizer(thing, place=place)

    def _batch_sizes(self, things: Sequence[Any]) -> list[int]:
        """Of the loaders among them, for one rank, where they are known."""
        sizes = []
        for loader in things:
            if isinstance(loader, DataLoader) and not isinstance(loader, PreparedLoader):
                size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
                if isinstance(size, int):
                    split = self.configuration.split_batches
                    sizes.append(size // self.state.num_processes if split else size)
        return sizes

    def _parameters(self) -> Iterator[nn.Parameter]:
        """The parameters of the window's models, and those of optimizers that belong to no prepared model."""
        modelled = {id(p): p for model in self.models for p in model.parameters()}
        loose = {
            id(parameter): parameter
            for optimizer in self.optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
            if id(parameter) not in modelled
        }
        chosen = modelled
        if self._window_models and list(self._window_models) != self.models:
            chosen = {id(p): p for model in self._window_models for p in model.parameters()}
        yield from (loose | chosen).values()

    def _sum_items(self, own: float) -> float:
        if not self.state.use_distributed:
            return float(own)
        total = torch.tensor([float(own)], dtype=torch.float64)
        return float(collectives.reduce(total.to(self._number_device()), "sum"))

    def _number_device(self) -> torch.device:
        # MPS has no float64, and is never used by several processes.
        return torch.device("cpu") if self.state.device.type == "mps" else self.state.device

    def _begin_training(self, iteration: Iteration) -> None:
        loader: PreparedLoader = iteration.loader
        self._trained_loaders.add(id(loader))
        lengths = loader.lengths()
        window = self.windows.num_steps
        if not self.activity.joining and lengths is not None and len({-(-length // window) for length in lengths}) > 1:
            raise UsageError(
                f"even_batches=False gives the ranks {lengths} batches: in training, some ranks would wait forever",
                allowed="as many optimizer steps on every rank",
                next_step="train with even_batches=True, or inside accelerator.join_uneven_inputs([model])",
            )
        per_device = loader.sharding.per_device
        world = self.state.num_processes
        self._reporter.event(
            "batch_arithmetic",
            per_device=per_device,
            data_parallel=world,
            accumulation=window,
            effective=None
            if per_device is None
            else effective_batch(per_device, data_parallel=world, accumulation=window),
            batches_per_epoch=None if lengths is None else max(lengths),
            optimizer_steps_per_epoch=None if lengths is None else -(-max(lengths) // window),
        )

    def _after_step(self, optimizer: PreparedOptimizer, skipped: bool) -> None:
        end_step(self.state.device)
        if skipped:
            in_a_row = optimizer.skipped_in_a_row
            self._reporter.event(
                "step_skipped",
                after_step=optimizer.num_steps,
                in_a_row=in_a_row,
                problem=in_a_row >= _SKIPS_WORTH_A_WORD,
            )
        if self.smoke is not None:
            self.smoke.saw_step(optimizer.num_steps, skipped=skipped)


def is_scheduler(thing: Any) -> bool:
    return isinstance(thing, torch.optim.lr_scheduler.LRScheduler)
