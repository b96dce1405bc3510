"""The same training loop written three times: for torch alone, for this runtime and for accelerate."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import accelerate
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import runtime

Batch = tuple[torch.Tensor, torch.Tensor]
Block = Callable[[Sequence[Batch]], None]
"""Trains on these micro-batches, a whole number of windows."""


@dataclass(frozen=True)
class Variant:
    name: str
    model: nn.Module
    block: Block


class TinyTransformer(nn.Module):
    """Two encoder layers over 16 positions of width 64; classifies the sequence."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(inputs).mean(1))


def make_model(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name == "trivial":
        return nn.Linear(1, 1)
    if name == "mlp":  # 0.96 million parameters
        return nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 640), nn.ReLU(), nn.Linear(640, 64))
    return TinyTransformer()


def make_batches(name: str, count: int, rank: int) -> list[Batch]:
    random = torch.Generator().manual_seed(rank)
    shape, outputs = {"trivial": ((1, 1), 1), "mlp": ((64, 256), 64), "transformer": ((16, 16, 64), 10)}[name]
    draw = [torch.randn(shape, generator=random) for _ in range(count)]
    return [(inputs, torch.randn(shape[0], outputs, generator=random)) for inputs in draw]


def make_variants(name: str, accumulation: int) -> list[Variant]:
    return [make(make_model(name), accumulation) for make in (_torch, _runtime, _accelerate)]


def _loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def _torch(model: nn.Module, accumulation: int) -> Variant:
    wrapped = DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=1e-4)

    def block(batches: Sequence[Batch]) -> None:
        for index, batch in enumerate(batches, 1):
            last = index % accumulation == 0
            with nullcontext() if last or wrapped is model else wrapped.no_sync():
                (_loss(wrapped, batch) / accumulation).backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()

    return Variant("torch", model, block)


def _runtime(model: nn.Module, accumulation: int) -> Variant:
    return _through(runtime.Accelerator(gradient_accumulation_steps=accumulation, cpu=True), "forerun", model)


def _accelerate(model: nn.Module, accumulation: int) -> Variant:
    return _through(accelerate.Accelerator(gradient_accumulation_steps=accumulation, cpu=True), "accelerate", model)


def _through(accelerator: "runtime.Accelerator | accelerate.Accelerator", name: str, model: nn.Module) -> Variant:
    prepared, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-4))

    def block(batches: Sequence[Batch]) -> None:
        for batch in batches:
            with accelerator.accumulate(prepared):
                accelerator.backward(_loss(prepared, batch))
                optimizer.step()
                optimizer.zero_grad()

    return Variant(name, model, block)
