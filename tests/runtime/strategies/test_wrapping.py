"""Which modules become units."""

from typing import Any

import pytest
from torch import nn

from runtime.errors import ConfigurationError
from runtime.strategies.sharding_options import FullyShardedDataParallelPlugin as Plugin
from runtime.strategies.wrapping import find_units


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 8)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 4)
        self.layers = nn.ModuleList([Block(), Block()])
        self.last = nn.Linear(4, 7, bias=False)


def _names(model: nn.Module, **settings: Any) -> list[str]:
    names = {id(module): name for name, module in model.named_modules()}
    return [names[id(unit)] for unit in find_units(model, Plugin(**settings))]


def test_members_of_module_lists_are_units_where_nothing_else_is_said() -> None:
    assert sorted(_names(Net())) == ["layers.0", "layers.1"]
    assert _names(nn.Sequential(nn.Linear(2, 2), nn.ReLU())) == []
    assert _names(nn.Linear(2, 2)) == []


def test_the_models_own_list_comes_before_that() -> None:
    model = Net()
    model._no_split_modules = ["Embedding"]  # type: ignore[assignment]  # as transformers has it
    assert _names(model) == ["words"]
    assert sorted(_names(model, transformer_cls_names_to_wrap=["Block"])) == ["layers.0", "layers.1"]


def test_inner_units_come_before_outer_ones() -> None:
    order = _names(Net(), transformer_cls_names_to_wrap="Block,Linear")
    for layer in ("layers.0", "layers.1"):
        assert max(order.index(f"{layer}.a"), order.index(f"{layer}.b")) < order.index(layer)


def test_size_counts_what_no_inner_unit_holds() -> None:
    assert sorted(_names(Net(), auto_wrap_policy="SIZE_BASED_WRAP", min_num_params=60)) == ["layers.0", "layers.1"]
    assert sorted(_names(Net(), auto_wrap_policy="SIZE_BASED_WRAP", min_num_params=40)) == ["layers.0.b", "layers.1.b"]
    assert _names(Net(), auto_wrap_policy="SIZE_BASED_WRAP", min_num_params=10**6) == []
    assert _names(Net(), auto_wrap_policy="NO_WRAP") == []


def test_tied_weights_keep_their_modules_in_one_unit() -> None:
    model = Net()
    model.last.weight = model.words.weight
    assert _names(model, auto_wrap_policy=lambda module: isinstance(module, (nn.Embedding, Block))) == [
        "layers.1",
        "layers.0",
    ]


def test_names_that_fit_nothing_are_refused_with_those_that_are_there() -> None:
    with pytest.raises(ConfigurationError, match=r"has no Blok.*Allowed: Block, Embedding, Linear"):
        _names(Net(), transformer_cls_names_to_wrap="Blok")
