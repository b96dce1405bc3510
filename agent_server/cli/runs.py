"""`forerun runs`, `logs`, `cancel`, `wait` and `report`: looking after runs without an agent."""

import json
import time
from pathlib import Path

from agent_server.container import Container, build
from agent_server.procedure import Status
from agent_server.procedure.report_key import load_report_key
from agent_server.procedure.spending import elapsed, spent_on, totals
from agent_server.settings import Settings
from runtime.layout import RunLayout
from tools.domain.errors import NotFound, Refused
from tools.domain.ids import require_id
from tools.domain.paths import AllowedRoots
from tools.domain.run_state import RunRecord, RunState
from tools.provenance_report import verify_report
from tools.read_logs import Stream
from tools.report.paths import ReportPaths
from tools.signatures import public_pem

from .opening import user_name
from .output import ago, fail, say, table

_WAIT_S = 20.0
_FOLLOW_S = 0.5
_PAGE_LINES = 500
_STYLES = {RunState.SUCCEEDED: "green", RunState.RUNNING: "cyan", RunState.LAUNCHING: "cyan"}


def list_runs(settings: Settings, *, limit: int) -> None:
    """The newest runs, as their directories say they are now."""
    container = _container(settings)
    container.reconciler.reconcile_all()
    now_s = time.time()
    runs = container.store.runs(limit=limit)
    spent = spent_on(container.store, runs, now_s=max(now_s, container.store.latest_time_s()))
    rows = [
        (
            r.run_id,
            r.kind,
            r.state.value,
            r.plan_id,
            ago(now_s - r.created_at_s),
            _elapsed(r),
            spent[r.run_id].words(),
            "; ".join(words for words in (r.reason, spent[r.run_id].note) if words),
        )
        for r in runs
    ]
    columns = ("run", "kind", "state", "plan", "age", "took", "spent", "reason")
    table("Runs", columns, rows, empty="There are no runs yet.")
    if runs:
        executed = sum((elapsed(r) or 0.0) > 0 for r in runs)
        say(f"{len(runs)} runs, {executed} of them executed. Spent: {totals(list(spent.values()))}")


def print_logs(settings: Settings, run_id: str, *, rank: int, stream: Stream, pattern: str, follow: bool) -> None:
    """Lines of a log in order; with `follow`, until the run has ended and the log is read."""
    require_id(run_id, "run")
    procedure = _container(settings).procedure
    cursor = ""
    while True:
        ended = procedure.status(run_id).settled  # asked first: what is written before the end is still read
        page = procedure.logs(run_id, rank=rank, cursor=cursor, pattern=pattern, max_lines=_PAGE_LINES, stream=stream)
        for line in page.lines:
            say(line)
        cursor = page.cursor
        if not page.at_end:
            continue
        if ended or not follow:
            if page.note:
                fail(page.note)
            return
        time.sleep(_FOLLOW_S)


def cancel(settings: Settings, run_id: str) -> None:
    """Stop the run and say how it ended."""
    require_id(run_id, "run")
    run = _container(settings).procedure.cancel(run_id, user_name())
    say(f"{run.run_id} is {run.state.value}" + (f": {run.reason}" if run.reason else ""))


def wait(settings: Settings, id_: str, *, timeout_s: float) -> int:
    """Block until nothing more will change; 0 then, 1 if the time is over first."""
    procedure = _container(settings).procedure
    deadline = time.monotonic() + timeout_s
    while True:
        status = procedure.wait(id_, min(_WAIT_S, max(0.0, deadline - time.monotonic())))
        if status.settled or time.monotonic() >= deadline:
            break
    say(_words(status), style=_STYLES.get(status.run.state, "yellow") if status.run else "")
    return 0 if status.settled else 1


def report(settings: Settings, run_id: str, *, summary: str) -> None:
    """Write the report and say where it lies, and what it cannot vouch for."""
    require_id(run_id, "run")
    written = _container(settings).procedure.report(run_id, summary)
    say(f"Report:   {written.html_path}")
    say(f"Markdown: {written.markdown_path}")
    say(f"JSON:     {written.json_path} (sha256 {written.sha256})")
    say(f"{written.num_claims} claims with evidence; not verified: {len(written.not_verified)}")
    for item in written.not_verified:
        say(f"  {item.id}: {item.reason}", style="yellow")
    for claim in written.unsupported_claims:
        say(f"  unsupported in the summary: {claim}", style="red")


def verify_written_report(settings: Settings, run_id: str) -> int:
    """Check the report that was written; the exit code is 1 if a file differs from what was signed or is gone.

    Raises:
        NotFound: there is no report yet.
        Refused: the signature does not fit.
    """
    require_id(run_id, "run")
    run = _container(settings).store.run(run_id)
    paths = ReportPaths(RunLayout(Path(run.run_dir)).report)
    if run.report is None or not paths.envelope.is_file():
        raise NotFound(f"run {run_id} has no report yet", next_step=f"forerun report {run_id}")
    try:
        envelope = json.loads(paths.envelope.read_bytes())
    except ValueError as error:
        raise Refused(f"{paths.envelope} is no JSON") from error
    found = verify_report(envelope, public_pem(load_report_key(settings.report_key)))
    for outcome in ("changed", "missing"):
        for name in found[outcome]:
            fail(f"{outcome}: {name}")
    for name in found["not_compared"]:
        say(f"not compared: {name}", style="yellow")
    if not found["ok"]:
        return 1
    say(f"The signature by {found['signed_by']} and {found['num_checked']} digests fit: {paths.html}", style="green")
    return 0


def _container(settings: Settings) -> Container:
    """Store, procedure and reconciler; no roots, since no command here takes an agent's path."""
    return build(settings, AllowedRoots(()))


def _words(status: Status) -> str:
    words = f"{status.id} is {status.state}"
    if status.run is not None and status.run.reason:
        words += f": {status.run.reason}"
    return words


def _elapsed(run: RunRecord) -> str:
    return ago(run.result.elapsed_s) if run.result else ""
