"""Builds everything, once a process; nothing else constructs collaborators."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from agent_server.procedure import Procedure
from agent_server.procedure.workplace import Workplace
from agent_server.reconciler import Reconciler
from agent_server.settings import Settings
from agent_server.store.base import open_store
from runtime.launchers.registry import get_launcher
from tools.domain.paths import AllowedRoots
from tools.domain.ports import Store


@dataclass(frozen=True)
class Container:
    """What the doors work with."""

    store: Store
    procedure: Procedure
    reconciler: Reconciler


def build(settings: Settings, roots: AllowedRoots, *, clock: Callable[[], float] = time.time) -> Container:
    """Wire store, reconciler and procedure; the database is opened at its first use."""
    store = open_store(settings, clock=clock)
    reconciler = Reconciler(store, clock, launchers=get_launcher)
    place = Workplace(
        store=store, settings=settings, roots=roots, clock=clock, reconciler=reconciler, launchers=get_launcher
    )
    return Container(store, Procedure(place), reconciler)
