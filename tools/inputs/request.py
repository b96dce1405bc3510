"""InputRequest: the arguments of validate_inputs, and how they inherit from an earlier plan's."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from runtime.config.plan import Frozen


class InputRequest(Frozen):
    """What a run is asked to be. Empty fields are taken from the base plan's inputs.

    Attributes:
        script: path of the training script; relative ones are taken from the first allowed root.
        args: its arguments in the full run; `{run_dir}` stands for the run directory.
        data: 'role=path', role being train, validation, holdout or other.
        python: interpreter that trains; empty: the environment beside the script, or this server's own.
        settings: see tools.inputs.settings.
        smoke_args: all arguments of the small run, in place of `args`.
        evaluation: see tools.inputs.evaluation.
        sweep: what each run of a sweep adds to `args`; `none` alone takes an inherited sweep away.
    """

    script: str = ""
    args: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    python: str = ""
    settings: dict[str, Any] = Field(default_factory=dict)
    smoke_args: tuple[str, ...] = ()
    evaluation: dict[str, Any] | None = None
    sweep: tuple[str, ...] = ()


def merged_request(request: InputRequest, base_inputs: Mapping[str, Any] | None) -> InputRequest:
    """`request` with its empty fields taken from `base_inputs`.

    Settings and evaluation are merged name by name, so that one of them can be changed alone; a value of None takes a
    name out again.
    """
    if not base_inputs:
        return request
    base = InputRequest.model_validate(dict(base_inputs))
    evaluation = {**(base.evaluation or {}), **(request.evaluation or {})}
    return InputRequest(
        script=request.script or base.script,
        args=request.args or base.args,
        data=request.data or base.data,
        python=request.python or base.python,
        settings=_without_none({**base.settings, **request.settings}),
        smoke_args=request.smoke_args or base.smoke_args,
        evaluation=_without_none(evaluation) or None,
        sweep=request.sweep or base.sweep,
    )


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
