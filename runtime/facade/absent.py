"""Attributes of the Accelerate API's Accelerator that this version does not have, each refused with its reason."""

from typing import Any, NoReturn

from ..errors import AbsentAttributeError


class Absent:
    """An attribute that is not there, and says why.

    Args:
        what: the sentence.
        next_step: what to do without it.
    """

    def __init__(self, what: str, next_step: str) -> None:
        self._what = what
        self._next_step = next_step
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> NoReturn:
        raise AbsentAttributeError(
            f"Accelerator.{self._name}: {self._what}, which this version does not have", next_step=self._next_step
        )


class AbsentDuties:
    """What comes later."""

    deepspeed_ulysses_dl_adapter = Absent("sequence parallelism", "prepare the loader as usual")
    lomo_backward = Absent("LOMO, which updates parameters in backward", "use backward() and an optimizer's step()")
    maybe_context_parallel = Absent("context parallelism", "shorten the sequences, or use activation checkpointing")
    verify_device_map = Absent("big-model loading with a device map", "use fsdp_plugin, which spreads one model")
