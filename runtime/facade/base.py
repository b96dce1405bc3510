"""What every duty of the Accelerator reaches: the state, the prepared objects, the saver and the reporter."""

from ..prepared import Prepared
from ..reporting import RunReporter
from ..saving import StateSaver
from ..state import PartialState


class Duty:
    """Attributes that Accelerator.__init__ sets."""

    state: PartialState
    mixed_precision: str
    _prepared: Prepared
    _saver: StateSaver
    _reporter: RunReporter
    _device_placement: bool
    _step_scheduler_with_optimizer: bool
    _trigger: bool
