"""What every duty of the Accelerator reaches: the state, the prepared objects, the saver and the reporter."""

from typing import Any

from ..accelerator_state import AcceleratorState
from ..gradient_state import GradientState
from ..mesh import ParallelDims
from ..prepared import Prepared
from ..reporting import RunReporter
from ..saving import StateSaver


class Duty:
    """Attributes that Accelerator.__init__ sets."""

    state: AcceleratorState
    gradient_state: GradientState
    mixed_precision: str
    parallelism_config: Any
    _dims: ParallelDims
    _prepared: Prepared
    _saver: StateSaver
    _reporter: RunReporter
    _device_placement: bool
    _step_scheduler_with_optimizer: bool
    _trigger: bool
