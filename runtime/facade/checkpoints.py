"""Saving and loading the whole training state, or a model's weights."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from ..errors import UsageError
from ..object_file import save_object
from ..options import DEFAULT_SHARD_SIZE
from .base import Duty

if TYPE_CHECKING:
    from ..saving import LoadHook, SaveHook


class CheckpointDuty(Duty):
    """Delegates to the StateSaver."""

    @property
    def project_dir(self) -> Path | None:
        return self._saver.root

    @property
    def resume_from(self) -> Path | None:
        """The checkpoint from which a restarted job goes on, which load_state() takes; None in a first attempt."""
        return self.state.environment.resume

    @property
    def save_iteration(self) -> int:
        """Number of the next automatically named checkpoint."""
        return self._saver.iteration

    def register_for_checkpointing(self, *objects: Any) -> None:
        """Add objects with state_dict and load_state_dict to every checkpoint."""
        self._saver.register(*objects)

    def register_save_state_pre_hook(self, hook: "SaveHook") -> RemovableHandle:
        """Call hook(models, weights, directory) before each save; what it takes out of `weights` is not saved."""
        return self._saver.add_save_hook(hook)

    def register_load_state_pre_hook(self, hook: "LoadHook") -> RemovableHandle:
        """Call hook(models, directory) before each load; what it takes out of `models` is not loaded."""
        return self._saver.add_load_hook(hook)

    def save_state(
        self,
        output_dir: str | Path | None = None,
        safe_serialization: bool = True,  # noqa: ARG002  # of the API
        *,
        async_save: bool = False,
        **save_model_func_kwargs: Any,
    ) -> Path | str:
        """Write a checkpoint; on all ranks, or on the main process alone. Returns its path, or its URL.

        Args:
            output_dir: a directory, or a URL that fsspec knows (s3://bucket/run/last).
            safe_serialization: accepted for either value; nothing in a checkpoint of ours is pickled.
            save_model_func_kwargs: refused by name; a checkpoint has one format.
            async_save: go on as soon as the state is copied, and write it beside the training. One save at a time:
                the next one waits. Errors come with the next save_state() or load_state(), or with end_training().

        Raises:
            CheckpointError: it could not be written; the older one is intact.
            UsageError: another argument is given.
        """
        _refuse_others("save_state", save_model_func_kwargs)
        with self._outside_training():
            return self._saver.save(output_dir, in_background=async_save)

    def load_state(
        self,
        input_dir: str | Path | None = None,
        load_kwargs: dict[str, Any] | None = None,
        **load_model_func_kwargs: Any,
    ) -> Path | str:
        """Load a checkpoint, else `resume_from` or the newest; on all ranks together. Returns its path, or its URL.

        Args:
            load_kwargs, load_model_func_kwargs: refused by name where they hold something.
        """
        _refuse_others("load_state", {**(load_kwargs or {}), **load_model_func_kwargs})
        with self._outside_training():
            return self._saver.load(input_dir)

    def save_model(
        self,
        model: nn.Module,
        save_directory: str | Path,
        max_shard_size: int | str = DEFAULT_SHARD_SIZE,
        safe_serialization: bool = True,
    ) -> None:
        """Write the weights alone, on the main process: model.safetensors, or shards with an index.

        Args:
            max_shard_size: bytes, or "5GB", "500MiB"; what is larger is split over several files.
            safe_serialization: False, or no safetensors installed, writes pytorch_model.bin instead.

        Raises:
            CheckpointError: they could not be written; a former export is intact.
        """
        self._saver.save_weights(model, Path(save_directory), max_shard_size=max_shard_size, safe=safe_serialization)

    @property
    def should_save_model(self) -> bool:
        """Whether this process is the one that save_model() lets write."""
        return self.state.is_main_process

    def save(self, obj: Any, f: str | Path, safe_serialization: bool = False) -> None:
        """Write an object on the main process, under another name until it is complete.

        Args:
            safe_serialization: as safetensors, which hold a flat dict of tensors alone; else with torch.save.

        Raises:
            CheckpointError: it could not be written; a former file is intact.
        """
        if self.state.is_main_process:
            save_object(obj, Path(f), safe=safe_serialization)

    def get_state_dict(self, model: nn.Module, unwrap: bool = True) -> dict[str, Any]:  # noqa: ARG002  # of the API
        """Whole tensors by the model's own names, whatever `unwrap` is.

        Where the model is sharded, they come on the main process alone (all ranks call it).
        """
        return self._saver.gather_weights(model, "get_state_dict")


def _refuse_others(call: str, others: dict[str, Any]) -> None:
    if others:
        raise UsageError(
            f"{call} with {', '.join(sorted(others))}",
            allowed="a directory; a checkpoint has one format, and each strategy knows how to write it",
            next_step="leave it out",
        )
