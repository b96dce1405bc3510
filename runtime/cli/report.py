"""What a launch would be, for a reader: every value with its origin, and each process with its device and variables."""

import shlex
from collections.abc import Callable, Iterator
from typing import TextIO

from ..config.choices import Choices, dims_of
from ..config.option_kinds import write_text
from ..config.option_table import table
from ..config.order import LaunchSpec
from ..config.resolve import Resolved
from .checks import Checked

Mask = Callable[[str], str]
_NOT_A_TERMINAL_WIDTH = 200


def explain(resolved: Resolved, choices: Choices, *, mask: Mask, stream: TextIO) -> None:
    """Print every option that has a value: the value, where it came from, and what it overruled."""
    from rich.console import Console  # here, because a launch does without it
    from rich.table import Table

    console = Console(
        file=stream,
        highlight=False,
        markup=False,
        emoji=False,
        width=None if stream.isatty() else _NOT_A_TERMINAL_WIDTH,
    )
    rows = Table("option", "value", "origin", "where", "overruled", box=None, pad_edge=False)
    for column in rows.columns:
        column.overflow = "fold"
    shown = [(name, value) for name, value in resolved.values.items() if value.value is not None]
    for name, value in shown:
        overruled = ", ".join(f"{write_text(given.value)} ({given.place})" for given in value.overruled)
        cells = (name, write_text(value.value), value.origin, value.place, overruled)
        rows.add_row(*(mask(cell) for cell in cells))
    console.print(rows)
    console.print(f"{len(table()) - len(shown)} more options have no value; --help lists all.")
    for line in _decisions(resolved, choices):
        console.print(mask(line))


def dry_run(resolved: Resolved, choices: Choices, checked: Checked, spec: LaunchSpec, *, mask: Mask) -> Iterator[str]:
    """The lines of a dry run; the last one is the command."""
    yield "dry run: nothing was started"
    yield from (f"  {mask(value.said(name))}" for name, value in resolved.given().items())
    yield from map(mask, _decisions(resolved, choices))
    yield from (mask(f"refused here: {refusal}") for refusal in checked.refusals)
    count, nodes = checked.launch.num_processes, checked.launch.nodes
    world, node = (count, 0) if nodes is None else (count * nodes.num_nodes, nodes.rank)
    dims = dims_of(resolved, choices, world_size=world, local_world_size=count)
    yield f"mesh: data_replicate {dims.data_replicate} x data_shard {dims.data_shard} (each process has its own data)"
    yield f"node {node}, this machine: {count} process{'es' * (count > 1)}"
    port = str(checked.launch.port) if checked.launch.port is not None else "(a free one)"
    for local in range(count):
        rank = node * count + local
        yield f"  rank {rank}: local rank {local}, device {_device(checked, local)}"
        variables = {
            "RANK": rank,
            "LOCAL_RANK": local,
            "WORLD_SIZE": world,
            "LOCAL_WORLD_SIZE": count,
            "MASTER_ADDR": "127.0.0.1" if nodes is None else nodes.address,
            "MASTER_PORT": port if nodes is None else nodes.port,
        }
        yield "    " + " ".join(f"{name}={value}" for name, value in variables.items())
    yield "every rank gets the caller's environment and:"
    for name, value in sorted(spec.environment.items()):
        yield mask(f"{name}={shlex.quote(value)}")
    yield mask(f"in {spec.working_directory}:")
    yield mask(shlex.join(spec.argv))


def file_note(resolved: Resolved, choices: Choices) -> str:
    """One line on the file in use and what of it is overruled; empty without a file."""
    if resolved.file is None:
        return ""
    notes = [
        f"{name} {write_text(given.value)} by {value.place}"
        for name, value in resolved.given().items()
        for given in value.overruled
    ]
    notes += choices.overruled
    said = f" (overruled: {'; '.join(notes)})" if notes else ""
    return f"settings from {resolved.file.path}{said}"


def _decisions(resolved: Resolved, choices: Choices) -> Iterator[str]:
    if resolved.file is not None:
        yield f"file: {resolved.file.path} (form: {resolved.file.form})"
    yield f"device: {choices.device or 'the fastest that is here'}"
    yield f"strategy: {choices.strategy or 'by the number of processes: one single, several ddp'}"
    if choices.batches is not None:
        yield f"batch: {choices.batches.formula or 'open until the script says more'}"
        yield from (f"batch: {line}" for line in choices.batches.derived)
    yield from (f"overruled: {note}" for note in choices.overruled)
    yield from (f"not in this version: {refusal}" for refusal in choices.unavailable)


def _device(checked: Checked, rank: int) -> str:
    if checked.device != "cuda":
        return checked.device
    visible = checked.launch.environment.get("CUDA_VISIBLE_DEVICES", "")
    return f"cuda:{rank}" + (f" (GPU {visible.split(',')[rank]})" if visible else "")
