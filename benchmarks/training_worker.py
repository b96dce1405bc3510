"""One process of a measurement that training.py starts; rank 0 writes seconds by variant as JSON to a file.

training_worker.py steps MODEL ACCUMULATION ROUNDS MICRO_STEPS OUTPUT
training_worker.py loader SAMPLES ROUNDS OUTPUT
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import accelerate
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, TensorDataset
from training_variants import make_batches, make_variants

import runtime


def main() -> None:
    torch.set_num_threads(1)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("gloo")
    if sys.argv[1] == "steps":
        model, output = sys.argv[2], sys.argv[-1]
        accumulation, rounds, turns, micro_steps = map(int, sys.argv[3:-1])
        result = measure_steps(model, accumulation, rounds=rounds, turns=turns, micro_steps=micro_steps)
    else:
        samples, rounds, output = sys.argv[2:]
        result = measure_loaders(samples, rounds=int(rounds))
    if not dist.is_initialized() or dist.get_rank() == 0:
        Path(output).write_text(json.dumps(result))
    if dist.is_initialized():
        dist.barrier()


def measure_steps(name: str, accumulation: int, *, rounds: int, turns: int, micro_steps: int) -> dict[str, list[float]]:
    """Seconds per micro-step of each variant, a round each in turn; their parameters must be equal at the end."""
    variants = make_variants(name, accumulation)
    batches = make_batches(name, micro_steps, dist.get_rank() if dist.is_initialized() else 0)
    seconds = _in_turn({variant.name: lambda v=variant: v.block(batches) for variant in variants}, rounds, turns)
    expected = list(variants[0].model.parameters())
    for variant in variants[1:]:
        for mine, other in zip(expected, variant.model.parameters(), strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6, msg=f"{variant.name} trains differently")
    return {name: [value / micro_steps for value in values] for name, values in seconds.items()}


class Records(Dataset[Any]):
    """Samples that are dicts, each made when it is asked for."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"row": self.rows[index], "id": index}


def measure_loaders(samples: str, *, rounds: int) -> dict[str, list[float]]:
    """Seconds per batch of a shuffled in-memory loader: torch's own and as prepared by each library.

    Args:
        samples: `tensors` (rows of a TensorDataset) or `records` (dicts that a data set of one's own makes).
    """
    rows, ids = torch.randn(20_000, 8), torch.arange(20_000)
    data = TensorDataset(rows, ids) if samples == "tensors" else Records(rows)

    def loader() -> DataLoader[Any]:
        return DataLoader(data, batch_size=32, shuffle=True)

    loaders: dict[str, Any] = {
        "torch": loader(),
        "forerun": runtime.Accelerator(cpu=True).prepare(loader()),
        "accelerate": accelerate.Accelerator(cpu=True).prepare(loader()),
    }
    for name, prepared in loaders.items():
        seen = torch.cat([batch["id"] if samples == "records" else batch[1] for batch in prepared])
        shares: list[Any] = [seen]
        if dist.is_initialized():
            shares = [None] * dist.get_world_size()
            dist.all_gather_object(shares, seen)
        assert torch.equal(torch.cat(shares).unique(), ids), f"{name} loses samples"

    def run_through(prepared: Any) -> None:
        for _ in prepared:
            pass

    seconds = _in_turn({name: lambda p=prepared: run_through(p) for name, prepared in loaders.items()}, rounds)
    return {name: [value / len(loaders[name]) for value in values] for name, values in seconds.items()}


def _in_turn(blocks: dict[str, Callable[[], None]], rounds: int, turns: int = 1) -> dict[str, list[float]]:
    """Seconds of each block, the mean of `turns`, `rounds` times in a changing order; a first round is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in blocks}
    names: Sequence[str] = list(blocks)
    for turn in range((rounds + 1) * turns):
        for name in [*names[turn % len(names) :], *names[: turn % len(names)]]:
            if dist.is_initialized():
                dist.barrier()
            started = time.perf_counter()
            blocks[name]()
            seconds[name].append(time.perf_counter() - started)
    firsts = range(turns, (rounds + 1) * turns, turns)
    return {name: [sum(values[first : first + turns]) / turns for first in firsts] for name, values in seconds.items()}


if __name__ == "__main__":
    main()
