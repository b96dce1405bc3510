"""FSDP2: parameters, gradients and optimizer states lie sharded over the ranks (torch's fully_shard)."""

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from ..errors import UsageError
from ..mesh import data_parallel_mesh
from ..state_parts import Part
from ..structures import leaves, map_leaves
from . import sharded_gradients as gradients
from .base import StrategyContext, forward_and_backward, refuse_selection
from .filling import Filler
from .lone_group import require_group
from .passes import ActivationCheckpointing, apply_passes
from .sharded_parts import model_part, optimizer_part
from .sharded_state import (
    load_whole_model_state,
    load_whole_optimizer_state,
    part_of,
    whole_model_state,
    whole_optimizer_state,
)
from .sharding_options import ShardingOptions
from .wrapping import find_units

_DEVICES = ("cpu", "cuda")
_DTYPES = {"no": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class Fsdp2Strategy:
    """torch's fully_shard over a mesh of all ranks; `options` is the plugin."""

    name = "fsdp2"
    distributed_type = "FSDP"
    flattens = False
    replicated = False

    def __init__(self, context: StrategyContext) -> None:
        self._context = context
        options: ShardingOptions = context.options
        self._plugin, self._dims = options.plugin, options.dims
        self._made: tuple[Any, DeviceMesh] | None = None
        self._prepared: list[weakref.ref[nn.Module]] = []
        self._replaced: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}
        checkpointing = [ActivationCheckpointing()] if self._plugin.activation_checkpointing else []
        self._passes = (*context.passes, *checkpointing)

    def requirements(self) -> list[str]:
        kind = self._context.device.type
        return [] if kind in _DEVICES else [f"strategy fsdp2 runs on {' and '.join(_DEVICES)}, not on {kind}"]

    def dtypes(self) -> dict[str, str]:
        policy = self._precision_policy()
        computed = policy.param_dtype
        given = {"compute": computed, "reduction": policy.reduce_dtype or computed, "output": policy.output_dtype}
        return {name: str(dtype).removeprefix("torch.") for name, dtype in given.items() if dtype is not None}

    def place(self, model: nn.Module) -> nn.Module:
        return model  # sharding moves the parts, so that no device holds the whole

    def prepare_model(self, model: nn.Module) -> nn.Module:
        if next(model.parameters(), None) is None:
            return model
        slots = [
            (module, name, p) for module in model.modules() for name, p in module._parameters.items() if p is not None
        ]
        units = find_units(model, self._plugin)
        changed = apply_passes(model, units or [model], self._passes, self._mesh)
        units, model = (changed, model) if units else ([], changed[0])
        home = torch.device("cpu") if self._plugin.cpu_offload else self._context.device
        filler = Filler(model, device=self._context.device, home=home, init=self._plugin.param_init_fn)
        for unit in [*units, model]:
            filler.fill(unit)
            unit.register_forward_hook(_give_own_memory)
            fully_shard(
                unit,
                mesh=self._mesh,
                reshard_after_forward=self._plugin.reshard_after_forward,
                mp_policy=self._precision_policy(),
                offload_policy=self._offload_policy(),
            )
        self._replaced.update({id(old): (old, module._parameters[name]) for module, name, old in slots})  # type: ignore[misc]  # sharded ones are there
        self._prepared.append(weakref.ref(model))
        model.register_forward_hook(_reshard_after_evaluation)
        return model

    def begin_prepare(self, things: Sequence[Any], *, batch_sizes: Sequence[int], accumulation: int) -> None:
        """Each thing is looked at when its turn comes."""

    def select_options(self, name: str) -> None:
        refuse_selection(name)

    def prepare_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        sharded = {id(parameter) for root in self._roots for parameter in root.parameters()}
        listed = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        foreign = [p for p in listed if id(p) not in sharded and id(p) not in self._replaced]
        if foreign:
            raise UsageError(
                f"{len(foreign)} of {len(listed)} parameters of {type(optimizer).__name__} belong to no model prepared "
                "with it: FSDP2 replaces a model's parameters by sharded ones",
                allowed="model and optimizer in one prepare(), or an optimizer built over the prepared model",
                next_step="model, optimizer = accelerator.prepare(model, optimizer)",
            )
        new = {old: sharded for old, (_, sharded) in self._replaced.items()}
        for group in optimizer.param_groups:
            group["params"] = [new.get(id(parameter), parameter) for parameter in group["params"]]
        for old in [parameter for parameter in optimizer.state if id(parameter) in new]:
            state, parameter = optimizer.state.pop(old), new[id(old)]
            spread = {name: part_of(value, parameter) for name, value in state.items()}  # type: ignore[arg-type]  # sharded
            optimizer.state[parameter] = spread
        optimizer.register_step_pre_hook(lambda *_: self._reshard())

    def end_prepare(self) -> None:
        self._replaced.clear()

    def step(self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any] | None) -> tuple[Any, bool]:
        return optimizer.step(closure), False

    def zero_grad(self, optimizer: torch.optim.Optimizer, *, set_to_none: bool) -> None:
        optimizer.zero_grad(set_to_none=set_to_none)

    def clip_grad_value(self, parameters: Iterable[torch.Tensor], clip_value: float) -> None:
        nn.utils.clip_grad_value_(parameters, clip_value)

    def unwrap_model(self, model: nn.Module) -> nn.Module:
        return model

    def train_step(
        self, batch: Any, *, forward: Callable[[Any], torch.Tensor], backward: Callable[[torch.Tensor], None]
    ) -> torch.Tensor:
        return forward_and_backward(batch, forward=forward, backward=backward)

    @contextmanager
    def no_sync(self, model: nn.Module) -> Iterator[None]:
        if not isinstance(model, FSDPModule):
            yield
            return
        model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            model.set_requires_gradient_sync(True)

    def join(self, models: Sequence[nn.Module]) -> AbstractContextManager[None]:  # noqa: ARG002  # of the protocol
        raise UsageError(
            "join_uneven_inputs under FSDP2: every rank's forward needs the parts of all others",
            allowed="as many batches on every rank",
            next_step="use even_batches=True, or strategy ddp",
        )

    def local_gradients(self, parameters: Iterable[nn.Parameter]) -> list[torch.Tensor]:
        listed = list(parameters)
        unreduced = [g for root in self._roots for g in gradients.unreduced_gradients(root, listed)]
        known = {id(gradient) for gradient in unreduced}
        return unreduced + [g for g in gradients.local_gradients(listed) if id(g) not in known]

    def drop_local_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        listed = list(parameters)
        for root in self._roots:
            gradients.drop_unreduced_gradients(root, listed)

    def held_gradients(self, parameters: Sequence[nn.Parameter]) -> list[dict[str, torch.Tensor]]:
        return gradients.held_gradients(self._roots, parameters)

    def hold_gradients(self, parameters: Sequence[nn.Parameter], held: Sequence[dict[str, torch.Tensor]]) -> None:
        gradients.hold_gradients(self._roots, parameters, held)

    def finish_backward(self, parameters: Iterator[nn.Parameter], *, synchronized: bool) -> None:
        """Nothing is left."""

    def reduce_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        wanted = {id(parameter) for parameter in parameters}
        for root in self._roots:
            if any(id(parameter) in wanted for parameter in root.parameters()):
                gradients.reduce_now(root)

    def clip_grad_norm(self, parameters: Iterable[torch.Tensor], *, max_norm: float, norm_type: float) -> torch.Tensor:
        listed = [parameter.grad for parameter in parameters if parameter.grad is not None]
        group = self._mesh.get_group(self._mesh.ndim - 1)
        norm = gradients.total_norm(listed, norm_type=norm_type, groups=[group], device=self._context.device)
        factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        for gradient in listed:
            local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
            local.mul_(factor.to(local.device))
        return norm

    def model_part(self, name: str, model: nn.Module) -> Part:
        return model_part(name, model)

    def optimizer_part(self, name: str, optimizer: torch.optim.Optimizer) -> Part:
        return optimizer_part(name, optimizer)

    def state_dict(self, model: nn.Module) -> dict[str, Any]:
        return whole_model_state(model)

    def load_state_dict(self, model: nn.Module, state: dict[str, Any]) -> None:
        load_whole_model_state(model, state)

    def optimizer_state_dict(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        return whole_optimizer_state(optimizer)

    def load_optimizer_state_dict(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        load_whole_optimizer_state(optimizer, state)

    @property
    def _roots(self) -> list[nn.Module]:
        """The prepared models that the script still holds, in the order of all ranks."""
        return [model for reference in self._prepared if (model := reference()) is not None]

    @property
    def device_mesh(self) -> DeviceMesh:
        return self._mesh

    @property
    def _mesh(self) -> DeviceMesh:
        require_group(self._context)
        group = dist.group.WORLD
        if self._made is None or self._made[0] is not group:  # the group may have been opened anew
            self._made = (group, data_parallel_mesh(self._dims, self._context.device.type))
        return self._made[1]

    def _reshard(self) -> None:
        for root in self._roots:
            gradients.reshard(root)

    def _precision_policy(self) -> MixedPrecisionPolicy:
        policy = self._plugin.mixed_precision_policy
        if policy is not None and not isinstance(policy, str):
            chosen: MixedPrecisionPolicy = policy
            return chosen
        dtype = _DTYPES[policy or self._context.precision]
        # Gradients of many ranks and micro-batches are added in float32: bf16 would lose their low bits.
        return MixedPrecisionPolicy() if dtype is None else MixedPrecisionPolicy(dtype, reduce_dtype=torch.float32)

    def _offload_policy(self) -> OffloadPolicy:
        if not self._plugin.cpu_offload:
            return OffloadPolicy()
        return CPUOffloadPolicy(pin_memory=self._context.device.type == "cuda")


def _give_own_memory(_module: nn.Module, _inputs: Any, output: Any) -> Any:
    """FSDP2's hook on an output that is a view would be lost where the script changes that output in place."""
    if not torch.is_grad_enabled() or not any(_is_view(leaf) for _, leaf in leaves(output)):
        return None
    return map_leaves(lambda leaf: leaf.clone() if _is_view(leaf) else leaf, output)


def _is_view(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad and leaf._base is not None


def _reshard_after_evaluation(model: nn.Module, *_: Any) -> None:
    """Without a backward, nothing else would shard again what forward has gathered."""
    if not torch.is_grad_enabled():
        gradients.reshard(model)
