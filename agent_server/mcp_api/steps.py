"""The tools that lead to a launch, in their order: each takes flat arguments and answers with a Reply."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import anyio
from mcp.types import CallToolResult
from pydantic import BeforeValidator, Field

from tools.domain.errors import InvalidInput
from tools.domain.findings import Answer
from tools.domain.ids import new_id
from tools.inputs.request import InputRequest

from . import results, run_results
from .operations import Pending, in_thread, start_thread
from .toolset import ANSWER_WITHIN_S, REQUESTER, PlanId, ToolSet
from .waiting import settle

if TYPE_CHECKING:
    from agent_server.container import Container
    from agent_server.procedure import Procedure, Settled, Started

_SMOKE_WAIT_S = 15.0


def _pairs(value: Any) -> Any:
    """Agents often send an object where a list of name=value is described; the meaning is the same."""
    return [f"{name}={item}" for name, item in value.items()] if isinstance(value, dict) else value


def _no_truth_value(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a number, and neither true nor false")
    return value


Python = Annotated[str, Field(description="Python that trains; empty: found beside the script")]
Pairs = Annotated[tuple[str, ...], BeforeValidator(_pairs)]


class PlanTools(ToolSet):
    """inspect_environment to launch_training."""

    def __init__(self, container: "Callable[[], Container]", pending: Pending[Any]) -> None:
        super().__init__(container, pending)
        self._validating: dict[str, str] = {}

    async def inspect_environment(
        self,
        python: Python = "",
        paths: Annotated[tuple[str, ...], Field(description="data files or folders to measure")] = (),
    ) -> CallToolResult:
        """Step 1, look: accelerators, CPUs and memory within their limits, disk, versions, and the size of the data.

        Unknown values come with the reason. Tell the user what matters for the plan.
        """
        procedure = await self._procedure()
        return await self._bounded(
            "inspect_environment",
            f"{python} {paths}",
            lambda: procedure.inspect_environment(python=python, paths=paths),
            results.environment,
        )

    async def check_api(
        self,
        names: Annotated[
            tuple[str, ...],
            Field(description="dotted names (torch.optim.AdamW) or flags (--lr)", min_length=1, max_length=30),
        ],
        python: Python = "",
        script: Annotated[str, Field(description="script whose flags are meant")] = "",
    ) -> CallToolResult:
        """Do these names exist in the installed versions? Gives signatures, or the nearest names.

        Call it before you write or name any function, class or flag.
        """
        procedure = await self._procedure()
        return await self._bounded(
            "check_api",
            f"{python} {names} {script}",
            lambda: procedure.check_api(python=python, names=names, script=script),
            results.api,
        )

    async def validate_inputs(
        self,
        script: Annotated[str, Field(description="training script; may be empty with base_plan_id")] = "",
        args: Annotated[tuple[str, ...], Field(description="its arguments in the full run; {run_dir} expands")] = (),
        data: Annotated[
            tuple[str, ...], Field(description="role=path, role: train, validation, holdout or other")
        ] = (),
        python: Python = "",
        settings: Annotated[
            Pairs,
            Field(
                description="name=value of num_processes, device (cpu or cuda), seed, wall_time_s, loss (metric name), "
                "smoke_steps, smoke_wall_time_s, max_retries, max_cost, disk_gib, env (A=1 B=2), pass_env (secrets)"
            ),
        ] = (),
        smoke_args: Annotated[tuple[str, ...], Field(description="arguments that make the run small")] = (),
        evaluation: Annotated[
            Pairs,
            Field(
                description="name=value of predictions (file that the run writes), holdout, train, id_column, "
                "label_column, prediction_column, task (classification or regression), metrics (a,b), baselines (a,b)"
            ),
        ] = (),
        base_plan_id: Annotated[str, Field(description="plan to change: empty arguments are inherited")] = "",
        sweep: Annotated[
            tuple[str, ...],
            Field(description="several runs under one approval: what each adds to args, e.g. '--lr 0.1'"),
        ] = (),
    ) -> CallToolResult:
        """Step 2, settle the inputs: checks all that a run needs and keeps it as a plan.

        Gives a plan_id, findings and open questions, or every error at once (then nothing is kept). The same inputs
        give the same plan; any change of code, data or arguments is a new plan.
        """
        request = InputRequest(
            script=script,
            args=args,
            data=data,
            python=python,
            settings=_mapping(settings, "settings"),
            smoke_args=smoke_args,
            evaluation=_mapping(evaluation, "evaluation") or None,
            sweep=sweep,
        )
        procedure = await self._procedure()
        key = f"validate {base_plan_id} {request.model_dump_json()}"
        if self._validating.get(key, "") not in self._pending:
            self._validating[key] = new_id("plan")
        plan_id = self._validating[key]

        def work() -> "Settled":
            return procedure.validate(request, base_plan_id=base_plan_id, requester=REQUESTER, plan_id=plan_id)

        found = await self._pending.run(plan_id, work, wait_s=ANSWER_WITHIN_S)
        return (results.validating(plan_id) if found is None else results.settled(found)).result()

    async def answer_questions(
        self,
        plan_id: PlanId,
        answers: Annotated[Pairs, Field(description="question_id=value", min_length=1)],
        source: Annotated[
            Literal["user", "assumption"], Field(description="user: their own words; assumption: you chose")
        ],
    ) -> CallToolResult:
        """Step 2: answer a plan's open questions; gives what remains.

        Ask the user. Assumptions are listed in the report.
        """
        given = [
            Answer(question_id=name, value=value, source=source) for name, value in _mapping(answers, "answers").items()
        ]
        procedure = await self._procedure()
        return await self._bounded(
            "answer_questions", f"{plan_id} {given}", lambda: procedure.answer(plan_id, given), results.settled
        )

    async def smoke_test(self, plan_id: PlanId) -> CallToolResult:
        """Step 3, run small: the plan with its smoke_args for a few steps, free of approval.

        It passes on evidence alone: steps seen, loss finite and falling, a checkpoint that loads. Gives a run_id, and
        the verdict if it is over within seconds. Cancelling this call stops the run.
        """
        procedure = await self._procedure()
        starting = start_thread(lambda: procedure.smoke_test(plan_id), name="forerun-smoke")
        try:
            started = await asyncio.wrap_future(starting)
            status = await settle(procedure, started.run.run_id, _SMOKE_WAIT_S)
        except anyio.get_cancelled_exc_class():
            starting.add_done_callback(lambda future: _stop_started(procedure, future))
            raise
        if status is None or status.run is None:
            return run_results.started(started).result()
        return run_results.started(replace(started, run=status.run), plan=status.plan).result()

    async def estimate_cost(self, plan_id: PlanId) -> CallToolResult:
        """Step 4: time, memory and cost of the full run with intervals, from the smoke run; what is unknown is said.

        Tell the user before you ask for approval.
        """
        procedure = await self._procedure()
        found = await in_thread(lambda: procedure.estimate(plan_id))
        status = await in_thread(lambda: procedure.status(plan_id))
        return results.estimate(found, status.plan).result()

    async def request_approval(
        self,
        plan_id: PlanId,
        reason: Annotated[str, Field(description="why this run, for the human", max_length=2000)],
    ) -> CallToolResult:
        """Step 4: ask a human to approve this exact plan; it expires in an hour and is good for one run.

        Show them the command verbatim and end your turn. No tool can approve.
        """
        procedure = await self._procedure()
        found = await in_thread(lambda: procedure.request_approval(plan_id, reason))
        status = await in_thread(lambda: procedure.status(plan_id))
        return results.asked(found, plan=status.plan).result()

    async def launch_training(
        self,
        plan_id: PlanId,
        member: Annotated[
            int,
            Field(description="of a sweep: which run, from 1; 0: the plan is one run", ge=0),
            BeforeValidator(_no_truth_value),
        ] = 0,
    ) -> CallToolResult:
        """Step 4, run it all: starts the approved plan, once; repeated calls give the same run_id.

        Without an approval it starts nothing and says what is missing; if anything changed since, it names that.
        """
        procedure = await self._procedure()
        key = f"{plan_id} {member}"
        joined = f"launch_training {key}" in self._pending  # by a call that came before this one
        return await self._bounded(
            "launch_training",
            key,
            lambda: procedure.launch(plan_id, member or None),
            lambda found: run_results.launched_or_missing(found, joined=joined),
        )


def _stop_started(procedure: "Procedure", starting: "Future[Started]") -> None:
    """The call that started a smoke run was cancelled: nobody wants the run. Not one that an earlier call started."""
    if starting.exception() is None and not starting.result().already:
        run_id = starting.result().run.run_id
        start_thread(lambda: procedure.abandon(run_id, REQUESTER), name="forerun-abandon")


def _mapping(pairs: Sequence[str], what: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip() or name.strip() in found:
            raise InvalidInput(
                f"{what} holds {pair!r}" + (" twice" if name.strip() in found else ""),
                allowed="name=value, each name once",
                next_step="call again",
            )
        found[name.strip()] = value
    return found
