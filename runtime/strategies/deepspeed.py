"""DeepSpeed ZeRO: optimizer states, gradients and parameters lie sharded over the ranks, by stage."""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn

from ..batch_arithmetic import BatchNumber, BatchSettings, settle_batches
from ..errors import ConfigurationError, UsageError
from ..state_fit import check_model, check_optimizer, kind_of
from ..state_parts import Part
from . import deepspeed_state as states
from .base import StrategyContext, foreign_gradients, forward_and_backward
from .deepspeed_engine import WindowedEngine, hold_gradient
from .deepspeed_loading import load, missing_for, quiet
from .deepspeed_options import DeepSpeedOptions, DeepSpeedPlugin
from .deepspeed_pairs import TOGETHER, groups_of, pair_up, require_fit, take_groups
from .lone_group import require_group


class DeepSpeedStrategy:
    """One engine for each model with its optimizer; `options` are the plugins."""

    name = "deepspeed"
    distributed_type = "DEEPSPEED"
    flattens = True

    def __init__(self, context: StrategyContext) -> None:
        self._context = context
        options: DeepSpeedOptions = context.options
        self._plugins = options.plugins
        self._selected = next(iter(self._plugins))
        self.replicated = all(plugin.stage == 0 for plugin in self._plugins.values())
        self._pairs: dict[int, torch.optim.Optimizer] = {}
        self._engines: weakref.WeakKeyDictionary[torch.optim.Optimizer, WindowedEngine] = weakref.WeakKeyDictionary()
        self._batches_settled = False

    def requirements(self) -> list[str]:
        return missing_for(
            self._context.device.type,
            offloads_to_nvme=any(
                "nvme" in (plugin.offload_optimizer, plugin.offload_param) for plugin in self._plugins.values()
            ),
            wants_fp16=self._context.precision == "fp16",
        )

    def dtypes(self) -> dict[str, str]:
        plugin = self._plugins[self._selected]
        if self._context.precision != "bf16" or plugin.stage == 0:
            return {}
        kept = "bfloat16 (float32 copies in the optimizer)"
        reduction = plugin.config.get("communication_data_type") or "bfloat16"
        return {"parameters": kept, "compute": "bfloat16", "reduction": reduction}

    def select_options(self, name: str) -> None:
        if name not in self._plugins:
            raise ConfigurationError(
                f"no DeepSpeed plugin is called {name!r}",
                allowed=", ".join(self._plugins),
                next_step="give it to Accelerator(deepspeed_plugin={name: DeepSpeedPlugin(...)})",
            )
        self._selected = name

    def begin_prepare(self, things: Sequence[Any], *, batch_sizes: Sequence[int], accumulation: int) -> None:
        models = [thing for thing in things if isinstance(thing, nn.Module) and not self._is_engine(thing)]
        optimizers = [thing for thing in things if isinstance(thing, torch.optim.Optimizer)]
        fresh = [one for one in optimizers if one not in self._engines and not hasattr(one, "num_skipped")]
        self._pairs = pair_up(models, fresh)
        if batch_sizes and not self._batches_settled:
            self._settle_batches(batch_sizes, accumulation)

    def place(self, model: nn.Module) -> nn.Module:
        return model  # the engine does

    def prepare_model(self, model: nn.Module) -> nn.Module:
        optimizer = self._pairs.pop(id(model), None)
        if optimizer is None:  # nothing to shard it by: it is only evaluated
            return model.to(self._context.device)
        require_fit(model)
        for step in sorted(self._context.passes, key=lambda step: step.place):
            model = step.apply(model, None)
        require_group(self._context)
        plugin = self._plugins[self._selected]
        groups = take_groups(optimizer) if plugin.stage else groups_of(optimizer)
        library = load(
            self._context.device.type, builds_allowed="nvme" in (plugin.offload_optimizer, plugin.offload_param)
        )
        before = optimizer.state_dict() if optimizer.state else None
        optimizer.state.clear()
        with quiet():
            engine, *_ = library.initialize(
                model=model, optimizer=optimizer, config=self._engine_config(plugin), dist_init_required=False
            )
        windowed = WindowedEngine(engine, optimizer, groups, clipping=plugin.gradient_clipping)
        self._engines[optimizer] = windowed
        if before is not None:
            self.load_optimizer_state_dict(optimizer, before)
        prepared: nn.Module = engine
        return prepared

    def prepare_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        if optimizer not in self._engines:
            raise UsageError(
                f"{type(optimizer).__name__} was prepared without its model: DeepSpeed makes one engine of the two",
                allowed="model and optimizer in one prepare()",
                next_step=TOGETHER,
            )

    def end_prepare(self) -> None:
        self._pairs = {}

    def step(self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any] | None) -> tuple[Any, bool]:
        if closure is not None:
            raise UsageError(
                "optimizer.step(closure) under DeepSpeed: it steps on gradients that are there",
                allowed="step() without a closure",
                next_step="call backward() before step()",
            )
        return None, self._engines[optimizer].step()

    def zero_grad(self, optimizer: torch.optim.Optimizer, *, set_to_none: bool) -> None:  # noqa: ARG002  # DeepSpeed always does
        self._engines[optimizer].discard()

    def unwrap_model(self, model: nn.Module) -> nn.Module:
        inner: nn.Module = model.module if self._is_engine(model) else model  # type: ignore[assignment]  # an engine's
        return inner

    def train_step(
        self, batch: Any, *, forward: Callable[[Any], torch.Tensor], backward: Callable[[torch.Tensor], None]
    ) -> torch.Tensor:
        return forward_and_backward(batch, forward=forward, backward=backward)

    @contextmanager
    def no_sync(self, model: nn.Module) -> Iterator[None]:  # noqa: ARG002  # of the protocol
        yield  # gradients wait until the step in any case

    def join(self, models: Sequence[nn.Module]) -> AbstractContextManager[None]:  # noqa: ARG002  # of the protocol
        raise UsageError(
            "join_uneven_inputs under DeepSpeed: every rank's step needs the parts of all others",
            allowed="as many batches on every rank",
            next_step="use even_batches=True, or strategy ddp",
        )

    def local_gradients(self, parameters: Iterable[nn.Parameter]) -> list[torch.Tensor]:
        wanted = {id(parameter) for parameter in parameters}
        held = [p for windowed in self._windowed for p in windowed.parameters if id(p) in wanted]
        return [parameter.grad for parameter in held if parameter.grad is not None]

    def held_gradients(self, parameters: Sequence[nn.Parameter]) -> list[dict[str, torch.Tensor]]:
        mine = {id(parameter) for windowed in self._windowed for parameter in windowed.parameters}
        return [{"sum": p.grad} if id(p) in mine and p.grad is not None else {} for p in parameters]

    def hold_gradients(self, parameters: Sequence[nn.Parameter], held: Sequence[dict[str, torch.Tensor]]) -> None:
        if any("shard" in gradient for gradient in held):
            raise foreign_gradients(self.name)
        for parameter, gradient in zip(parameters, held, strict=True):
            hold_gradient(parameter, gradient["sum"])

    def drop_local_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """zero_grad has forgotten them."""

    def finish_backward(self, parameters: Iterator[nn.Parameter], *, synchronized: bool) -> None:
        """Nothing is left."""

    def reduce_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """The step does so."""

    def clip_grad_norm(self, parameters: Iterable[torch.Tensor], *, max_norm: float, norm_type: float) -> torch.Tensor:
        if norm_type != 2:
            raise UsageError(
                f"clip_grad_norm_ with norm_type={norm_type:g} under DeepSpeed",
                allowed="the 2-norm: it is the one that DeepSpeed sums over flat parts",
                next_step="leave norm_type out, or use strategy fsdp2 or ddp",
            )
        listed = list(parameters)
        for windowed in self._windowed:
            if windowed.is_mine(listed):
                return windowed.clip(max_norm)
        raise UsageError(
            "clip_grad_norm_ under DeepSpeed of parameters that are not those of one prepared model",
            allowed="all parameters of one model",
            next_step="accelerator.clip_grad_norm_(model.parameters(), max_norm), once for each model",
        )

    def clip_grad_value(self, parameters: Iterable[torch.Tensor], clip_value: float) -> None:  # noqa: ARG002  # of the protocol
        raise UsageError(
            "clip_grad_value_ under DeepSpeed: it clips to a norm alone",
            allowed="clip_grad_norm_",
            next_step="use accelerator.clip_grad_norm_(model.parameters(), max_norm), or strategy fsdp2 or ddp",
        )

    def state_dict(self, model: nn.Module) -> dict[str, Any]:
        windowed = self._of(model)
        if windowed is None or windowed.zero is None:
            return self.unwrap_model(model).state_dict()
        self._require_in_memory("save_state")
        return states.whole_model_state(windowed)

    def load_state_dict(self, model: nn.Module, state: dict[str, Any]) -> None:
        windowed = self._of(model)
        if windowed is None or windowed.zero is None:
            self.unwrap_model(model).load_state_dict(state)
            return
        self._require_in_memory("load_state")
        states.load_whole_model_state(windowed, state)

    def optimizer_state_dict(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        windowed = self._engines[optimizer]
        return optimizer.state_dict() if windowed.zero is None else states.whole_optimizer_state(windowed)

    def load_optimizer_state_dict(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        windowed = self._engines[optimizer]
        if windowed.zero is None:
            optimizer.load_state_dict(state)
        else:
            states.load_whole_optimizer_state(windowed, state)

    def model_part(self, name: str, model: nn.Module) -> Part:
        """The model in a checkpoint: whole tensors, which rank 0 writes."""
        windowed = self._of(model)
        inner = self.unwrap_model(model)
        return Part(
            name,
            save=lambda: self.state_dict(model),
            load=lambda state: self.load_state_dict(model, state),
            choose=lambda stored: (
                check_model(stored, inner)
                if windowed is None or windowed.zero is None
                else states.check_model_state(windowed, stored)
            ),
        )

    def optimizer_part(self, name: str, optimizer: torch.optim.Optimizer) -> Part:
        """The optimizer in a checkpoint: whole tensors, which rank 0 writes."""
        windowed = self._engines[optimizer]
        return Part(
            name,
            save=lambda: self.optimizer_state_dict(optimizer),
            load=lambda state: self.load_optimizer_state_dict(optimizer, state),
            choose=lambda stored: (
                check_optimizer(stored, optimizer)
                if windowed.zero is None
                else states.check_optimizer_state(windowed, stored)
            ),
            kind=kind_of(optimizer),
        )

    def parameter_groups(self, optimizer: torch.optim.Optimizer) -> list[list[nn.Parameter]]:
        """The parameters that each group was built over; the optimizer itself holds flat parts."""
        return [list(group.parameters) for group in self._engines[optimizer].groups]

    @property
    def _windowed(self) -> list[WindowedEngine]:
        return list(self._engines.values())

    def _is_engine(self, model: nn.Module) -> bool:
        return self._of(model) is not None

    def _of(self, model: nn.Module) -> WindowedEngine | None:
        return next((windowed for windowed in self._windowed if windowed.engine is model), None)

    def _require_in_memory(self, operation: str) -> None:
        if any("nvme" in (plugin.offload_optimizer, plugin.offload_param) for plugin in self._plugins.values()):
            raise UsageError(
                f"{operation} with offloading to NVMe is not in this version",
                allowed="offloading to cpu, or none",
                next_step="use offload_optimizer='cpu'",
            )

    def _settle_batches(self, batch_sizes: Sequence[int], accumulation: int) -> None:
        """The numbers of the configuration must fit one of the loaders, the accumulation and the ranks."""
        plugin = self._plugins[self._selected]
        problem: ConfigurationError | None = None
        for size in batch_sizes:
            settings = BatchSettings(
                train=plugin.number("train"),
                micro=plugin.number("micro"),
                accumulation=BatchNumber(accumulation, "gradient_accumulation_steps"),
                dataloader=BatchNumber(size, "the script's loader"),
                ranks=BatchNumber(self._context.world_size, "the number of processes"),
            )
            try:
                settle_batches(settings)
            except ConfigurationError as error:
                problem = problem or error
            else:
                self._batches_settled = True
                return
        if problem is not None:
            raise problem

    def _engine_config(self, plugin: DeepSpeedPlugin) -> dict[str, Any]:
        """What DeepSpeed is told: windows of one micro-batch, since their length is the runtime's."""
        config = _without_auto(plugin.config)
        for name in ("train_batch_size", "bf16", "fp16"):
            config.pop(name, None)
        half = self._context.precision == "bf16" and plugin.stage > 0
        config |= {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": 0.0,  # the default would be 1
            "bf16": {**_without_auto(plugin.config.get("bf16", {})), "enabled": half},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
        }
        zero = config["zero_optimization"]
        for name in ("offload_optimizer", "offload_param"):
            if zero.get(name, {}).get("device", "none") == "none":
                zero.pop(name, None)
        return config


def _without_auto(section: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _without_auto(value) if isinstance(value, Mapping) else value
        for name, value in section.items()
        if value is not None and not (isinstance(value, str) and value == "auto")
    }
