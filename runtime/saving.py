"""Where and when the training state is saved: names, limits, registered objects, and the smoke run's proof.

What only some trainings ask for is imported when asked for: other libraries' checkpoints, URLs, exported weights.
"""

import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from .checkpoint.checkpointer import Checkpointer, Facts, Saved
from .checkpoint.directory import is_partial, remove, set_aside
from .checkpoint.disk import Disk
from .checkpoint.manifest import (
    MANIFEST,
    complete_digests,
    is_complete,
    is_of_another_version,
    read_manifest,
    saved_rng_ranks,
    verify,
)
from .checkpoint.selection import AUTOMATIC, complete_checkpoints, find_checkpoint, surplus
from .checkpoint.urls import as_url
from .errors import CheckpointError, UsageError
from .options import ProjectConfiguration
from .prepared import Prepared
from .reporting import RunReporter
from .state_parts import Part

if TYPE_CHECKING:
    from .remote_saving import RemoteCheckpoints

SaveHook = Callable[[list[nn.Module], list[dict[str, Any]], str], None]
LoadHook = Callable[[list[nn.Module], str], None]


class StateSaver:
    """Saves and loads what is prepared and registered."""

    def __init__(self, prepared: Prepared, *, reporter: RunReporter, project: ProjectConfiguration) -> None:
        self._prepared = prepared
        self._reporter = reporter
        self._project = project
        strategy = prepared.strategy
        self._disk = Disk()
        self._checkpointer = Checkpointer(
            state=prepared.state, strategy=strategy.name, replicated=strategy.replicated, disk=self._disk
        )
        self._save_hooks: OrderedDict[int, SaveHook] = OrderedDict()
        self._load_hooks: OrderedDict[int, LoadHook] = OrderedDict()
        self._saved_step = 0
        self._resume = prepared.state.environment.resume
        self.iteration = project.iteration

    @cached_property
    def _remote(self) -> "RemoteCheckpoints":
        from .remote_saving import RemoteCheckpoints

        layout = self._reporter.layout
        return RemoteCheckpoints(self._prepared.state, None if layout is None else layout.checkpoints)

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

    def add_save_hook(self, hook: SaveHook) -> RemovableHandle:
        """Call hook(models, weights, directory) before each save, on every rank; what it takes out of `weights` is not
        saved, and what it writes into the directory belongs to the checkpoint."""
        handle = RemovableHandle(self._save_hooks)
        self._save_hooks[handle.id] = hook
        return handle

    def add_load_hook(self, hook: LoadHook) -> RemovableHandle:
        """Call hook(models, directory) before each load, on every rank; what it takes out of `models` is not loaded."""
        handle = RemovableHandle(self._load_hooks)
        self._load_hooks[handle.id] = hook
        return handle

    def save(self, output_dir: str | Path | None, *, in_background: bool = False) -> Path | str:
        """Write a checkpoint; old automatically named ones go only when it is complete. Returns its path or URL."""
        self._resume = None
        automatic = output_dir is None or self._project.automatic_checkpoint_naming
        url = as_url(self._checkpoints() if automatic else output_dir)
        if url is not None:
            return self._save_remotely(url, automatic=automatic, in_background=in_background)
        path = self._checkpointer.save(
            lambda: self._named() if automatic else Path(str(output_dir)),
            self._prepared.parts(),
            self._facts,
            hook=self._run_save_hooks if self._save_hooks else None,
            done=lambda saved: self._saved(saved, automatic=automatic),
            in_background=in_background,
        )
        self.iteration = int(path.name.removeprefix(AUTOMATIC)) + 1 if automatic else self.iteration + 1
        return path

    def _save_remotely(self, url: str, *, automatic: bool, in_background: bool) -> str:
        """The same at a URL: by way of a local directory, which is uploaded as a whole."""
        root, _, name = (url, "", "") if automatic else url.rstrip("/").rpartition("/")

        def target() -> Path:
            if automatic:
                self.iteration = self._remote.free_name(root, AUTOMATIC, self.iteration)
            return self._remote.stage(f"{AUTOMATIC}{self.iteration}" if automatic else name)

        def done(saved: Saved) -> None:
            self._checkpointer.let_go(saved.path)
            if self._prepared.state.is_main_process:
                complete_digests(saved.path)
            keep = self._project.total_limit if automatic else None
            self._remote.upload(saved.path, f"{root}/{saved.path.name}", keep=keep)
            self._report(saved, step=self._saved_step, place=f"{root}/{saved.path.name}")

        path = self._checkpointer.save(
            target,
            self._prepared.parts(),
            self._facts,
            hook=self._run_save_hooks if self._save_hooks else None,
            done=done,
            in_background=in_background,
        )
        self.iteration = int(path.name.removeprefix(AUTOMATIC)) + 1 if automatic else self.iteration + 1
        return f"{root}/{path.name}"

    def load(self, input_dir: str | Path | None) -> Path | str:
        """Load a checkpoint; without a path the one to resume from, once, else the newest automatically named."""
        resume, self._resume = self._resume, None
        path = Path(input_dir) if input_dir is not None else resume or self._checkpoints()
        url = as_url(input_dir if input_dir is not None else path)
        if url is None:
            return self._load_here(path)
        self._checkpointer.finish()
        brought, found = self._remote.fetch([url, f"{url}/checkpoints"])
        try:
            self._load_here(brought)
        finally:
            self._remote.drop(brought)
        return found

    def _load_here(self, path: Path) -> Path:
        from .checkpoint.foreign.recognise import foreign_kind

        if foreign_kind(path) is not None:
            return self._load_foreign(path)
        models = list(self._prepared.models)
        if self._load_hooks:
            self._checkpointer.finish()
            directory = find_checkpoint(path)
            manifest = read_manifest(directory)
            verify(directory, () if manifest is None else manifest.files)  # also what hooks wrote
            for hook in self._load_hooks.values():
                hook(models, str(directory))
        directory = self._checkpointer.load(path, self._prepared.parts(models), models_by_hook=bool(self._load_hooks))
        self._continue_numbering(directory)
        self._reporter.event("checkpoint_loaded", path=str(directory.absolute()), rng_ranks=saved_rng_ranks(directory))
        return directory

    def _load_foreign(self, path: Path) -> Path:
        """Load what Accelerate or DeepSpeed saved, and say what was not carried over."""
        from .migration import load_foreign

        self._checkpointer.finish()
        models = list(self._prepared.models)
        for hook in self._load_hooks.values():
            hook(models, str(path))
        contents = load_foreign(path, self._prepared, models=models)
        if self._prepared.state.is_main_process:
            for note in contents.left_out:
                print(f"forerun: {path}: {note}", file=sys.stderr)  # noqa: T201  # a word to whoever migrates
        self._reporter.event(
            "checkpoint_loaded", path=str(path.absolute()), written_by=contents.kind, left_out=list(contents.left_out)
        )
        return path

    def finish(self) -> None:
        """Wait for a save in the background; raises what went wrong there."""
        self._checkpointer.finish()

    def close(self, *, digests: bool = True) -> None:
        """Finish what goes on in the background; without `digests`, those that are missing stay so."""
        self._checkpointer.close(digests=digests)
        if "_remote" in vars(self):
            self._remote.close()

    def save_weights(self, model: nn.Module, directory: Path, *, max_shard_size: int | str, safe: bool) -> None:
        """Write a model's weights on the main process; all ranks call it, or it alone where the state is replicated."""
        from .checkpoint.export import parse_size, write_weights
        from .checkpoint.weights import secondary_names, sharded_weights, weights_of

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
        path = self._checkpointer.save(
            lambda: layout.checkpoints / "smoke", parts, self._facts, done=lambda saved: self._report(saved, step=None)
        )
        before = self._checkpointer.matches(path, parts)
        self._checkpointer.load(path, parts)
        equal = before and self._checkpointer.matches(path, parts)
        guard = self._prepared.state.guard
        if guard is not None:
            equal = all(guard.meet("smoke_checkpoint", details=equal))
        self._reporter.event("checkpoint_loaded", path=str(path), equal=equal)

    def _saved(self, saved: Saved, *, automatic: bool) -> None:
        self._report(saved, step=self._saved_step)
        if automatic and self._project.total_limit is not None and self._prepared.state.is_main_process:
            self._prune(saved.path.parent, keep=self._project.total_limit)

    def _prune(self, root: Path, *, keep: int) -> None:
        for directory in surplus(root, keep=keep):
            self._checkpointer.let_go(directory)
            try:
                remove(directory, disk=self._disk)
            except OSError as error:
                print(f"forerun: {directory} could not be removed: {error}", file=sys.stderr)  # noqa: T201  # the new one is safe

    def _report(self, saved: Saved, *, step: int | None, place: str = "") -> None:
        if saved.note:
            print(f"forerun: {saved.note}", file=sys.stderr)  # noqa: T201  # a word to whoever watches the job
        details = {
            "path": place or str(saved.path.absolute()),
            "seconds": saved.seconds,
            "size_bytes": saved.size_bytes,
        }
        self._reporter.event("checkpoint_saved", **details, **({} if step is None else {"step": step}))

    def _facts(self) -> Facts:
        self._saved_step = self._prepared.optimizer_steps
        return Facts(self.iteration, self._saved_step, self._reporter.plan_digest())

    def _run_save_hooks(self, parts: Sequence[Part], directory: Path) -> list[Part]:
        models = list(self._prepared.models)
        weights = [part.save() for part in parts if part.name.startswith("model_")]
        for hook in self._save_hooks.values():
            hook(models, weights, str(directory))
        left = [Part(f"model_{i}", partial(_as_it_is, state), _not_here) for i, state in enumerate(weights)]
        return [*left, *(part for part in parts if not part.name.startswith("model_"))]

    def _named(self) -> Path:
        """The next free name; what is no checkpoint and no remains of one is moved out of the way."""
        root = self._checkpoints()
        while is_complete(path := root / f"{AUTOMATIC}{self.iteration}") or is_of_another_version(path):
            self.iteration += 1
        if path.is_dir() and not _is_ours(path):
            other = set_aside(path, disk=self._disk)
            print(f"forerun: {path} is no checkpoint; it is now {other}", file=sys.stderr)  # noqa: T201  # the same
        return path

    def _checkpoints(self) -> Path:
        if self.root is None:
            raise CheckpointError(
                "no path for the checkpoint",
                allowed="save_state(path), or a project_dir, or a run started by forerun",
                next_step="pass a path",
            )
        return self.root / "checkpoints"

    def _continue_numbering(self, loaded: Path) -> None:
        manifest = read_manifest(loaded)
        numbers = [self.iteration] if manifest is None else [self.iteration, manifest.iteration + 1]
        named = [d.name.removeprefix(AUTOMATIC) for d, _ in complete_checkpoints(loaded.parent)]
        if loaded.name.startswith(AUTOMATIC):
            numbers += [int(number) + 1 for number in named if number.isdecimal()]
        self.iteration = max(numbers)


def _is_ours(directory: Path) -> bool:
    """Whether a directory is a checkpoint, perhaps a damaged one, or what a killed save left."""
    return is_partial(directory) or (directory / MANIFEST).is_file()


def _as_it_is(state: Any) -> Any:
    return state


def _not_here(_state: Any) -> None:
    raise AssertionError("a part that is only saved")
