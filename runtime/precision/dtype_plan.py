"""The dtype plan: in which dtypes a training keeps parameters, computes, reduces gradients and gives outputs."""

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass

_LOG = logging.getLogger("runtime.precision")
_NAMES = {"bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True)
class DtypePlan:
    """Each in torch's words, or `as parameters` and `as computed` where it follows from another."""

    parameters: str
    compute: str
    reduction: str
    output: str

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in asdict(self).items())


def plan_dtypes(precision: str, *, autocasts: bool, own: Mapping[str, str]) -> DtypePlan:
    """What follows from the precision, with what the strategy does differently.

    Args:
        precision: no, bf16 or fp16.
        autocasts: whether forward computes under autocast (AutocastKwargs(enabled=False) turns it off).
        own: the strategy's dtypes().
    """
    if precision == "no":
        plan = {
            "parameters": "as the model has them",
            "compute": "as parameters",
            "reduction": "as parameters",
            "output": "as computed",
        }
    else:
        plan = {
            "parameters": "as the model has them, float32 as a rule",
            "compute": f"{_NAMES[precision]} (autocast: matrix products; sums and norms float32)"
            if autocasts
            else "as parameters (autocast is off)",
            "reduction": "as parameters",
            "output": "float32",
        }
    return DtypePlan(**(plan | dict(own)))


def announce(plan: DtypePlan, *, is_main: bool) -> None:
    """One line at level INFO of the logger runtime.precision, on the main process."""
    if is_main:
        _LOG.info("dtypes: %s", plan)
