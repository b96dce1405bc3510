"""Wall time of `forerun launch` of a trivial script beside torchrun's, and of `forerun --help` beside its imports.

Each round starts every command once, in turn, so that a busy machine is busy for all of them; medians are compared.
One round before the first is not counted: it writes bytecode.

    python benchmarks/launch.py [--rounds N] [--with-accelerate]
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from machine import describe_machine

BIN = Path(sys.executable).parent
LAUNCH_GOAL = 1.10
HELP_GOAL = 2.5
HELP_BASE = "import typer, rich, pydantic"


@dataclass
class Command:
    """A command and the seconds that its starts took, from exec to its end."""

    name: str
    argv: list[str]
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


@dataclass
class Comparison:
    """Ours against a base; `goal` is the greatest allowed ratio of the medians, None if there is none."""

    name: str
    base: Command
    ours: Command
    goal: float | None

    @property
    def ratio(self) -> float:
        return self.ours.median / self.base.median

    @property
    def reached(self) -> bool:
        return self.goal is None or self.ratio <= self.goal


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--with-accelerate", action="store_true", help="its launcher too, on one process")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        compared = comparisons(Path(scratch), with_accelerate=options.with_accelerate)
        commands = list({id(c): c for pair in compared for c in (pair.base, pair.ours)}.values())
        measure(commands, rounds=options.rounds, directory=Path(scratch))
    print(describe_machine("torch", "pydantic", "typer"))
    for pair in compared:
        seconds = "   ".join(f"{command.name} {spread(command.seconds)}" for command in (pair.base, pair.ours))
        goal = "" if pair.goal is None else f", at most {pair.goal:.2f}"
        print(f"{pair.name:12} {seconds}   ratio {pair.ratio:.2f}{goal}")
    reached = all(pair.reached for pair in compared)
    print(f"goals: {'reached' if reached else 'MISSED'}")
    return 0 if reached else 1


def comparisons(scratch: Path, *, with_accelerate: bool) -> list[Comparison]:
    (scratch / "train.py").write_text("print('trained')\n")
    forerun = str(BIN / "forerun")
    compared = []
    for count in (1, 2):
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
        base = Command("torchrun", [*torchrun, "train.py"])
        ours = Command("forerun", [forerun, "launch", "--cpu", "--num-processes", str(count), "train.py"])
        compared.append(Comparison(f"{count} process{'es' * (count > 1)}", base, ours, LAUNCH_GOAL))
    if with_accelerate:
        peer = Command("accelerate", [str(BIN / "accelerate"), "launch", "--cpu", "--num_processes", "1", "train.py"])
        compared.append(Comparison("its launcher", compared[0].base, peer, None))
    imports = Command("imports", [sys.executable, "-c", HELP_BASE])
    compared.append(Comparison("--help", imports, Command("forerun", [forerun, "--help"]), HELP_GOAL))
    return compared


def measure(commands: Sequence[Command], *, rounds: int, directory: Path) -> None:
    """One round that is not counted, then `rounds` in turn."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FORERUN_")}
    environment = kept | {"HOME": str(directory), "TMPDIR": str(directory), "OMP_NUM_THREADS": "1"}
    for number in range(rounds + 1):
        for command in commands:
            began = time.perf_counter()
            done = subprocess.run(
                command.argv,
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=120,
            )
            taken = time.perf_counter() - began
            if done.returncode != 0:
                raise SystemExit(f"{command.argv} ended with {done.returncode}:\n{done.stderr[-2000:]}")
            if number:
                command.seconds.append(taken)


def spread(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.3f} s (n={len(seconds)}, {min(seconds):.3f} to {max(seconds):.3f})"


if __name__ == "__main__":
    sys.exit(main())
