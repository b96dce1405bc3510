"""TensorBoard through torch.utils.tensorboard, imported when it is asked for."""

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import MissingDependencyError
from .base import GeneralTracker


class TensorBoardTracker(GeneralTracker):
    """Writes event files below `logging_dir`/`project_name`.

    Args:
        options: keyword arguments of SummaryWriter (init_kwargs={"tensorboard": {...}}).
    """

    name = "tensorboard"
    requires_logging_directory = True

    def __init__(self, project_name: str, logging_dir: Path, **options: Any) -> None:
        self.directory = logging_dir / project_name
        self._options = options
        self.writer: Any = None

    @property
    def tracker(self) -> Any:
        """The SummaryWriter."""
        return self.writer

    def start(self) -> None:
        self.writer = import_module("torch.utils.tensorboard").SummaryWriter(str(self.directory), **self._options)

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Hyperparameters: numbers, booleans and texts as they are, all else as text."""
        plain = {
            name: value if isinstance(value, bool | int | float | str) else str(value) for name, value in values.items()
        }
        for summary in import_module("torch.utils.tensorboard.summary").hparams(plain, {}):
            self.writer.file_writer.add_summary(summary)
        self.writer.flush()

    def log(self, values: Mapping[str, Any], step: int | None = None, **options: Any) -> None:
        for name, value in values.items():
            if isinstance(value, str):
                self.writer.add_text(name, value, global_step=step, **options)
            elif isinstance(value, Mapping):
                self.writer.add_scalars(name, dict(value), global_step=step, **options)
            else:
                self.writer.add_scalar(name, value, global_step=step, **options)
        self.writer.flush()

    def log_images(self, values: Mapping[str, Any], step: int | None = None, **options: Any) -> None:
        """Batches of images of shape (N, C, H, W), or as `dataformats` says."""
        for name, images in values.items():
            self.writer.add_images(name, images, global_step=step, **options)

    def finish(self) -> None:
        self.writer.close()


def is_installed() -> bool:
    return find_spec("tensorboard") is not None


def require() -> None:
    """
    Raises:
        MissingDependencyError: the package tensorboard is not installed.
    """
    if not is_installed():
        raise MissingDependencyError(
            "log_with='tensorboard' needs the package tensorboard, which this Python does not have",
            allowed="log_with='jsonl', which needs nothing",
            next_step="pip install tensorboard",
        )
