"""One process, one device."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn

from .base import WholeModel


class SingleStrategy(WholeModel):
    """The model as it is."""

    name = "single"

    def requirements(self) -> list[str]:
        count = self._context.world_size
        return [] if count == 1 else [f"strategy single runs in one process, this job has {count}"]

    def prepare_model(self, model: nn.Module) -> nn.Module:
        return self.apply_passes(model)

    def unwrap_model(self, model: nn.Module) -> nn.Module:
        return model

    def no_sync(self, model: nn.Module) -> AbstractContextManager[None]:  # noqa: ARG002  # of the protocol
        return nullcontext()

    def join(self, models: Sequence[nn.Module]) -> AbstractContextManager[None]:  # noqa: ARG002  # of the protocol
        return nullcontext()

    def reduce_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """One process has nothing to average."""

    def state_dict(self, model: nn.Module) -> dict[str, Any]:
        return model.state_dict()

    def load_state_dict(self, model: nn.Module, state: dict[str, Any]) -> None:
        model.load_state_dict(state)
