"""Upkeep: what happens without anybody asking, now and then while a server lives."""

import logging
import threading
import time
from collections.abc import Callable

from agent_server.reconciler import Reconciler
from agent_server.settings import Settings
from runtime.errors import ForerunError
from runtime.layout import RunLayout
from tools.domain.errors import NotFound
from tools.domain.ports import Store
from tools.launch_training import discard_run
from tools.leftovers import abandoned_copies, abandoned_runs

_log = logging.getLogger("forerun")

INTERVAL_S = 30.0


class Upkeep:
    """Ended runs settle their budgets, expired requests close, and what a killed server left half made is removed."""

    def __init__(
        self, store: Store, reconciler: Reconciler, settings: Settings, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._reconciler = reconciler
        self._settings = settings
        self._clock = clock

    def keep(self, over: threading.Event, *, interval_s: float = INTERVAL_S) -> None:
        """One pass now, then one every `interval_s`, until `over` is set."""
        while True:
            self.once()
            if over.wait(interval_s):
                return

    def once(self) -> None:
        """One pass; whatever fails is logged and tried again in the next."""
        for work in (self._reconciler.reconcile_all, self._clear_leftovers):
            try:
                work()
            except (ForerunError, OSError) as error:
                _log.warning("upkeep failed: %s", error)

    def _clear_leftovers(self) -> None:
        now_s, settings = self._clock(), self._settings
        for path in abandoned_runs(settings.runs_dir, known=self._is_known, now_s=now_s):
            _log.warning("removing %s: a launch was cut short before its run was stored", path)
            discard_run(RunLayout(path))
        for path in abandoned_copies(settings.snapshots_dir, now_s=now_s):
            discard_run(RunLayout(path))

    def _is_known(self, run_id: str) -> bool:
        try:
            self._store.run(run_id)
        except NotFound:
            return False
        return True
