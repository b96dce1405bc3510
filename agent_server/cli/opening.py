"""What commands open: the store; and who they are."""

import os
import pwd
import time
from collections.abc import Iterator
from contextlib import contextmanager

from agent_server.settings import Settings
from agent_server.store.sql import SqlStore


@contextmanager
def opened_store(settings: Settings) -> Iterator[SqlStore]:
    """The store, closed afterwards."""
    store = SqlStore(settings.url, clock=time.time)
    try:
        yield store
    finally:
        store.close()


def user_name() -> str:
    """The account that runs this command, for the audit log."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"
