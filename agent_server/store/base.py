"""Opening the store. SQLAlchemy is a heavy import, so it waits until someone asks the store for something."""

import threading
from collections.abc import Callable
from typing import Any, cast

from agent_server.settings import Settings
from tools.domain.ports import Store


def open_store(settings: Settings, *, clock: Callable[[], float]) -> Store:
    """The store of these settings. It touches neither disk nor SQLAlchemy before its first use.

    A store that cannot be opened then raises StoreUnavailable or ConfigurationError on that use, and is tried again
    on the next.
    """
    return cast(Store, _LazyStore(settings, clock))  # every attribute comes from SqlStore, which is a Store


class _LazyStore:
    """Stands in for a SqlStore until someone needs one."""

    def __init__(self, settings: Settings, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._store: Any = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        with self._lock:
            if self._store is None:
                from .sql import SqlStore  # heavy: SQLAlchemy, cryptography

                self._store = SqlStore(self._settings.url, clock=self._clock)
        return getattr(self._store, name)

    def close(self) -> None:
        """Close the store if it was ever opened."""
        with self._lock:
            if self._store is not None:
                self._store.close()
                self._store = None
