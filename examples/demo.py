"""make demo: an agent takes a training script through the whole procedure, and a human approves, on real data.

The agent is a small program that calls the server's tools over MCP as a model would; the human's part is typed through
a pseudo-terminal with a throwaway key, in a state directory of its own. Such an approval is `simulated` and counts
nowhere else. With --ask, you are the human.
"""

import argparse
import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable
from pathlib import Path

from mcp import Client, MCPError, StdioServerParameters
from rich.console import Console

from examples.demo_agent import Agent, Result, StepFailed, Walked, walk
from examples.demo_human import FORERUN, ActedHuman, AskedHuman, human_environment
from examples.demo_tasks import HERE, digits_project
from examples.demo_view import View
from runtime.layout import RunLayout
from runtime.records import read_metrics

DEMO = HERE.parent / "demo"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ask", action="store_true", help="you approve, at this terminal")
    options = parser.parse_args()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    started = time.monotonic()
    try:
        if options.ask and not sys.stdin.isatty():
            raise StepFailed("--ask needs a terminal to ask you at. Next: make demo, which plays your part")
        directory = fresh_directory(DEMO)
        agent, walked = asyncio.run(demonstrate(directory, View(console), ask=options.ask))
    except (StepFailed, MCPError, OSError, subprocess.SubprocessError, ExceptionGroup) as error:
        console.print(f"\nThe demo failed: {error}", style="bold red", markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("\nStopped. A run that was launched goes on; `forerun runs` shows it.", style="bold yellow")
        return 130
    console.print(
        f"\n{agent.num_calls} calls and {agent.num_waits} waits, about {agent.tokens:,} tokens of tool list, "
        f"instructions and results; {time.monotonic() - started:.0f} s in all.",
        markup=False,
    )
    console.print(f"Report: {walked.results['report']['html_path']}", style="bold green", markup=False, soft_wrap=True)
    return 0


async def demonstrate(directory: Path, view: View, *, ask: bool) -> tuple[Agent, Walked]:
    """The whole demo in `directory`.

    Raises:
        StepFailed: a step came out otherwise than it should.
    """
    project, state_dir, keys_dir = directory / "project", directory / "state", directory / "state" / "keys"
    task = digits_project(project)
    make_repository(project)
    say(view, f"A user's project: {project}", "train.py, data/train.csv, data/validation.csv, data/holdout.csv")
    run_quietly([FORERUN, "init-demo", str(state_dir)])
    human = AskedHuman(state_dir, keys_dir) if ask else ActedHuman(state_dir, keys_dir)
    human.enroll()
    say(view, "A human has enrolled a throwaway key: approvals here are `simulated`, and refused everywhere else.")
    server = StdioServerParameters(
        command=FORERUN,
        args=["--state-dir", str(state_dir), "--keys-dir", str(keys_dir), "serve", "--root", str(project)],
        env=human_environment(),
        cwd="/",
    )
    async with Client(server) as client:
        agent = Agent(client, wait_s=4)
        tools = await agent.read_instructions()
        say(view, f"The agent has read the instructions and the list of {len(tools)} tools.")

        def show(step: str, result: Result) -> None:
            view.show(step, result)
            if step == "ended":
                view.losses(losses_of(state_dir / "runs" / result["run_id"]))

        outcome = await outcome_of(walk(agent, task, human, show=show))
    if isinstance(outcome, StepFailed):
        raise outcome
    return agent, outcome


async def outcome_of(walking: Awaitable[Walked]) -> Walked | StepFailed:
    """The failure as a value: raised inside the client, it would come out wrapped in groups of exceptions."""
    try:
        return await walking
    except StepFailed as error:
        return error


def losses_of(run_dir: Path) -> list[float]:
    """The loss after each step, as rank 0 recorded it."""
    records = read_metrics(RunLayout(run_dir).metrics(0))
    return [record.value for _, record in records if record.name == "loss"]


def fresh_directory(parent: Path) -> Path:
    """A new directory for this demo, named by the time."""
    parent.mkdir(exist_ok=True)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for suffix in ("", *(f"-{n}" for n in range(2, 100))):
        directory = parent / f"{stamp}{suffix}"
        try:
            directory.mkdir()
        except FileExistsError:
            continue
        return directory
    raise StepFailed(f"{parent} is full of demos of this second. Next: try again")


def make_repository(project: Path) -> None:
    """Make the project a git repository of its own, as most are; without git its directory is the code."""
    git = shutil.which("git")
    if git is not None:
        run_quietly([git, "init", "--quiet", str(project)])


def run_quietly(command: list[str]) -> None:
    finished = subprocess.run(command, capture_output=True, text=True, env=human_environment(), check=False)
    if finished.returncode != 0:
        raise StepFailed(f"{' '.join(command)} ended with {finished.returncode}: {finished.stderr or finished.stdout}")


def say(view: View, *lines: str) -> None:
    for line in filter(None, lines):
        view.console.print(line, style="dim", markup=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
