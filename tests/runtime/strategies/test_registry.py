"""Strategies by name, and the ones that do not exist."""

from typing import Any

import pytest
import torch

from runtime.accelerator import Accelerator
from runtime.errors import ConfigurationError
from runtime.strategies.base import StrategyContext
from runtime.strategies.registry import default_strategy_name, get_strategy, strategy_names


def _context(world_size: int) -> StrategyContext:
    return StrategyContext(torch.device("cpu"), world_size, {})


def test_the_default_follows_from_the_number_of_processes() -> None:
    assert get_strategy(default_strategy_name(1), _context(1)).name == "single"
    assert get_strategy(default_strategy_name(2), _context(2)).name == "ddp"


@pytest.mark.parametrize("name", ["fsdp", "zero", "DDP", "../ddp"])
def test_an_unknown_strategy_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        get_strategy(name, _context(2))
    assert name in str(refused.value)
    assert "Allowed: ddp, deepspeed, fsdp2, single" in str(refused.value)
    assert strategy_names() == ["ddp", "deepspeed", "fsdp2", "single"]


@pytest.mark.parametrize(("name", "world_size"), [("ddp", 1), ("single", 2)])
def test_a_strategy_says_what_it_needs(name: str, world_size: int) -> None:
    with pytest.raises(ConfigurationError, match="process"):
        get_strategy(name, _context(world_size))


@pytest.mark.parametrize(
    "settings",
    [
        {"megatron_lm_plugin": object()},
        {"torch_tp_plugin": object()},
    ],
)
def test_backends_of_other_versions_are_refused_by_name(settings: dict[str, Any], fresh_process: None) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Accelerator(cpu=True, **settings)
    assert all(name in str(refused.value) for name in settings)
    assert "single, ddp, fsdp2 and deepspeed" in str(refused.value)
