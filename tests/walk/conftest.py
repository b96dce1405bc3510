"""A workplace for the walks: a simulated state directory with an enrolled key, and a server for a client to start."""

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest
from mcp import Client, StdioServerParameters

from examples.demo_agent import Agent, Result, Task, Walked, walk
from examples.demo_human import FORERUN, ActedHuman, human_environment

DEADLINE_S = 170


@dataclass
class Workplace:
    """Where one walk happens."""

    root: Path
    human: ActedHuman

    @property
    def server(self) -> StdioServerParameters:
        options = ["--state-dir", str(self.human.state_dir), "--keys-dir", str(self.human.keys_dir)]
        return StdioServerParameters(
            command=FORERUN, args=[*options, "serve", "--root", str(self.root)], env=human_environment(), cwd="/"
        )

    def run_dir(self, run_id: str) -> Path:
        return self.human.state_dir / "runs" / run_id

    def forerun(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """A command without a terminal, as an agent's shell would run it."""
        options = ["--state-dir", str(self.human.state_dir), "--keys-dir", str(self.human.keys_dir)]
        return subprocess.run(
            [FORERUN, *options, *arguments],
            env=human_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )


@dataclass
class Done:
    """A finished walk with all that was counted and shown."""

    place: Workplace
    agent: Agent
    walked: Walked
    project: Path
    steps: list[str]
    tools: list[str]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    root = tmp_path_factory.mktemp("walk")
    state_dir = root / "state"
    human = ActedHuman(state_dir, state_dir / "keys")
    place = Workplace(root / "projects", human)
    place.root.mkdir()
    made = subprocess.run(
        [FORERUN, "init-demo", str(state_dir)], capture_output=True, text=True, timeout=50, check=False
    )
    assert made.returncode == 0, made.stderr
    human.enroll()
    return place


@pytest.fixture(scope="module")
def walk_through() -> Callable[[Workplace, Callable[[Path], Task], str], Done]:
    """Takes a task from the first call to the report, within the deadline."""
    return _walk_through


def _walk_through(place: Workplace, make_task: Callable[[Path], Task], mode: str) -> Done:
    steps: list[str] = []
    project = place.root / make_task.__name__

    async def go() -> Done:
        with anyio.fail_after(DEADLINE_S):
            task = make_task(project)
            async with Client(place.server, mode=mode) as client:
                agent = Agent(client)
                tools = await agent.read_instructions()

                def show(step: str, result: Result) -> None:
                    steps.append(step)

                walked = await walk(agent, task, place.human, show=show)
        return Done(place, agent, walked, project, steps, tools)

    return anyio.run(go)
