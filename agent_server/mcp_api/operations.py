"""Work that blocks, done in threads of its own: awaited for a bounded time, never holding up the server or its end."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

import anyio

T = TypeVar("T")
_POLL_S = 0.02


def start_thread(work: Callable[[], T], *, name: str) -> "Future[T]":
    """Run `work` in a daemon thread: a server that ends does not wait for it."""
    future: Future[T] = Future()

    def body() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # whatever it was, it belongs to whoever awaits the future
            future.set_exception(error)

    future.set_running_or_notify_cancel()
    threading.Thread(target=body, name=name, daemon=True).start()
    return future


async def in_thread(work: Callable[[], T]) -> T:
    """Await `work` in a thread. A cancelled caller leaves at once; the work goes on to its end."""
    return await asyncio.wrap_future(start_thread(work, name="forerun-step"))


class Pending(Generic[T]):
    """Work that may outlast one call, found again by its id."""

    def __init__(self) -> None:
        self._open: dict[str, Future[Any]] = {}

    async def run(self, key: str, work: Callable[[], T], *, wait_s: float) -> T | None:
        """The result of the work under `key`, started if it is not going on; None if it takes longer than `wait_s`."""
        future = self._open.get(key)
        if future is None:
            future = self._open[key] = start_thread(work, name=f"forerun-{key}")
        return await self.wait(key, wait_s=wait_s)

    async def wait(self, key: str, *, wait_s: float) -> T | None:
        """The result, or None: still going on, or nothing under this key. A result is handed out once."""
        future = self._open.get(key)
        if future is None:
            return None
        with anyio.move_on_after(wait_s):
            while not future.done():
                await anyio.sleep(_POLL_S)
        if not future.done():
            return None
        self._open.pop(key, None)
        result: T = future.result()
        return result

    def __contains__(self, key: str) -> bool:
        return key in self._open
