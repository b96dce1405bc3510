"""Batch sizes of a DeepSpeed configuration among the arguments: the verdict of a launch, before there is a plan."""

from collections.abc import Sequence
from pathlib import Path

from runtime.batch_arithmetic import settle_batches
from runtime.config.deepspeed_file import DeepSpeedFile, read_deepspeed
from runtime.config.file_syntax import read_tree
from runtime.errors import ConfigurationError

from .arguments import Value, value_of
from .notes import Notes

BATCH_FLAGS = (
    "--batch_size",
    "--batch-size",
    "--train_batch_size",
    "--train-batch-size",
    "--per_device_train_batch_size",
    "--per-device-train-batch-size",
)
_SURE_SIGNS = ("zero_optimization", "train_micro_batch_size_per_gpu")


def check_batches(files: Sequence[Path], values: Sequence[Value], num_processes: int | None, notes: Notes) -> None:
    """Refuse sizes that do not add up for this many processes; what follows from them is a note.

    Args:
        files: the existing files that the arguments name.
        values: the arguments; one of BATCH_FLAGS is the loader's batch.
    """
    text = value_of(values, BATCH_FLAGS)
    loader = int(text) if text is not None and text.isascii() and text.isdecimal() else None
    for path in files:
        found = _deepspeed(path, notes) if path.suffix == ".json" else None
        if found is None or num_processes is None:
            continue
        try:
            verdict = settle_batches(found.batches_on(num_processes, dataloader=loader))
        except ConfigurationError as error:
            notes.refusal("batch_arithmetic", error)
            continue
        if verdict.formula:
            text = f"{path.name}: train batch {verdict.formula} (micro-batch x accumulation x processes)"
            notes.note("batch_arithmetic", text, "; ".join(verdict.derived))


def _deepspeed(path: Path, notes: Notes) -> DeepSpeedFile | None:
    """The configuration in a file; None if it is another JSON."""
    try:
        tree = read_tree(path)
    except ConfigurationError:
        return None
    if not any(key in (tree.entries or {}) for key in _SURE_SIGNS):
        return None
    try:
        return read_deepspeed(path, tree)
    except ConfigurationError as error:
        notes.warning("deepspeed_config", error.what, error.next_step)
        return None
