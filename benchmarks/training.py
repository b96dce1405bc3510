"""What the runtime costs: against torch alone and against accelerate, in one job each, in turn.

    python benchmarks/training.py [--rounds 30]

Time per micro-step (trivial model, MLP of 0.96 million parameters, tiny transformer; 1 and 2 processes; accumulation 1
and 4), seconds per batch of a loader (rows of tensors, dicts; 1 and 2 processes), and import time. All variants of a
job train from the same seed on the same batches, and the job fails unless their parameters are equal. Exits with 1 if a
goal is missed.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from math import comb
from pathlib import Path

from machine import describe_machine

HERE = Path(__file__).resolve().parent
MICRO_STEPS = {"trivial": 400, "mlp": 24, "transformer": 16}
TURNS = 4
"""Of each variant in a round of several processes, whose times vary more than what is to be seen."""
Seconds = dict[str, list[float]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="interleaved pairs of each measurement")
    options = parser.parse_args()
    print(describe_machine("torch", "accelerate"))
    missed: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "seconds.json"
        for model, processes in (("trivial", 1), ("mlp", 1), ("mlp", 2), ("transformer", 1), ("transformer", 2)):
            for accumulation in (1, 4):
                seconds = steps(model, processes, accumulation, rounds=options.rounds, output=output)
                missed += report_steps(model, processes, accumulation, seconds)
        for samples in ("tensors", "records"):
            for processes in (1, 2):
                arguments = ("loader", samples, str(max(5, options.rounds // 3)))
                seconds = worker(processes, *arguments, output=output)
                missed += report_loader(f"loader of {samples}, {processes} process(es)", seconds)
    missed += report_imports(imports(options.rounds // 2))
    print("goals missed: " + "; ".join(missed) if missed else "all goals reached")
    return 1 if missed else 0


def steps(model: str, processes: int, accumulation: int, *, rounds: int, output: Path) -> Seconds:
    turns = TURNS if processes > 1 else 1
    numbers = (accumulation, rounds, turns, MICRO_STEPS[model])
    return worker(processes, "steps", model, *map(str, numbers), output=output)


def worker(processes: int, *arguments: str, output: Path) -> Seconds:
    """Run a measurement; seconds by variant."""
    engine = [] if processes == 1 else ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [sys.executable, *engine, str(HERE / "training_worker.py"), *arguments, str(output)]
    subprocess.run(command, check=True, timeout=600)
    seconds: Seconds = json.loads(output.read_text())
    return seconds


def report_steps(model: str, processes: int, accumulation: int, seconds: Seconds) -> list[str]:
    """Print one measurement; returns the goals it misses."""
    bare = statistics.median(seconds["torch"])
    shown = f"{model}, {processes} process(es), accumulation {accumulation}"
    print(f"\n{shown}: torch {bare * 1e6:.0f} us a micro-step")
    extra, upper = {}, {}
    for name in ("forerun", "accelerate"):
        differences = [mine - theirs for mine, theirs in zip(seconds[name], seconds["torch"], strict=True)]
        ratios = [mine / theirs for mine, theirs in zip(seconds[name], seconds["torch"], strict=True)]
        extra[name] = statistics.median(differences) * 1e6
        low, high = median_interval(ratios)
        upper[name] = high
        print(
            f"  {name:10} {extra[name]:+8.1f} us   ratio {statistics.median(ratios):.3f} [{low:.3f}, {high:.3f}]",
        )
    missed = []
    if model == "trivial" and extra["forerun"] > extra["accelerate"] / 2:
        missed.append(f"{shown}: {extra['forerun']:.1f} us, over half of accelerate's {extra['accelerate']:.1f}")
    if model == "mlp" and processes > 1 and upper["forerun"] > 1.05:
        missed.append(f"{shown}: upper end {upper['forerun']:.3f} over 1.05")
    return missed


def report_loader(shown: str, seconds: Seconds) -> list[str]:
    """Print one measurement; returns the goal if it misses it."""
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    print(f"\n{shown}: " + ", ".join(f"{name} {value * 1e6:.1f} us a batch" for name, value in medians.items()))
    ratios = [mine / theirs for mine, theirs in zip(seconds["forerun"], seconds["accelerate"], strict=True)]
    print(f"  forerun / accelerate {statistics.median(ratios):.3f}")
    return [] if statistics.median(ratios) <= 1.0 else [f"{shown}: {statistics.median(ratios):.3f} of accelerate's"]


def imports(rounds: int) -> Seconds:
    """Seconds of processes that import each library, in turn; a round that is not counted leaves bytecode of all."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    lines = {
        "torch": "import torch",
        "forerun": "from runtime import Accelerator",
        "accelerate": "from accelerate import Accelerator",
    }
    seconds: Seconds = {name: [] for name in lines}
    for turn in range(rounds + 1):
        for name, line in lines.items():
            started = time.perf_counter()
            subprocess.run([sys.executable, "-c", line], check=True, timeout=120, env=environment)
            if turn:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def report_imports(seconds: Seconds) -> list[str]:
    print(f"\nimport: torch {statistics.median(seconds['torch']):.3f} s")
    ratio = {}
    for name in ("forerun", "accelerate"):
        ratios = [mine / theirs for mine, theirs in zip(seconds[name], seconds["torch"], strict=True)]
        ratio[name] = statistics.median(ratios)
        print(f"  {name:10} ratio {ratio[name]:.3f}")
    return [] if ratio["forerun"] <= 1.05 else [f"import: {ratio['forerun']:.3f} of torch's"]


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Order statistics that hold the median at least with this confidence, whatever the distribution."""
    ordered, count = sorted(values), len(values)
    outside, cut = 0.0, 0
    while cut < count // 2 and 2 * (outside + comb(count, cut) / 2**count) <= 1 - confidence:
        outside += comb(count, cut) / 2**count
        cut += 1
    cut = max(cut - 1, 0)
    return ordered[cut], ordered[count - 1 - cut]


if __name__ == "__main__":
    sys.exit(main())
