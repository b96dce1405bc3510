"""The seam between the training loop and the way in which a model is spread over ranks."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, runtime_checkable

import torch
from torch import nn

from ..errors import CheckpointError, UsageError
from ..state_parts import Part


@dataclass(frozen=True)
class StrategyContext:
    """What a strategy knows of its process.

    Attributes:
        options: the backend's own.
        precision: the Accelerator's mixed_precision.
        passes: changes of the model's units (passes.Pass) to be made before it is spread.
    """

    device: torch.device
    world_size: int
    options: Any
    precision: str = "no"
    passes: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Said:
    """What a strategy's own settings say of what Accelerator's arguments say too; None where they leave it open.

    Attributes:
        accumulation: micro-batches of a window.
        precision: no, bf16 or fp16.
        place: who said it.
    """

    accumulation: int | None = None
    precision: str | None = None
    place: str = ""


NOTHING_SAID = Said()


class Strategy(Protocol):
    """One way to spread a model over ranks."""

    name: str
    distributed_type: str
    """What Accelerator.distributed_type says; empty for what follows from devices and processes."""
    flattens: bool
    """A prepared optimizer holds flat parts of its model's parameters in their place."""
    replicated: bool
    """Every rank holds the whole state: rank 0 alone can save it. If not, all ranks gather it together."""

    def requirements(self) -> list[str]:
        """Why this strategy cannot run here, in words; empty if it can."""
        ...

    def dtypes(self) -> dict[str, str]:
        """Parts of the dtype plan (parameters, compute, reduction, output) that are this strategy's own."""
        ...

    def begin_prepare(self, things: Sequence[Any], *, batch_sizes: Sequence[int], accumulation: int) -> None:
        """The objects of one prepare(), before any is changed.

        Args:
            batch_sizes: of their loaders, for one rank, where they are known.
            accumulation: micro-batches of a full window.
        """
        ...

    def select_options(self, name: str) -> None:
        """Which of several sets of options the next prepare() uses."""
        ...

    def place(self, model: nn.Module) -> nn.Module:
        """Bring a model to the device, unless prepare_model does."""
        ...

    def prepare_model(self, model: nn.Module) -> nn.Module: ...

    def prepare_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Let it update the parameters that prepare_model has put in place of those it was built over."""
        ...

    def end_prepare(self) -> None:
        """The objects of one prepare() are all there."""
        ...

    def step(self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any] | None) -> tuple[Any, bool]:
        """Update the parameters; returns the closure's result, and whether the step was skipped."""
        ...

    def zero_grad(self, optimizer: torch.optim.Optimizer, *, set_to_none: bool) -> None:
        """Forget the gradients of its parameters."""
        ...

    def unwrap_model(self, model: nn.Module) -> nn.Module: ...

    def train_step(
        self, batch: Any, *, forward: Callable[[Any], torch.Tensor], backward: Callable[[torch.Tensor], None]
    ) -> torch.Tensor:
        """The loop's unit: forward and backward of one micro-batch; returns the detached loss."""
        ...

    def no_sync(self, model: nn.Module) -> AbstractContextManager[None]:
        """While inside, gradients stay on their rank."""
        ...

    def join(self, models: Sequence[nn.Module]) -> AbstractContextManager[None]:
        """While inside, ranks may take different numbers of batches."""
        ...

    def local_gradients(self, parameters: Iterable[nn.Parameter]) -> list[torch.Tensor]:
        """This rank's gradients of these parameters, those that wait for their reduction included."""
        ...

    def drop_local_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Forget gradients that wait for their reduction outside of `grad`."""
        ...

    def held_gradients(self, parameters: Sequence[nn.Parameter]) -> list[dict[str, torch.Tensor]]:
        """For each parameter, what this rank holds inside a window: `sum` (not reduced), `shard` (reduced), or nothing.

        Raises:
            CheckpointError: the strategy cannot give it away.
        """
        ...

    def hold_gradients(self, parameters: Sequence[nn.Parameter], held: Sequence[dict[str, torch.Tensor]]) -> None:
        """The inverse: go on inside the window with these.

        Raises:
            CheckpointError: they are of a kind that this strategy does not hold.
        """
        ...

    def finish_backward(self, parameters: Iterator[nn.Parameter], *, synchronized: bool) -> None:
        """Do what a backward has left to do.

        Args:
            parameters: of the window's models; they are walked only where something is left.
            synchronized: the backward was to average gradients over the ranks.
        """
        ...

    def reduce_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Average gradients over the ranks now: for a window whose last micro-batch had no backward."""
        ...

    def clip_grad_norm(self, parameters: Iterable[torch.Tensor], *, max_norm: float, norm_type: float) -> torch.Tensor:
        """Clip to the norm over the whole model; returns the norm before."""
        ...

    def clip_grad_value(self, parameters: Iterable[torch.Tensor], clip_value: float) -> None:
        """Clip each element to [-clip_value, clip_value]."""
        ...

    def state_dict(self, model: nn.Module) -> dict[str, Any]:
        """Whole tensors: on every rank where the state is replicated, else on rank 0 (the others get nothing)."""
        ...

    def load_state_dict(self, model: nn.Module, state: dict[str, Any]) -> None: ...

    def optimizer_state_dict(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]: ...

    def load_optimizer_state_dict(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None: ...


def refuse_selection(name: str) -> NoReturn:
    """For strategies that have one set of options."""
    raise UsageError(
        f"no plugin {name!r} to select: this strategy has one set of options",
        allowed="several plugins by name, under strategy deepspeed",
        next_step="Accelerator(deepspeed_plugin={name: DeepSpeedPlugin(...)})",
    )


@runtime_checkable
class ShardsState(Protocol):
    """What a strategy may offer beside whole tensors: each rank saves and loads the boxes that it holds."""

    def model_part(self, name: str, model: nn.Module) -> Part: ...

    def optimizer_part(self, name: str, optimizer: torch.optim.Optimizer) -> Part: ...


class WholeModel:
    """What is common to strategies whose ranks hold the whole model as it is."""

    name: str
    distributed_type = ""
    flattens = False
    replicated = True

    def __init__(self, context: StrategyContext) -> None:
        self._context = context

    def dtypes(self) -> dict[str, str]:
        return {}

    def place(self, model: nn.Module) -> nn.Module:
        return model.to(self._context.device)

    def begin_prepare(self, things: Sequence[Any], *, batch_sizes: Sequence[int], accumulation: int) -> None:
        """Each thing is looked at when its turn comes."""

    def select_options(self, name: str) -> None:
        refuse_selection(name)

    def apply_passes(self, model: nn.Module) -> nn.Module:
        """The passes act on the whole model as one unit."""
        for step in sorted(self._context.passes, key=lambda step: step.place):
            model = step.apply(model, None)
        return model

    def prepare_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """The parameters stay what they are."""

    def step(self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any] | None) -> tuple[Any, bool]:
        return optimizer.step(closure), False

    def finish_backward(self, parameters: Iterator[nn.Parameter], *, synchronized: bool) -> None:
        """Nothing is left."""

    def zero_grad(self, optimizer: torch.optim.Optimizer, *, set_to_none: bool) -> None:
        optimizer.zero_grad(set_to_none=set_to_none)

    def end_prepare(self) -> None:
        """Nothing was replaced."""

    def train_step(
        self, batch: Any, *, forward: Callable[[Any], torch.Tensor], backward: Callable[[torch.Tensor], None]
    ) -> torch.Tensor:
        return forward_and_backward(batch, forward=forward, backward=backward)

    def local_gradients(self, parameters: Iterable[nn.Parameter]) -> list[torch.Tensor]:
        return [parameter.grad for parameter in parameters if parameter.grad is not None]

    def drop_local_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """All of them are in `grad`."""

    def held_gradients(self, parameters: Sequence[nn.Parameter]) -> list[dict[str, torch.Tensor]]:
        return [{} if parameter.grad is None else {"sum": parameter.grad} for parameter in parameters]

    def hold_gradients(self, parameters: Sequence[nn.Parameter], held: Sequence[dict[str, torch.Tensor]]) -> None:
        if any("shard" in gradient for gradient in held):
            raise foreign_gradients(self.name)
        for parameter, gradient in zip(parameters, held, strict=True):
            parameter.grad = gradient["sum"].to(device=parameter.device, dtype=parameter.dtype, copy=True)

    def clip_grad_norm(self, parameters: Iterable[torch.Tensor], *, max_norm: float, norm_type: float) -> torch.Tensor:
        return nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)

    def clip_grad_value(self, parameters: Iterable[torch.Tensor], clip_value: float) -> None:
        nn.utils.clip_grad_value_(parameters, clip_value)

    def optimizer_state_dict(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        return optimizer.state_dict()

    def load_optimizer_state_dict(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        optimizer.load_state_dict(state)


def foreign_gradients(strategy: str) -> CheckpointError:
    """For gradients of a window that another strategy has begun and this one cannot go on with."""
    return CheckpointError(
        f"the checkpoint lies inside an accumulation window whose gradients strategy {strategy} cannot hold",
        allowed="the strategy with which it was saved",
        next_step="resume with that strategy, or from a checkpoint between two optimizer steps",
    )


def forward_and_backward(
    batch: Any, *, forward: Callable[[Any], torch.Tensor], backward: Callable[[torch.Tensor], None]
) -> torch.Tensor:
    """The default train_step."""
    loss = forward(batch)
    backward(loss)
    return loss.detach()
