"""Where and when the training state is saved: names, limits, registered objects, and the smoke run's proof."""

import warnings
from pathlib import Path
from typing import Any

from torch import nn

from .checkpoint.checkpointer import Checkpointer
from .checkpoint.directory import newest_checkpoint, prune
from .checkpoint.export import parse_size, write_weights
from .checkpoint.manifest import saved_rng_ranks
from .checkpoint.weights import secondary_names, sharded_weights, weights_of
from .errors import CheckpointError, UsageError
from .options import ProjectConfiguration
from .prepared import Prepared
from .reporting import RunReporter


class StateSaver:
    """Saves and loads what is prepared and registered."""

    def __init__(self, prepared: Prepared, *, reporter: RunReporter, project: ProjectConfiguration) -> None:
        self._prepared = prepared
        self._reporter = reporter
        self._project = project
        strategy = prepared.strategy
        self._checkpointer = Checkpointer(state=prepared.state, strategy=strategy.name, replicated=strategy.replicated)
        self._resume = prepared.state.environment.resume
        self.iteration = project.iteration

    @property
    def root(self) -> Path | None:
        """The project directory; in a run, the run directory unless another was given."""
        if self._project.project_dir is not None:
            return Path(self._project.project_dir)
        return None if self._reporter.layout is None else self._reporter.layout.root

    def register(self, *objects: Any) -> None:
        """Add objects to every checkpoint.

        Raises:
            UsageError: one lacks state_dict or load_state_dict.
        """
        wrong = [type(o).__name__ for o in objects if not (hasattr(o, "state_dict") and hasattr(o, "load_state_dict"))]
        if wrong:
            raise UsageError(
                f"register_for_checkpointing of {', '.join(wrong)}",
                allowed="objects with state_dict and load_state_dict",
                next_step="give the class both methods",
            )
        self._prepared.custom.extend(objects)

    def save(self, output_dir: str | Path | None) -> Path:
        """Write a checkpoint; old automatically named ones go only when it is complete."""
        self._warn_of_open_window()
        self._resume = None
        automatic = output_dir is None or self._project.automatic_checkpoint_naming
        saved = self._checkpointer.save(
            lambda: self._named() if automatic else Path(str(output_dir)),
            self._prepared.parts(),
            iteration=self.iteration,
            optimizer_steps=self._prepared.optimizer_steps,
        )
        self.iteration += 1
        self._reporter.event(
            "checkpoint_saved",
            path=str(saved.path.absolute()),
            seconds=saved.seconds,
            size_bytes=saved.size_bytes,
            step=self._prepared.optimizer_steps,
        )
        if automatic and self._project.total_limit is not None and self._prepared.state.is_main_process:
            prune(saved.path.parent, keep=self._project.total_limit)
        return saved.path

    def load(self, input_dir: str | Path | None) -> Path:
        """Load a checkpoint; without a path the one to resume from, once, else the newest automatically named."""
        resume, self._resume = self._resume, None
        path = Path(input_dir) if input_dir is not None else resume or self._checkpoints()
        directory = self._checkpointer.load(path, self._prepared.parts())
        self._prepared.forget_gradients()
        self._continue_numbering(directory)
        self._reporter.event("checkpoint_loaded", path=str(directory.absolute()), rng_ranks=saved_rng_ranks(directory))
        return directory

    def save_weights(self, model: nn.Module, directory: Path, *, max_shard_size: int | str, safe: bool) -> None:
        """Write a model's weights on the main process; all ranks call it, or it alone where the state is replicated."""
        parse_size(max_shard_size)
        state = self._prepared.state
        if self._prepared.strategy.replicated and not state.is_main_process:
            return
        self._checkpointer.meet_if_sharded("save_model")
        inner = self._prepared.strategy.unwrap_model(model)
        gathered = sharded_weights(inner)
        if gathered is None:
            gathered = weights_of(self._prepared.strategy.state_dict(model), secondary=secondary_names(inner))
        weights, rest = gathered
        failed: CheckpointError | None = None
        if state.is_main_process:
            try:
                write_weights(weights, directory, rest=rest, max_shard_size=max_shard_size, safe=safe)
            except CheckpointError as error:
                failed = error
        else:
            for weight in weights:
                weight.read()
        self._agree_on(failed)

    def _agree_on(self, failed: CheckpointError | None) -> None:
        """Let the ranks that gathered together end alike."""
        guard, replicated = self._prepared.state.guard, self._prepared.strategy.replicated
        if guard is not None and not replicated:
            reasons = guard.meet("save_model's end", details=str(failed) if failed else None)
            if failed is None and reasons[0]:
                raise CheckpointError(f"rank 0 could not save: {reasons[0]}", next_step="see rank 0's log")
        if failed is not None:
            raise failed

    def gather_weights(self, model: nn.Module, operation: str) -> dict[str, Any]:
        """The whole tensors of a model.

        Raises:
            DistributedError: the model is sharded, and not all ranks came.
        """
        self._checkpointer.meet_if_sharded(operation)
        return self._prepared.strategy.state_dict(model)

    def save_and_compare(self) -> None:
        """The smoke run's proof, on all ranks: a checkpoint is saved, equals the state, loads, and still equals it."""
        layout = self._reporter.layout
        if layout is None:
            raise UsageError(
                "a smoke run without a run directory",
                allowed="FORERUN_SMOKE_STEPS together with FORERUN_RUN_DIR",
                next_step="start the smoke run with forerun",
            )
        parts = self._prepared.parts()
        saved = self._checkpointer.save(
            lambda: layout.checkpoints / "smoke",
            parts,
            iteration=self.iteration,
            optimizer_steps=self._prepared.optimizer_steps,
        )
        self._reporter.event(
            "checkpoint_saved", path=str(saved.path), seconds=saved.seconds, size_bytes=saved.size_bytes
        )
        before = self._checkpointer.matches(saved.path, parts)
        self._checkpointer.load(saved.path, parts)
        equal = before and self._checkpointer.matches(saved.path, parts)
        guard = self._prepared.state.guard
        if guard is not None:
            equal = all(guard.meet("smoke_checkpoint", details=equal))
        self._reporter.event("checkpoint_loaded", path=str(saved.path), equal=equal)

    def _warn_of_open_window(self) -> None:
        waiting = self._prepared.windows.open_micro_batches
        if waiting:
            warnings.warn(
                f"save_state inside an accumulation window: the gradients of {waiting} micro-batches are not in the "
                "checkpoint, and a resumed training lacks them; save when accelerator.sync_gradients is true",
                RuntimeWarning,
                stacklevel=4,
            )

    def _named(self) -> Path:
        return self._checkpoints() / f"checkpoint_{self.iteration}"

    def _checkpoints(self) -> Path:
        if self.root is None:
            raise CheckpointError(
                "no path for the checkpoint",
                allowed="save_state(path), or a project_dir, or a run started by forerun",
                next_step="pass a path",
            )
        return self.root / "checkpoints"

    def _continue_numbering(self, loaded: Path) -> None:
        newest = newest_checkpoint(loaded.parent) if loaded.name.startswith("checkpoint_") else None
        if newest is not None and newest.name.startswith("checkpoint_"):
            self.iteration = max(self.iteration, int(newest.name.removeprefix("checkpoint_")) + 1)
