"""What every duty of the Accelerator reaches: the state, the prepared objects, the saver and the reporter."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..accelerator_state import AcceleratorState
from ..gradient_state import GradientState
from ..mesh import ParallelDims
from ..options import ProfileKwargs
from ..prepared import Prepared
from ..reporting import RunReporter
from ..throughput import ThroughputMeter
from ..tracking.trackers import Trackers

if TYPE_CHECKING:
    from ..saving import StateSaver


class Duty:
    """Attributes that Accelerator.__init__ sets."""

    state: AcceleratorState
    gradient_state: GradientState
    mixed_precision: str
    parallelism_config: Any
    _dims: ParallelDims
    _prepared: Prepared
    _saver: "StateSaver"
    _reporter: RunReporter
    _device_placement: bool
    _step_scheduler_with_optimizer: bool
    _trigger: bool
    _trackers: Trackers
    _logging_dir: Path | None
    _profile: ProfileKwargs
    _meter: ThroughputMeter | None = None

    def _outside_training(self) -> AbstractContextManager[None]:
        """Time that is no training, for the meter."""
        return nullcontext() if self._meter is None else self._meter.paused()
