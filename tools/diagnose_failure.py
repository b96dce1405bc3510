"""diagnose: why a run failed, from the evidence in its directory; `unknown` where nothing fits.

In order: exit code or signal, the ranks' error files, the earliest traceback that is not secondary, patterns in other
messages, collective timeouts, curves. What came after the cause is listed as its consequences.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from runtime.config.order import RankFailure
from runtime.errors import RecordError
from runtime.layout import RunLayout
from runtime.run_files import read_plan
from runtime.supervision.outcome import read_error

from .domain.reports import Diagnosis, Remedy
from .domain.run_state import RunRecord, RunState
from .evidence.collective_timeouts import CollectiveTimeout, read_timeouts
from .evidence.curves import first_non_finite, with_zero_loss
from .evidence.failure_lines import (
    FRAME,
    FailureLine,
    FailureLog,
    in_time_order,
    is_consequence,
    read_failures,
    speaks_of_nan,
)
from .evidence.failure_patterns import CLIPPING, LEARNING_RATE, match_failure
from .evidence.failure_signals import SignalCause, signal_cause, signal_in_text, signal_of_exit_code
from .evidence.log_lines import read_non_finite_lines, read_recent_lines
from .evidence.memory_failures import explain_memory, is_absurd_request, is_memory
from .evidence.run_metrics import iter_run_metrics
from .text import shown

_EVIDENCE_SHOWN = 8
_CONSEQUENCES_SHOWN = 10
_TEXT_SHOWN = 400
NON_FINITE = "non_finite_values"


@dataclass(frozen=True)
class _Case:
    """All that the decision looks at."""

    layout: RunLayout
    failures: tuple[RankFailure, ...]
    log: FailureLog
    world_size: int | None

    @property
    def failed_ranks(self) -> list[int]:
        return [failure.rank for failure in self.failures]

    @property
    def timeout(self) -> CollectiveTimeout:
        return read_timeouts(self.log.of_kind("timeout"), world_size=self.world_size)


@dataclass(frozen=True)
class _Cause:
    """A decision before it is written down. `root` is the line that stated it, if one did."""

    cause: str
    explanation: str
    remedies: tuple[Remedy, ...] = ()
    rank: int | None = None
    root: FailureLine | None = None
    evidence: tuple[str, ...] = ()


def diagnose(run: RunRecord, layout: RunLayout) -> Diagnosis:
    """Explain a run by its evidence; a run that is still going can be asked about too."""
    log = read_failures(layout)
    failures = run.result.failures if run.result else ()
    case = _Case(layout, failures, log, _world_size(layout) or log.world_size)
    found = (
        _wanted_end(run)
        or _from_signal(case)
        or _from_error_file(case)
        or _from_lines(case, log.of_kind("traceback"))
        or _from_lines(case, [line for line in log.of_kind("message") if match_failure(line.text)])
        or _from_printed_signal(case)
        or _from_timeouts(case)
        or _from_curves(case)
        or _nothing(run, case)
    )
    return Diagnosis(
        run_id=run.run_id,
        cause=found.cause,
        explanation=shown(found.explanation),
        rank=found.rank,
        evidence=tuple(e for e in (*_evidence_of(found.root), *found.evidence) if e)[:_EVIDENCE_SHOWN],
        consequences=_consequences(case, found),
        remedies=found.remedies,
    )


def _wanted_end(run: RunRecord) -> _Cause | None:
    if run.state is RunState.CANCELLED:
        return _Cause("cancelled", f"the run was cancelled: {run.reason or (run.result.reason if run.result else '')}")
    if run.state is RunState.STOPPED_AT_LIMIT:
        reason = run.result.reason if run.result else run.reason
        remedy = Remedy(action="plan with a higher ceiling, or with less work", changes_results=False)
        return _Cause("stopped_at_limit", f"the supervisor stopped the run at its limit: {reason}", (remedy,))
    return None


def _from_signal(case: _Case) -> _Cause | None:
    """The first failed rank was killed and left no exception of its own."""
    first = next((f for f in case.failures if _signal(f) != 15), None)
    number = None if first is None else _signal(first)
    if first is None or number is None or read_error(case.layout, first.rank):
        return None
    cause = signal_cause(number)
    stated = [line for line in case.log.of_kind("traceback", "message") if line.rank in (first.rank, None)]
    if cause is None or (not cause.final and (stated or case.log.of_kind("timeout"))):
        return None
    kernel = [line for line in stated if line.kind == "message" and match_failure(line.text)]
    if kernel and number == 9:
        return None
    return _killed(first, cause)


def _signal(failure: RankFailure) -> int | None:
    """The signal that ended a rank, or that its exit code reports of its child: 137 is 128 + SIGKILL."""
    if failure.signal is not None or failure.exit_code is None:
        return failure.signal
    return signal_of_exit_code(failure.exit_code)


def _killed(failure: RankFailure, cause: SignalCause) -> _Cause:
    name = failure.signal_name or cause.name
    lines = tuple(f"rank {failure.rank}: {_cut(line)}" for line in failure.last_lines if line.strip())[-5:]
    what = f"exit code {failure.exit_code}" if failure.signal is None else f"signal {failure.signal}"
    number = _signal(failure)
    return _Cause(
        cause.cause,
        f"rank {failure.rank} was ended by signal {number} ({name}): {cause.explanation}",
        cause.remedies,
        rank=failure.rank,
        evidence=(f"result.json: rank {failure.rank} {what}", *lines),
    )


def _from_error_file(case: _Case) -> _Cause | None:
    errors = []
    for rank in dict.fromkeys([*case.failed_ranks, *range(case.world_size or 0)]):
        data = read_error(case.layout, rank)
        if data:
            text = f"{data.get('type')}: {data.get('message')}"
            frames = _frames(str(data.get("traceback", "")))
            file = case.layout.error(rank).relative_to(case.layout.root).as_posix()
            errors.append((_time(data.get("time_s")), FailureLine("traceback", file, 1, rank, text, frames=frames)))
    ranked = [line for _, line in sorted(errors, key=lambda item: item[0])]
    return _from_lines(case, [line for line in ranked if not is_consequence(line.text)], ordered=True)


def _from_lines(case: _Case, lines: Sequence[FailureLine], *, ordered: bool = False) -> _Cause | None:
    """The earliest of these statements, explained by its pattern, or by its own words."""
    if not lines:
        return None
    root = lines[0] if ordered else in_time_order(lines, ranks=case.failed_ranks)[0]
    row = match_failure(root.text)
    kernel = _kernel_assertion(case) if "device-side assert" in root.text else None
    if kernel:
        row = match_failure(kernel.text) or row
    if row is None or row.cause == NON_FINITE:
        curve = _from_curves(case) if speaks_of_nan(root.text) else None
        if curve:
            return _Cause(curve.cause, curve.explanation, curve.remedies, curve.rank, root, curve.evidence)
    if row is None:
        where = f" on rank {root.rank}" if root.rank is not None else ""
        when = f" at {root.time}" if root.time else ""
        return _Cause("uncaught_exception", f"{root.text}{where}{when}{_place(root)}", (), root.rank, root)
    if is_memory(row):
        memory = explain_memory(
            row,
            root.text,
            frames=root.frames,
            evaluation_sizes=case.log.evaluation_sizes,
            last_step=_last_step(case.layout),
        )
        return _Cause(memory.cause, memory.explanation, memory.remedies, root.rank, root)
    return _Cause(
        row.cause,
        f"{row.explanation}: {root.text}{_place(root)}",
        row.remedies,
        root.rank,
        root,
        _evidence_of(kernel),
    )


def _kernel_assertion(case: _Case) -> FailureLine | None:
    """The first line in which a GPU kernel said what it asserted: the exception that follows does not."""
    return next((line for line in case.log.of_kind("message") if " Assertion `" in line.text), None)


def _from_printed_signal(case: _Case) -> _Cause | None:
    """What the engine or the scheduler printed of a signal: SIGHUP, SIGINT, or SIGTERM as before a time limit."""
    for line in [*case.log.of_kind("signal"), *case.log.of_kind("secondary")]:
        cause = signal_in_text(line.text)
        if cause:
            words = (
                f"{cause.name}: {cause.explanation}"
                if cause.number is None
                else (f"signal {cause.number} ({cause.name}): {cause.explanation}")
            )
            return _Cause(cause.cause, words, cause.remedies, line.rank, line)
    preempted = next((f for f in case.failures if _signal(f) == 15), None)
    cause = signal_cause(15)
    return _killed(preempted, cause) if preempted and cause and not case.log.of_kind("timeout") else None


def _from_timeouts(case: _Case) -> _Cause | None:
    lines = case.log.of_kind("timeout")
    if not lines:
        return None
    timeout = case.timeout
    silent = timeout.silent or ()
    remedy = Remedy(
        action="look at the log and the data of the rank that did not come; a longer timeout alone is no cure",
        changes_results=False,
    )
    return _Cause("collective_timeout", timeout.words, (remedy,), silent[0] if len(silent) == 1 else None, lines[0])


def _from_curves(case: _Case) -> _Cause | None:
    bad = first_non_finite(iter_run_metrics(case.layout, read_non_finite_lines))
    if bad is None:
        return None
    bad = with_zero_loss(bad, iter_run_metrics(case.layout))
    source = f"{bad.metric.file}:{bad.metric.line}: {bad.metric.record.name} {bad.metric.record.value}"
    if bad.zero_loss:
        check = Remedy(action="check labels and masks: a fully masked batch has loss 0.0", changes_results=False)
        bf16 = Remedy(
            action="train in bf16 instead of fp16", settings={"mixed_precision": "bf16"}, changes_results=True
        )
        return _Cause(
            "zero_loss_nan_gradient",
            bad.words,
            (check, bf16, LEARNING_RATE),
            bad.metric.record.rank,
            evidence=(source,),
        )
    step = bad.metric.record.step
    batch = "the batch that follows it" if step is None else f"the batch of step {step}"
    back = Remedy(action=f"resume from the last good checkpoint and look at {batch}", changes_results=False)
    remedies = (back, LEARNING_RATE, CLIPPING)
    return _Cause(NON_FINITE, bad.words, remedies, bad.metric.record.rank, evidence=(source,))


def _nothing(run: RunRecord, case: _Case) -> _Cause:
    if run.state in (RunState.SUCCEEDED, RunState.RUNNING, RunState.LAUNCHING):
        return _Cause("no_failure", f"the run is {run.state.value} and its evidence shows no failure")
    reason = run.result.reason if run.result else run.reason
    if run.state is RunState.LOST:
        return _Cause("lost", f"the supervisor is gone and left no result: {reason or 'no reason on record'}")
    lines = tuple(f"rank {f.rank}: {_cut(line)}" for f in case.failures[:1] for line in f.last_lines if line.strip())
    lost = [line for line in case.log.of_kind("secondary") if "SIGTERM" not in line.text]
    if lost:
        remedy = Remedy(action="read the logs of the ranks and nodes that are not shown here", changes_results=False)
        words = "another rank or node went away first, and these logs hold only what followed: "
        return _Cause("peer_lost", f"{words}{_cut(lost[0].text)}", (remedy,), lost[0].rank, lost[0])
    return _Cause(
        "unknown",
        f"no known failure fits: {reason or 'no reason on record'}",
        rank=case.failures[0].rank if case.failures else None,
        evidence=lines[-5:],
    )


def _consequences(case: _Case, found: _Cause) -> tuple[str, ...]:
    """What followed from the cause: later failures, and the ranks that then waited in vain."""
    words: list[str] = []
    timeouts = case.log.of_kind("timeout")
    if timeouts and found.cause != "collective_timeout" and case.timeout.waiting:
        words.append(case.timeout.summary)
    for line in case.log.of_kind("traceback", "message"):
        if line == found.root or (found.root and (line.rank, line.text) == (found.root.rank, found.root.text)):
            continue
        absurd = " (no real need for memory: the size is broken)" if is_absurd_request(line.text) else ""
        words.append(f"{_located(line)}{absurd}")
    secondary = case.log.of_kind("secondary")
    if secondary:
        words.append(f"{len(secondary)} secondary messages, such as {_located(secondary[0])}")
    return tuple(words[:_CONSEQUENCES_SHOWN])


def _evidence_of(line: FailureLine | None) -> tuple[str, ...]:
    if line is None:
        return ()
    time = f"{line.time} " if line.time else ""
    return (f"{shown(line.file)}:{line.line}: {time}{_cut(line.text)}",)


def _located(line: FailureLine) -> str:
    return f"{shown(line.file)}:{line.line}: {_cut(line.text)}"


def _cut(text: str) -> str:
    safe = shown(text)
    return safe if len(safe) <= _TEXT_SHOWN else safe[:_TEXT_SHOWN] + " ..."


def _place(line: FailureLine) -> str:
    return f" ({line.frames[-1]})" if line.frames else ""


def _frames(traceback: str) -> tuple[str, ...]:
    frames = []
    for text in traceback.splitlines():
        match = FRAME.match(text)
        if match:
            frames.append(f"{match['file']}:{match['name'] or ''}")
    return tuple(frames)


def _world_size(layout: RunLayout) -> int | None:
    try:
        plan = read_plan(layout)
    except RecordError:
        return None
    return plan.layout.num_processes if plan else None


def _last_step(layout: RunLayout) -> int | None:
    steps = (m.record.step for m in iter_run_metrics(layout, read_recent_lines))
    return max((step for step in steps if step is not None), default=None)


def _time(value: object) -> float:
    return float(value) if isinstance(value, int | float) else float("inf")
