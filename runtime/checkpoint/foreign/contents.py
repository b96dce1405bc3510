"""What a foreign checkpoint holds, in one form whatever library wrote it."""

from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["accelerate", "deepspeed"]


@dataclass(frozen=True)
class ForeignOptimizer:
    """An optimizer's state in torch's form.

    Attributes:
        state: {"state": {parameter: {...}}, "param_groups": [{..., "params": [parameter, ...]}]}.
        by_name: a parameter is named as in the model; else it is its place in the optimizer.
    """

    state: dict[str, Any]
    by_name: bool


@dataclass(frozen=True)
class ForeignContents:
    """Whole tensors on the CPU, and what was left out.

    Attributes:
        models: state dicts with whole tensors.
        optimizer_steps: taken by the first optimizer; None if the folder does not say.
        num_ranks: that wrote it; None if the folder does not say.
        rng: states of the random generators of one rank, in this runtime's form; None if there are none.
        left_out: what the folder has and a load does not carry over, each with the reason.
    """

    kind: Kind
    models: list[dict[str, Any]]
    optimizers: list[ForeignOptimizer] = field(default_factory=list)
    schedulers: list[dict[str, Any]] = field(default_factory=list)
    custom: list[Any] = field(default_factory=list)
    scaler: dict[str, Any] | None = None
    rng: dict[str, Any] | None = None
    num_ranks: int | None = None
    optimizer_steps: int | None = None
    left_out: tuple[str, ...] = ()
