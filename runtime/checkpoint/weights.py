"""A model's weights one by one: names, shapes and ties are known before any of them is made whole."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")


@dataclass(frozen=True)
class Weight:
    """A tensor to be exported.

    Attributes:
        read: makes it whole on the CPU; of a sharded tensor, all ranks call it together.
        aliases: further names that are tied to it.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    read: Callable[[], torch.Tensor]
    aliases: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def weights_of(
    state: Mapping[str, Any], *, tied: Iterable[list[str]] = (), secondary: Iterable[str] = ()
) -> tuple[list[Weight], dict[str, Any]]:
    """The tensors of a state_dict, and what else it holds.

    Whole tensors that are the same memory, seen the same way, are one weight. Equal values alone do not tie.

    Args:
        tied: groups of names that are known to be tied; a name may be absent from the state.
        secondary: names that stand in second place among those tied together.
    """
    endings = tuple(secondary)
    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    groups: dict[Any, list[str]] = {}
    known = {name: ("known", index) for index, names in enumerate(tied) for name in names}
    for name, tensor in tensors.items():
        groups.setdefault(known.get(name) or _place(name, tensor), []).append(name)
    for name, key in known.items():
        if key in groups and name not in groups[key]:
            groups[key].append(name)
    weights = []
    for names in groups.values():
        tensor = tensors[names[0]]
        names.sort(key=lambda name: bool(endings) and name.endswith(endings))
        weights.append(Weight(names[0], tensor.dtype, tuple(tensor.shape), partial(_whole, tensor), tuple(names[1:])))
    return weights, {name: value for name, value in state.items() if name not in tensors}


def sharded_weights(model: nn.Module) -> tuple[list[Weight], dict[str, Any]] | None:
    """The weights of a model whose parameters are DTensors, gathered when read; None for another model."""
    from torch.distributed.checkpoint.state_dict import get_model_state_dict  # needs a torch with torch.distributed
    from torch.distributed.tensor import DTensor

    if not any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        return None
    groups: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), []).append(_bare(name))
    tied = [names for names in groups.values() if len(names) > 1]
    return weights_of(get_model_state_dict(model), tied=tied, secondary=secondary_names(model))


def secondary_names(model: nn.Module) -> tuple[str, ...]:
    """Names that transformers ties to others when it loads, and so does not expect in a file."""
    tied = getattr(model, "_tied_weights_keys", None)
    return tuple(str(name) for name in tied) if isinstance(tied, (list, tuple, dict)) else ()


def _bare(name: str) -> str:
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def _place(name: str, tensor: torch.Tensor) -> Any:
    """Equal for tensors that are one and the same memory; of sharded ones no rank can say that for all."""
    if hasattr(tensor, "full_tensor") or tensor.numel() == 0 or tensor.layout != torch.strided:
        return name
    if tensor.device.type == "meta":
        return name
    return tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _whole(tensor: Any) -> torch.Tensor:
    """All of a tensor, on the CPU, contiguous; memory of the model itself where that is what it is."""
    if hasattr(tensor, "full_tensor"):
        kind = tensor.device_mesh.device_type
        # Parts that lie in host memory travel through the device that the process group serves.
        on_mesh = tensor if tensor.to_local().device.type == kind else tensor.to(kind)
        tensor = on_mesh.detach().full_tensor()
    whole: torch.Tensor = tensor.detach().cpu()
    return whole.contiguous()
