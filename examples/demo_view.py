"""What the reader of the demo sees: one rich block for each step's result."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from examples.demo_agent import Result

BARS = "▁▂▃▄▅▆▇█"
TITLES = {
    "environment": ("1", "look", "inspect_environment"),
    "inputs": ("2", "settle the inputs", "validate_inputs"),
    "answers": ("2", "settle the inputs", "answer_questions"),
    "smoke": ("3", "run small", "smoke_test"),
    "estimate": ("4", "estimate", "estimate_cost"),
    "gate": ("4", "launch, too early", "launch_training"),
    "request": ("4", "ask a human", "request_approval"),
    "approval": ("4", "the human's terminal", "forerun approve"),
    "launch": ("4", "launch", "launch_training"),
    "ended": ("4", "watch", "monitor_run"),
    "verification": ("5", "verify", "verify_metrics"),
    "report": ("6", "report", "provenance_report"),
}


class View:
    """Prints each step as it is done."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def show(self, step: str, result: Result) -> None:
        if step == "progress":
            self._progress(result)
            return
        number, title, tool = TITLES[step]
        head = Text.assemble((f" {number} ", "bold white on blue"), f" {title}  ", (tool, "dim"))
        self.console.print(head)
        body = getattr(self, f"_{step}")(result)
        for line in body if isinstance(body, list) else [body]:
            self._indented(line)

    def _indented(self, line: Any) -> None:
        grid = Table.grid(padding=(0, 1))
        grid.add_row("   ", Text(line) if isinstance(line, str) else line)
        self.console.print(grid)

    def _environment(self, result: Result) -> list[Any]:
        devices = [f"{d['name']} ({d['kind']})" for d in result.get("devices", ())]
        packages = result.get("packages", {})
        return [
            f"{result['num_cpus']} CPUs, {result['memory_free_gib']} GiB memory free, "
            f"accelerators: {', '.join(devices) or 'none'}",
            f"Python {result['python_version']}, torch {packages.get('torch', 'not found')}",
            *(f"{path['path'].rpartition('/')[2]}: {path['size_bytes']:,} bytes" for path in result["paths"]),
        ]

    def _inputs(self, result: Result) -> list[Any]:
        processes = f", processes: {result['processes']}" if "processes" in result else ""
        return [
            f"{result['plan_id']} is {result['state']}{processes}",
            *(f"question [{q['id']}] {q['text']}" for q in result.get("questions", ())),
            *(Text(finding, style="yellow") for finding in result.get("findings", ())),
        ]

    _answers = _inputs

    def _smoke(self, result: Result) -> list[Any]:
        smoke = result.get("smoke", {})
        checks = [
            Text.assemble(mark(text), f" {name}: ", detail(text)) for name, text in smoke.get("checks", {}).items()
        ]
        return [f"{result['run_id']}: {smoke.get('verdict', result['state'])}", *checks]

    def _estimate(self, result: Result) -> list[Any]:
        return [
            f"time {ranged(result['wall_time_s'], 's')}, memory {ranged(result['memory_bytes'], 'GiB', 2**30)}, "
            f"cost {ranged(result['cost'], result.get('currency', ''))}",
            *(Text(f"unknown: {text}", style="dim") for text in result.get("unknown", ())),
        ]

    def _gate(self, result: Result) -> list[Any]:
        return [Text.assemble(("refused ", "bold red"), "; ".join(result["missing"]))]

    def _request(self, result: Result) -> list[Any]:
        return [f"{result['request_id']}, open until {result['expires']}", Text(f"$ {result['command']}", style="bold")]

    def _approval(self, result: Result) -> list[Any]:
        text = "\n".join(essential_lines(result["shown"].strip().splitlines()))
        return [Panel(Text(text), title="what the human saw and typed", border_style="dim")]

    def _launch(self, result: Result) -> list[Any]:
        return [f"{result['run_id']} is {result['state']}"]

    def _progress(self, result: Result) -> None:
        step, total, loss = result.get("step"), result.get("total_steps"), result.get("loss")
        if step is not None and loss is not None:
            self._indented(f"step {step} of {total or 'unknown'}, loss {loss:.4f}, {seconds(result)}")

    def _ended(self, result: Result) -> list[Any]:
        return [f"{result['run_id']}: {result['state']} after {seconds(result)}"]

    def losses(self, values: Sequence[float]) -> None:
        """The loss of the run as a small curve."""
        if values:
            curve = Text(sparkline(values), style="cyan")
            self._indented(Text.assemble("loss ", curve, f" {values[0]:.3f} -> {values[-1]:.3f}, {len(values)} steps"))

    def _verification(self, result: Result) -> list[Any]:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for column in ("metric", "value", "95 % interval", "difference to the model", "p (Holm)"):
            table.add_column(column)
        for metric in result["metrics"]:
            name = f"{metric['name']} (n={metric['n']})"
            table.add_row(name, Text(f"{metric['value']:.4f}", style="bold green"), interval(metric), "", "")
        for row in result.get("comparisons", ()):
            difference = row["difference"]
            shown = f"{difference['value']:+.4f} ({difference['low']:+.4f} to {difference['high']:+.4f})"
            values = (f"{row['value']:.4f}", interval(row), shown, f"{row['p_adjusted']:.2g}")
            table.add_row(f"  {row['baseline']} baseline", *values)
        return [table, *(row["conclusion"] for row in result.get("comparisons", ()))]

    def _report(self, result: Result) -> list[Any]:
        return [
            f"{result['num_claims']} claims with evidence, signed; not verified:",
            *(Text(f"- {text}", style="dim") for text in result.get("not_verified", ())),
            *(Text(f"unsupported: {text}", style="bold red") for text in result.get("unsupported", ())),
        ]


def essential_lines(lines: Sequence[str]) -> list[str]:
    """What a human looks at first, and all that was typed; the rest is counted."""
    words = (
        "***",
        "APPROVAL REQUEST",
        "Reason",
        "Script",
        "Processes",
        "Smoke run",
        "  passed",
        "  not_shown",
        "Time:",
    )
    words += ("Memory:", "Cost:", "Ceilings:", "Plan digest", "Request digest")
    typed = next((i for i, line in enumerate(lines) if line.startswith("Cost, as shown")), len(lines))
    kept = [line for line in lines[:typed] if line.startswith(words)]
    left_out = typed - len(kept)
    return [
        *kept,
        f"(and {left_out} more lines: code, data, environment, settings; all of it is in the audit log)",
        *lines[typed:],
    ]


def mark(check: str) -> Text:
    """A sign for 'passed: ...', the outcome itself for anything else."""
    outcome = check.partition(":")[0]
    return Text("+", style="green") if outcome == "passed" else Text(outcome, style="bold red")


def detail(check: str) -> str:
    return check.partition(": ")[2]


def seconds(result: Result) -> str:
    elapsed = result.get("elapsed_s")
    return "time unknown" if elapsed is None else f"{elapsed:.1f} s"


def interval(values: Result) -> str:
    return f"{values['low']:.4f} to {values['high']:.4f}"


def ranged(values: Result | str, unit: str, divisor: float = 1.0) -> str:
    if isinstance(values, str):
        return values
    low, value, high = (values[name] / divisor for name in ("low", "value", "high"))
    return f"{value:.3g} {unit} ({low:.3g} to {high:.3g})"


def sparkline(values: Sequence[float], width: int = 60) -> str:
    """`values` averaged into at most `width` bars between their least and greatest."""
    size = max(1, -(-len(values) // width))
    means = [sum(values[i : i + size]) / len(values[i : i + size]) for i in range(0, len(values), size)]
    low, high = min(means), max(means)
    span = (high - low) or 1.0
    return "".join(BARS[round((mean - low) / span * (len(BARS) - 1))] for mean in means)
