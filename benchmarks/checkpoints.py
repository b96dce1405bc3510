"""Saving and loading the training state, against torch.save/torch.load and accelerate's save_state/load_state.

    python benchmarks/checkpoints.py [--parameters 100] [--rounds 7] [--directory DIR]

One process, a model of that many million parameters with Adam (12 bytes each). The contestants take turns within a
round, and each is compared with torch's of the same round; the median of these ratios counts, so that a machine that is
busy for a while slows both. Every save ends with fsync (ours does that itself), every load begins with the file in the
page cache and ends in the model and the optimizer. Exits with 1 if a goal is missed.
"""

import argparse
import gc
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import accelerate
import torch
from torch import nn

from runtime import Accelerator

GOALS = {"save": 1.0, "save, blocked by async": 0.25, "load": 1.1}
MEMORY_GOAL = 0.05
LAYERS = 12


class Contest:
    """One model, prepared by both libraries, and where each of them saves it."""

    def __init__(self, directory: Path, *, num_parameters: int) -> None:
        width = int((num_parameters / LAYERS) ** 0.5)
        self.directory = directory
        self.model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(LAYERS)))
        self.optimizer = torch.optim.Adam(self.model.parameters(), foreach=False)
        for parameter in self.model.parameters():
            parameter.grad = torch.randn_like(parameter)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.size_bytes = 12 * sum(parameter.numel() for parameter in self.model.parameters())
        self.ours = Accelerator(cpu=True)
        self.ours.prepare(self.model, self.optimizer)
        self.peer = accelerate.Accelerator(cpu=True)
        self.peer.prepare(self.model, self.optimizer)

    def save_torch(self) -> None:
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state, self.directory / "torch.pt")
        secure(self.directory / "torch.pt")

    def load_torch(self) -> None:
        state = torch.load(self.directory / "torch.pt", weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def save_ours(self) -> None:
        self.ours.save_state(self.directory / "ours")

    def save_ours_async(self) -> None:
        self.ours.save_state(self.directory / "ours", async_save=True)

    def load_ours(self) -> None:
        self.ours.load_state(self.directory / "ours")

    def save_peer(self) -> None:
        self.peer.save_state(str(self.directory / "peer"))
        for path in (self.directory / "peer").iterdir():
            secure(path)

    def load_peer(self) -> None:
        self.peer.load_state(str(self.directory / "peer"))

    def settle(self) -> None:
        """Nothing goes on in the background, nothing waits to be written or freed, and no file is overwritten."""
        self.ours._saver.close()
        gc.collect()
        os.sync()

    def remove(self, name: str) -> None:
        path = self.directory / name
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=float, default=100.0, help="in millions")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--directory", type=Path, default=None, help="where to save; on the disk that is to be measured"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as scratch:
        contest = Contest(Path(scratch), num_parameters=int(options.parameters * 1e6))
        print(machine(contest))
        taken = measure(contest, rounds=options.rounds)
        peak = peak_of_a_save(contest) / contest.size_bytes
    reached = [report(name, taken) for name in ("save", "save, blocked by async", "load")]
    print(f"peak memory of a save: {peak:.1%} of the state (goal: at most {MEMORY_GOAL:.0%})")
    reached.append(peak <= MEMORY_GOAL)
    print("goals reached" if all(reached) else "a goal was MISSED")
    return 0 if all(reached) else 1


def measure(contest: Contest, *, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Seconds by task and contestant; one round is not counted."""
    tasks: dict[str, dict[str, tuple[str, Callable[[], None]]]] = {
        "save": {
            "torch": ("torch.pt", contest.save_torch),
            "forerun": ("ours", contest.save_ours),
            "accelerate": ("peer", contest.save_peer),
        },
        "save, blocked by async": {
            "torch": ("torch.pt", contest.save_torch),
            "forerun": ("ours", contest.save_ours_async),
        },
        "load": {
            "torch": ("", contest.load_torch),
            "forerun": ("", contest.load_ours),
            "accelerate": ("", contest.load_peer),
        },
    }
    taken: dict[str, dict[str, list[float]]] = {task: {name: [] for name in group} for task, group in tasks.items()}
    for number in range(rounds + 1):
        for task, group in tasks.items():
            names = list(group)
            turn = number % len(names)  # each is first as often as last
            for name in names[turn:] + names[:turn]:
                file, work = group[name]
                if file:
                    contest.remove(file)
                seconds = timed(contest, work)
                if number:
                    taken[task][name].append(seconds)
    return taken


def timed(contest: Contest, work: Callable[[], None]) -> float:
    contest.ours._saver.finish()
    contest.ours._saver._checkpointer._digester.halt()
    gc.collect()
    os.sync()
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def peak_of_a_save(contest: Contest) -> int:
    """Bytes by which the process grows at most during a save that blocks."""
    contest.settle()
    contest.remove("ours")
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    before = memory("VmRSS")
    contest.save_ours()
    return memory("VmHWM") - before


def report(task: str, taken: dict[str, dict[str, list[float]]]) -> bool:
    base = taken[task]["torch"]
    for name, seconds in taken[task].items():
        ratios = [own / other for own, other in zip(seconds, base, strict=True)]
        ratio = statistics.median(ratios)
        print(
            f"{task:24} {name:10} median {statistics.median(seconds):.3f} s   ratio {ratio:.2f} "
            f"(n={len(ratios)}, {min(ratios):.2f} to {max(ratios):.2f})"
        )
        if name == "forerun":
            reached = ratio <= GOALS[task]
    print(f"{task:24} goal: at most {GOALS[task]:.2f}: {'reached' if reached else 'MISSED'}")
    return reached


def secure(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def memory(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def machine(contest: Contest) -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "accelerate"))
    return (
        f"Python {platform.python_version()}, {packages}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, "
        f"{contest.size_bytes / 1e6:.0f} MB of state"
    )


if __name__ == "__main__":
    sys.exit(main())
