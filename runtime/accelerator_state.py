"""What the Accelerator settled, for code that has no Accelerator at hand: PartialState and the precision."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from .errors import StateResetError, UsageError
from .options import check_precision
from .state import DistributedType, PartialState, _Process


@dataclass(frozen=True)
class Settled:
    """What the newest Accelerator runs with; `plugins` by the names of its arguments."""

    mixed_precision: str
    distributed_type: DistributedType
    plugins: dict[str, Any] = field(default_factory=dict)


class AcceleratorState(PartialState):
    """Shows the newest Accelerator's settings; without one, those of the launch.

    Args:
        mixed_precision: for a state made before any Accelerator; later it must be what is settled already.
        options: PartialState's.
    """

    _settled: ClassVar[Settled | None] = None

    def __init__(self, mixed_precision: str | None = None, cpu: bool = False, **options: Any) -> None:
        process = PartialState(cpu, **options)
        settled = AcceleratorState._settled
        if settled is None:
            precision = check_precision(mixed_precision or process.environment.mixed_precision or "no")
            self.settle(precision, process.distributed_type)
        elif mixed_precision not in (None, settled.mixed_precision):
            raise UsageError(
                f"AcceleratorState(mixed_precision={mixed_precision!r}) where {settled.mixed_precision!r} is settled",
                allowed="the precision that the Accelerator was made with",
                next_step="pass it to Accelerator(mixed_precision=...)",
            )

    @staticmethod
    def settle(mixed_precision: str, distributed_type: DistributedType, plugins: dict[str, Any] | None = None) -> None:
        """Called by each new Accelerator.

        Args:
            plugins: by the names of its arguments.
        """
        AcceleratorState._settled = Settled(mixed_precision, distributed_type, plugins or {})

    def require(self) -> None:
        """Fail if the state was reset.

        Raises:
            StateResetError: it was.
        """
        if AcceleratorState._settled is None:
            raise StateResetError("AcceleratorState")

    @property
    def mixed_precision(self) -> str:
        return self._known.mixed_precision

    @property
    def distributed_type(self) -> DistributedType:
        return self._known.distributed_type

    @property
    def deepspeed_plugin(self) -> Any:
        return self._known.plugins.get("deepspeed_plugin")

    @property
    def fsdp_plugin(self) -> Any:
        return self._known.plugins.get("fsdp_plugin")

    @property
    def dynamo_plugin(self) -> Any:
        return self._known.plugins.get("dynamo_plugin")

    @property
    def parallelism_config(self) -> Any:
        return self._known.plugins.get("parallelism_config")

    @property
    def is_fsdp2(self) -> bool:
        return self.distributed_type is DistributedType.FSDP

    @property
    def initialized(self) -> bool:
        """Whether an Accelerator or AcceleratorState was made since the last reset."""
        return AcceleratorState._settled is not None

    @staticmethod
    def _reset_state(reset_partial_state: bool = False) -> None:
        """Forget the settings; with `reset_partial_state` rank and device too."""
        AcceleratorState._settled = None
        if reset_partial_state:
            PartialState._reset_state()

    @property
    def _known(self) -> Settled:
        settled = AcceleratorState._settled
        if settled is None:
            raise StateResetError("AcceleratorState")
        return settled

    @property
    def _shared(self) -> _Process:
        process = PartialState._process
        if AcceleratorState._settled is None or process is None:
            raise StateResetError("AcceleratorState")
        return process
