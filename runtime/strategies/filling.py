"""Gives every rank the weights of rank 0, unit by unit, and builds there what lies on the meta device."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from ..errors import ConfigurationError, DistributedError

Described = list[tuple[str, list[int], str, bool]]


class Filler:
    """Fills the modules of a model that are not filled yet.

    A model may lie on the meta device on all ranks (its modules are then initialised), or on all but rank 0.

    Args:
        device: of the collectives.
        home: where parameters are built.
        init: initialises one module in place; None calls its reset_parameters().

    Raises:
        DistributedError: the ranks have different models.
        ConfigurationError: a module on the meta device cannot initialise itself.
    """

    def __init__(
        self, model: nn.Module, *, device: torch.device, home: torch.device, init: Callable[[nn.Module], None] | None
    ) -> None:
        self._device = device
        self._home = home
        self._init = init
        self._done: set[int] = set()
        self._made: dict[int, torch.Tensor] = {}
        self._is_shared = dist.get_world_size() > 1
        self._empty = _empty_on_first(model, self._is_shared)
        self._names = {id(module): name for name, module in model.named_modules()}
        if self._empty and init is None:
            self._require_initialisers(model)

    def fill(self, unit: nn.Module) -> None:
        """Build, initialise and synchronise the unit's modules."""
        modules = [module for module in unit.modules() if id(module) not in self._done]
        for module in modules:
            self._done.add(id(module))
            was_empty = self._build(module)
            if was_empty and any(name in self._empty for name in self._tensor_names(module)):
                (self._init or _reset)(module)
        if self._is_shared:
            seen: set[int] = set()
            for module in modules:
                for tensor in (*module._parameters.values(), *module._buffers.values()):
                    if tensor is not None and id(tensor) not in seen:
                        seen.add(id(tensor))
                        self._take_first_ranks(tensor)

    def _build(self, module: nn.Module) -> bool:
        """Replace meta tensors by empty ones; returns whether there were any."""
        found = False
        for table in (module._parameters, module._buffers):
            for name, tensor in list(table.items()):
                if tensor is None or not tensor.is_meta:
                    continue
                found = True
                if id(tensor) not in self._made:
                    empty = torch.empty_like(tensor, device=self._home)
                    is_parameter = isinstance(tensor, nn.Parameter)
                    new = nn.Parameter(empty, requires_grad=tensor.requires_grad) if is_parameter else empty
                    self._made[id(tensor)] = new
                    self._made[id(new)] = tensor  # keeps the old one alive, so that its id stays its own
                table[name] = self._made[id(tensor)]  # type: ignore[assignment]  # a parameter where one was
        return found

    def _take_first_ranks(self, tensor: torch.Tensor) -> None:
        if tensor.numel() == 0:
            return
        with torch.no_grad():
            sent = tensor.detach().to(self._device).contiguous()
            dist.broadcast(sent.as_strided((sent.numel(),), (1,)).view(torch.uint8), src=0)
            if sent.data_ptr() != tensor.data_ptr():
                tensor.copy_(sent)

    def _tensor_names(self, module: nn.Module) -> list[str]:
        prefix = self._names.get(id(module), "")
        return [f"{prefix}.{name}" if prefix else name for name in (*module._parameters, *module._buffers)]

    def _require_initialisers(self, model: nn.Module) -> None:
        lacking = [
            f"{name or 'the model'} ({type(module).__name__})"
            for name, module in model.named_modules()
            if any(key in self._empty for key in self._tensor_names(module)) and _initialiser(module) is None
        ]
        if lacking:
            raise ConfigurationError(
                f"on the meta device, without reset_parameters(): {', '.join(lacking[:5])}",
                allowed="modules that can initialise themselves, or param_init_fn in the plugin",
                next_step="give these classes reset_parameters(), or build the model on the CPU",
            )


def _empty_on_first(model: nn.Module, is_shared: bool) -> set[str]:
    """Names of the tensors that rank 0 has on the meta device, once all ranks are seen to have the same model."""
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    own: Described = [(name, list(t.shape), str(t.dtype), t.is_meta) for name, t in tensors]
    first = own
    if is_shared:
        all_ranks: list[Described] = [[] for _ in range(dist.get_world_size())]
        dist.all_gather_object(all_ranks, own)
        first = all_ranks[0]
        for rank, theirs in enumerate(all_ranks):
            _require_same(first, theirs, rank)
    return {name for name, _, _, is_meta in first if is_meta}


def _require_same(first: Described, theirs: Described, rank: int) -> None:
    mine, other = {item[0]: item[1:3] for item in first}, {item[0]: item[1:3] for item in theirs}
    if mine == other:
        return
    name = next(name for name in [*mine, *other] if mine.get(name) != other.get(name))
    raise DistributedError(
        f"the ranks have different models: {name} is {mine.get(name)} on rank 0, {other.get(name)} on rank {rank}",
        allowed="the same model on every rank",
        next_step="build it from the same configuration everywhere",
    )


def _initialiser(module: nn.Module) -> Callable[[], None] | None:
    for name in ("reset_parameters", "_reset_parameters"):
        method = getattr(module, name, None)
        if callable(method):
            found: Callable[[], None] = method
            return found
    return None


def _reset(module: nn.Module) -> None:
    method = _initialiser(module)
    assert method is not None, "Filler has asked every module"
    with torch.no_grad():
        method()
