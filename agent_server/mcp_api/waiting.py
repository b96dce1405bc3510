"""Waiting for a run or a decision without holding up anything: the files are looked at, again and again."""

from typing import TYPE_CHECKING

import anyio

from .operations import in_thread

if TYPE_CHECKING:
    from agent_server.procedure import Procedure, Status

_POLL_S = 0.2
_GRACE_S = 3.0


async def settle(procedure: "Procedure", id_: str, wait_s: float) -> "Status | None":
    """The status of `id_`, as soon as waiting longer changes nothing or `wait_s` seconds are over.

    None: a look takes too long (a smoke run's checkpoint is being loaded); it goes on, and the next call sees more.
    """
    deadline = anyio.current_time() + wait_s
    with anyio.move_on_after(wait_s + _GRACE_S):
        while not (await in_thread(lambda: procedure.look(id_))).settled:
            left = deadline - anyio.current_time()
            if left <= 0:
                break
            await anyio.sleep(min(_POLL_S, left))
        return await in_thread(lambda: procedure.status(id_))
    return None
