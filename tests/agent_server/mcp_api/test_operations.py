"""Blocking work: awaited for a bounded time, found again, never holding up the loop or the end of the process."""

import threading
from typing import Any

import anyio
import pytest

from agent_server.mcp_api.operations import Pending, in_thread


def test_the_loop_goes_on_while_work_blocks() -> None:
    release = threading.Event()

    async def main() -> list[str]:
        seen = []

        async def blocked() -> None:
            seen.append(await in_thread(lambda: "done" if release.wait(20) else "late"))

        async with anyio.create_task_group() as group:
            group.start_soon(blocked)
            await anyio.sleep(0)
            seen.append("loop")
            release.set()
        return seen

    assert anyio.run(main) == ["loop", "done"]


def test_a_cancelled_caller_leaves_at_once_and_the_work_goes_on() -> None:
    release, finished = threading.Event(), threading.Event()

    def work() -> None:
        release.wait(20)
        finished.set()

    async def main() -> bool:
        with anyio.move_on_after(0.05) as scope:
            await in_thread(work)
        assert not finished.is_set()
        release.set()
        return scope.cancelled_caught

    assert anyio.run(main)
    assert finished.wait(20)


def test_errors_of_the_work_reach_the_caller() -> None:
    def fail() -> None:
        raise ValueError("as it was")

    with pytest.raises(ValueError, match="as it was"):
        anyio.run(in_thread, fail)


def test_work_that_takes_longer_is_pending_and_its_result_is_handed_out_later() -> None:
    release = threading.Event()
    started = []

    def work() -> str:
        started.append(1)
        return "value" if release.wait(20) else "late"

    async def main() -> Any:
        pending: Pending[str] = Pending()
        assert await pending.run("key", work, wait_s=0.05) is None
        assert "key" in pending
        assert await pending.run("key", work, wait_s=0.05) is None  # a repeated call waits for the same work
        release.set()
        found = await pending.wait("key", wait_s=20)
        assert "key" not in pending
        assert await pending.wait("key", wait_s=0) is None
        return found

    assert anyio.run(main) == "value"
    assert started == [1]
