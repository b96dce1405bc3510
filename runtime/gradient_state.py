"""Where the loop stands, for code that has no Accelerator at hand: accumulation window and current loader."""

from typing import Any, ClassVar

from .data.activity import Activity
from .optim.window import AccumulationWindows
from .options import GradientAccumulationPlugin


class GradientState:
    """The window and the loaders of one Accelerator, of the newest where none is given."""

    _newest: ClassVar["GradientState | None"] = None

    def __init__(self, gradient_accumulation_plugin: GradientAccumulationPlugin | None = None) -> None:
        newest = GradientState._newest
        self._windows: AccumulationWindows | None = None if newest is None else newest._windows
        self.activity: Activity = Activity() if newest is None else newest.activity
        known: GradientAccumulationPlugin = GradientAccumulationPlugin() if newest is None else newest._plugin
        self._plugin: GradientAccumulationPlugin = gradient_accumulation_plugin or known
        if newest is None:
            GradientState._newest = self

    @classmethod
    def of(
        cls, windows: AccumulationWindows, activity: Activity, plugin: GradientAccumulationPlugin
    ) -> "GradientState":
        """The state of a new Accelerator, which is the newest from now on."""
        if GradientState._newest is not None and GradientState._newest.activity is not activity:
            activity.follow(GradientState._newest.activity)
        state = cls.__new__(cls)
        state._windows, state.activity, state._plugin = windows, activity, plugin
        GradientState._newest = state
        return state

    @property
    def sync_gradients(self) -> bool:
        """Whether the current micro-batch is its window's last."""
        return self._windows is None or self._windows.sync_gradients

    @property
    def num_steps(self) -> int:
        """Micro-batches of a full window."""
        return self._plugin.num_steps if self._windows is None else self._windows.num_steps

    @property
    def adjust_scheduler(self) -> bool:
        return self._plugin.adjust_scheduler

    @property
    def sync_with_dataloader(self) -> bool:
        return self._plugin.sync_with_dataloader

    @property
    def plugin_kwargs(self) -> dict[str, Any]:
        return {"num_steps": self.num_steps, **_changed(self._plugin)}

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the current batch is its loader's last."""
        return self.activity.at_end

    @property
    def remainder(self) -> int:
        """Repeated samples in the current batch of this rank; -1 outside of a loader, or where it is not known."""
        iteration = self.activity.current
        if iteration is None or iteration.length is None:
            return -1
        return 0 if iteration.num_valid is None else iteration.length - iteration.num_valid

    @property
    def active_dataloader(self) -> Any:
        """The loader that yielded last and has not ended; None outside of loaders."""
        iteration = self.activity.current
        return None if iteration is None else iteration.loader

    @property
    def dataloader_references(self) -> list[Any]:
        """All loaders that are being iterated, the active one last; None stands before them."""
        return [None, *self.activity.loaders]

    @property
    def in_dataloader(self) -> bool:
        return self.activity.current is not None

    @property
    def initialized(self) -> bool:
        return GradientState._newest is not None

    @staticmethod
    def _reset_state() -> None:
        """Forget which Accelerator is the newest; each keeps its own."""
        GradientState._newest = None

    def __repr__(self) -> str:
        return f"GradientState(sync_gradients={self.sync_gradients}, end_of_dataloader={self.end_of_dataloader})"


def _changed(plugin: GradientAccumulationPlugin) -> dict[str, Any]:
    fields = {"adjust_scheduler": True, "sync_with_dataloader": True, "sync_each_batch": False}
    return {name: getattr(plugin, name) for name, usual in fields.items() if getattr(plugin, name) != usual}
