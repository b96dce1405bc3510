"""Run on every rank by `forerun test`, as a training script is: RESULTS CHECK...; one JSON line for each check.

The script knows nothing of the launch: strategy, device and precision are what the launch has said.
"""

import json
import sys
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from runtime import Accelerator, broadcast, gather_object, set_seed

_STEPS = 12
_MORE_STEPS = 3
_BATCH = 8


class Wrong(Exception):
    """The set-up gives another result than it must."""


def main(results: Path, names: list[str]) -> None:
    """Do the checks in order; the first that fails ends the job with its own words."""
    torch.set_num_threads(1)
    set_seed(7)
    _tell(results, 0, check="start", state="begun")
    began = time.monotonic()
    accelerator = Accelerator()
    rank, kind = accelerator.process_index, str(accelerator.distributed_type)
    where = f"{accelerator.num_processes} x {accelerator.device.type}, {kind}, precision {accelerator.mixed_precision}"
    _tell(results, rank, check="start", state="ok", detail=where, seconds=time.monotonic() - began)
    bench = Bench(accelerator, results.parent)
    for name in names:
        _tell(results, rank, check=name, state="begun")
        began = time.monotonic()
        detail = CHECKS[name](bench)
        _tell(results, rank, check=name, state="ok", detail=detail, seconds=time.monotonic() - began)
    accelerator.end_training()


class Bench:
    """What the checks share: the accelerator, a folder that all ranks see, and one model in training."""

    def __init__(self, accelerator: Any, folder: Path) -> None:
        self.accelerator = accelerator
        self.folder = folder

    @cached_property
    def training(self) -> "Training":
        return Training(self.accelerator)


def check_collectives(bench: Bench) -> str:
    """Values that went through all ranks are what arithmetic says."""
    accelerator = bench.accelerator
    count, rank = accelerator.num_processes, accelerator.process_index
    mine = torch.full((2,), rank + 1.0, device=accelerator.device)
    _require("reduce", accelerator.reduce(mine, "sum").tolist(), [count * (count + 1) / 2.0] * 2)
    _require("gather", accelerator.gather(mine).tolist(), [r + 1.0 for r in range(count) for _ in range(2)])
    _require("broadcast", broadcast(mine, from_process=count - 1).tolist(), [float(count)] * 2)
    _require("gather_object", gather_object([f"rank {rank}"]), [f"rank {r}" for r in range(count)])
    accelerator.wait_for_everyone()
    return f"reduce, gather, broadcast, objects, barrier over {count} ranks"


def check_training(bench: Bench) -> str:
    """The loss falls, and every rank ends with the same model."""
    training = bench.training
    first = training.loss()
    for _ in range(_STEPS):
        training.step()
    last = training.loss()
    if not last < 0.9 * first:
        raise Wrong(f"the loss did not fall in {_STEPS} steps: {first:.4f}, then {last:.4f}")
    seen = gather_object([last])
    if max(seen) - min(seen) > 1e-3 * max(1.0, abs(last)):
        raise Wrong(f"the ranks have different models: losses {seen}")
    return f"loss {first:.3f} -> {last:.3f} in {_STEPS} steps"


def check_checkpoint(bench: Bench) -> str:
    """What was saved comes back after the model has changed."""
    training, accelerator, path = bench.training, bench.accelerator, bench.folder / "checkpoint"
    training.step()
    saved = training.loss()
    accelerator.save_state(str(path))
    for _ in range(_MORE_STEPS):
        training.step()
    changed = training.loss()
    accelerator.load_state(str(path))
    loaded = training.loss()
    if changed == saved or loaded != saved:
        raise Wrong(f"loss when saved {saved!r}, after more steps {changed!r}, when loaded {loaded!r}")
    size_bytes = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return f"saved, changed, loaded again: equal ({size_bytes / 1024:.0f} KiB)"


class Training:
    """A small regression, prepared like any other."""

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator
        features = torch.linspace(-1, 1, 256).unsqueeze(1)
        data = TensorDataset(features, 3 * features + 1)
        model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        loader = DataLoader(data, batch_size=_BATCH, shuffle=True)
        self._model, self._optimizer, self._loader = accelerator.prepare(model, optimizer, loader)
        self._batches = iter(self._loader)
        self._held_out = tuple(tensor[::8].to(accelerator.device) for tensor in data.tensors)

    def step(self) -> None:
        features, labels = self._next()
        self._optimizer.zero_grad()
        self._accelerator.backward((self._model(features) - labels).square().mean())
        self._optimizer.step()

    def loss(self) -> float:
        """Over rows that are the same on every rank."""
        features, labels = self._held_out
        self._model.eval()
        with torch.no_grad():
            value = (self._model(features).float() - labels).square().mean()
        self._model.train()
        return float(value)

    def _next(self) -> Any:
        try:
            return next(self._batches)
        except StopIteration:
            self._batches = iter(self._loader)
            return next(self._batches)


def _require(what: str, seen: object, expected: object) -> None:
    if seen != expected:
        raise Wrong(f"{what} gives {seen!r}, not {expected!r}")


def _tell(results: Path, rank: int, **row: object) -> None:
    if rank == 0:
        with results.open("a") as handle:
            handle.write(json.dumps(row) + "\n")


CHECKS: dict[str, Callable[[Bench], str]] = {
    "collectives": check_collectives,
    "training": check_training,
    "checkpoint": check_checkpoint,
}


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
