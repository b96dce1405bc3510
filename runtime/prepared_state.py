"""What a checkpoint holds of an Accelerator's prepared objects, as parts that save and load themselves."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from .data.loader import PreparedLoader
from .optim.optimizer import PreparedOptimizer
from .optim.scheduler import PreparedScheduler
from .optim.window import AccumulationWindows
from .optim.window_state import WindowKeeper, merge_windows
from .parameter_names import bare, check_order, in_order, without_wrappers
from .precision.base import Precision
from .state_fit import check_model, check_optimizer, kind_of
from .state_parts import Part
from .strategies.base import ShardsState, Strategy


class PreparedState:
    """The prepared objects and the window, whose owner sets these attributes."""

    strategy: Strategy
    precision: Precision
    windows: AccumulationWindows
    models: list[nn.Module]
    optimizers: list[PreparedOptimizer]
    schedulers: list[PreparedScheduler]
    loaders: list[PreparedLoader]
    custom: list[Any]
    _keeper: WindowKeeper

    def forget_gradients(self) -> None:
        """Begin anew: gradients computed before a checkpoint was loaded belong to another state."""
        self.windows.reset()
        for optimizer in self.optimizers:
            optimizer.zero_grad(discard=True)

    def window_state(self) -> dict[str, Any] | None:
        """What this rank holds for the next optimizer step (counts and its own gradients); None between windows.

        Raises:
            CheckpointError: the strategy cannot give it away.
        """
        forms = [(model, self.strategy.unwrap_model(model)) for model in self.models]
        return self._keeper.take(forms, self._named_parameters())

    def load_window_state(self, state: dict[str, Any] | None) -> None:
        """Go on inside the window that window_state took down (see also optim.window_state.merge_windows).

        Raises:
            CheckpointError: it belongs to other models, optimizers or to another strategy.
        """
        self.forget_gradients()
        self._keeper.put_back(state, self.models, self._named_parameters())

    def parts(self, models: Sequence[nn.Module] | None = None) -> list[Part]:
        """Everything that a checkpoint holds; `models` stand for all prepared ones."""
        chosen = self.models if models is None else models
        unwrap = self.strategy.unwrap_model
        parts = [without_wrappers(self._model_part(i, model), unwrap(model)) for i, model in enumerate(chosen)]
        parts += [self._optimizer_part(index, prepared.optimizer) for index, prepared in enumerate(self.optimizers)]
        for index, prepared in enumerate(self.schedulers):
            name, kind = f"scheduler_{index}", kind_of(prepared.scheduler)
            parts.append(Part(name, prepared.state_dict, prepared.load_state_dict, kind=kind))
        groups: list[tuple[str, Iterable[Any]]] = [("loader", self.loaders), ("custom", self.custom)]
        for group, things in groups:
            parts += [Part(f"{group}_{i}", thing.state_dict, thing.load_state_dict) for i, thing in enumerate(things)]
        scaler = self.precision.scaler
        if scaler is not None:
            parts.append(Part("scaler", scaler.state_dict, scaler.load_state_dict))
        parts.append(Part("progress", self._progress, self._restore_progress, choose=self._check_progress))
        parts.append(Part("window", self.window_state, self.load_window_state, own=True, merge=merge_windows))
        return parts

    def _model_part(self, index: int, model: nn.Module) -> Part:
        strategy, name = self.strategy, f"model_{index}"
        if isinstance(strategy, ShardsState):
            return strategy.model_part(name, model)
        return Part(
            name,
            save=lambda: strategy.state_dict(model),
            load=lambda state: strategy.load_state_dict(model, state),
            choose=lambda stored: check_model(stored, strategy.unwrap_model(model)) if strategy.replicated else stored,
        )

    def _optimizer_part(self, index: int, optimizer: torch.optim.Optimizer) -> Part:
        strategy, name = self.strategy, f"optimizer_{index}"
        if isinstance(strategy, ShardsState):
            return strategy.optimizer_part(name, optimizer)
        return Part(
            name,
            save=lambda: strategy.optimizer_state_dict(optimizer),
            load=lambda state: strategy.load_optimizer_state_dict(optimizer, state),
            choose=lambda stored: check_optimizer(stored, optimizer) if strategy.replicated else stored,
            kind=kind_of(optimizer),
        )

    def _progress(self) -> dict[str, Any]:
        counts = [[o.num_steps, o.num_skipped, o.skipped_in_a_row] for o in self.optimizers]
        return {"optimizers": counts, "parameters": self._parameters_in_order()}

    def _parameters_in_order(self) -> list[list[str] | None]:
        return in_order([prepared.optimizer for prepared in self.optimizers], self._named_by_models())

    def _check_progress(self, stored: dict[str, Any]) -> dict[str, Any]:
        check_order(stored.get("parameters", []), self._parameters_in_order(), self._named_by_models())
        return stored

    def _restore_progress(self, state: dict[str, Any]) -> None:
        for optimizer, counts in zip(self.optimizers, state["optimizers"], strict=False):
            optimizer.num_steps, optimizer.num_skipped, optimizer.skipped_in_a_row = counts

    def _named_by_models(self) -> dict[str, nn.Parameter]:
        return {
            f"model_{index}.{bare(name)}": parameter
            for index, model in enumerate(self.models)
            for name, parameter in self.strategy.unwrap_model(model).named_parameters()
        }

    def _named_parameters(self) -> dict[str, nn.Parameter]:
        """All that can have a gradient: of the models by name, and of the optimizers by place."""
        named = self._named_by_models()
        known = {id(parameter) for parameter in named.values()}
        loose = {
            f"optimizer_{index}.{place}": parameter
            for index, optimizer in enumerate(self.optimizers)
            for place, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"])
            if id(parameter) not in known
        }
        return named | loose
