"""`forerun test`: does this set-up train? Real jobs by the resolved configuration, and a table of what they showed."""

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import typer

from ..config.choices import choose
from ..env import current_environment
from ..errors import ForerunError
from ..launchers import process
from .launch import check_launch, masked, resolve_launch
from .report import Mask

JOB = Path(__file__).resolve().parents[1] / "selftest" / "job.py"
_JOB_S = 150.0
_CHECKS = ("collectives", "training", "checkpoint")
_STRATEGIES = ("ddp", "fsdp", "deepspeed")
_ASK_MISSING = "import importlib.util as u; print(', '.join(n for n in ('deepspeed',) if u.find_spec(n) is None))"


@dataclass(frozen=True)
class Trial:
    """One job: the options of its launch beside the configuration, and its checks."""

    name: str
    options: Mapping[str, str]
    checks: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """A line of the table; `outcome` is ok, FAILED or not tried."""

    what: str
    check: str
    outcome: str
    detail: str
    seconds: float | None = None


def add_selftest(app: typer.Typer, *, mask: Mask = masked) -> None:
    """Register `test` with a command-line application."""

    def test(
        config_file: str = typer.Option("", "--config-file", "--config_file", help="as for launch"),
        cpu: bool = typer.Option(False, "--cpu", help="leave GPUs out"),
        python: str = typer.Option("", help="the interpreter that trains; default: this one"),
    ) -> None:
        raise typer.Exit(run_selftest(config_file=config_file, cpu=cpu, python=python, mask=mask))

    test.__doc__ = "Start small jobs of one and several processes with the local launcher, and say what works."
    app.command("test")(test)


def run_selftest(*, config_file: str, cpu: bool, python: str, mask: Mask) -> int:
    """Print the table; 0 if all that could be tried works, 1 if something failed, 2 for a wrong configuration."""
    given = {"config_file": config_file, "python": python, "cpu": "true" if cpu else ""}
    texts = {name: text for name, text in given.items() if text}
    began = time.monotonic()
    scratch = Path(tempfile.mkdtemp(prefix="forerun-test-"))
    rows: list[Row] = []
    try:
        for row in _rows(texts, scratch):
            rows.append(row)
            sys.stdout.write(mask(_line(row)) + "\n")
            sys.stdout.flush()
    except ForerunError as error:
        shutil.rmtree(scratch, ignore_errors=True)
        sys.stderr.write(f"error: {mask(str(error))}\n")
        return 2
    failed = [row for row in rows if row.outcome == "FAILED"]
    passed = sum(row.outcome == "ok" for row in rows)
    took = f"{passed} checks passed in {time.monotonic() - began:.0f} s"
    if failed or not passed:
        sys.stdout.write(f"FAILED: {len(failed)} of {len(failed) + passed} checks; logs are in {scratch}\n")
        return 1
    shutil.rmtree(scratch, ignore_errors=True)
    left_out = sum(row.outcome == "not tried" for row in rows)
    sys.stdout.write(f"All that was tried works: {took}" + (f"; {left_out} not tried\n" if left_out else "\n"))
    return 0


def _rows(texts: Mapping[str, str], scratch: Path) -> Iterator[Row]:
    """The table's rows, as the jobs bring them.

    Raises:
        ForerunError: the configuration cannot be used at all.
    """
    configured = resolve_launch(texts, current_environment())
    if (machines := configured.get("num_machines")) > 1:
        yield Row(f"{machines} machines", "", "not tried", "this is a test of one: launch on all of them")
    base = {**texts, "num_machines": "1", "machine_rank": "0"}
    one, device, gaps = _place({**base, "num_processes": "1", "strategy": "single"})
    yield from gaps
    if device == "cpu" and not gaps:
        yield Row("GPU", "", "not tried", "left out by the configuration" if configured.get("cpu") else "none here")
    trials = [Trial(f"1 process, {device}", one, _CHECKS[1:])]
    count = max(2, (configured.get("num_processes") or 2) // machines)
    several, device, gaps = _place({**base, "num_processes": str(count), "strategy": "ddp"})
    yield from gaps
    for strategy in _STRATEGIES:
        options = {**several, "strategy": strategy}
        name = f"{options['num_processes']} processes, {strategy}, {device}"
        refusals = _settle(options)[1] or _missing(strategy, configured.get("python") or sys.executable)
        if refusals:
            yield Row(name, "", "not tried", "; ".join(refusals))
        else:
            trials.append(Trial(name, options, _CHECKS))
    for number, trial in enumerate(trials):
        yield from _try(trial, scratch / f"job{number}")


def _place(options: dict[str, str]) -> tuple[dict[str, str], str, list[Row]]:
    """These options, or on the CPU what this machine's devices are too few for; the device kind; what is left out."""
    device, refusals = _settle(options)
    if not refusals or device == "cpu":
        return options, device, []
    count = int(options["num_processes"])
    row = Row(f"{count} process{'es' * (count > 1)}, {device}", "", "not tried", "; ".join(refusals))
    on_cpu = {**options, "cpu": "true", "num_processes": str(min(count, 2))}
    return on_cpu, "cpu", [row]


def _settle(texts: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """The device kind of such a launch, and why it cannot be started here."""
    resolved = resolve_launch(texts, current_environment())
    checked = check_launch(str(JOB), (), resolved, choices := choose(resolved))
    return choices.device or checked.device, checked.refusals


def _missing(strategy: str, python: str) -> tuple[str, ...]:
    """What the interpreter lacks for a strategy that is a package of its own."""
    if strategy != "deepspeed":
        return ()
    done = process.run([python, "-I", "-c", _ASK_MISSING], timeout_s=60.0)
    lacks = done.stdout.strip()
    return (f"needs {lacks}",) if lacks or done.returncode != 0 else ()


def _try(trial: Trial, folder: Path) -> Iterator[Row]:
    """Launch the job and read what its rank 0 has written."""
    folder.mkdir(parents=True)
    results = folder / "results.jsonl"
    flags = [f"--{name.replace('_', '-')}={text}" for name, text in trial.options.items()]
    words = [*flags, f"--log-dir={folder / 'runs'}", str(JOB), str(results), *trial.checks]
    done = process.run(
        [sys.executable, "-I", "-m", "runtime.cli", "launch", *words],
        timeout_s=_JOB_S,
        working_directory=Path.cwd(),  # a configuration may name files from here
    )
    (folder / "output.log").write_text(done.stdout + done.stderr)
    reports = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    passed = [report for report in reports if report["state"] == "ok"]
    for report in passed:
        yield Row(trial.name, report["check"], "ok", report["detail"], report["seconds"])
    checks = ("start", *trial.checks)
    if done.returncode != 0 or done.timed_out or len(passed) != len(checks):
        said = [line for line in done.stderr.splitlines() if line.strip()]
        why = f"no end within {_JOB_S:g} s" if done.timed_out else (said or [f"exit {done.returncode}"])[-1]
        yield Row(trial.name, checks[min(len(passed), len(checks) - 1)], "FAILED", why)


def _line(row: Row) -> str:
    seconds = "" if row.seconds is None else f"{row.seconds:5.1f} s"
    return f"{row.what:31} {row.check:12} {row.outcome:10} {seconds:8} {row.detail}".rstrip()
