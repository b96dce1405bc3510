"""`forerun checkpoint inspect`, `verify` and `prune`, and `forerun merge-weights`: looking after saved state.

Only merge-weights needs torch; the others read manifests and indexes.
"""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from runtime.errors import CheckpointError, ConfigurationError, MissingDependencyError

checkpoint_app = typer.Typer(no_args_is_help=True, help="Checkpoints: what they hold, whether they are whole, pruning.")

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="a checkpoint, or a directory of checkpoints")]
AsJson = Annotated[bool, typer.Option("--json", help="one JSON document instead of tables")]

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@checkpoint_app.command("inspect")
def inspect_command(
    directory: Directory,
    as_json: AsJson = False,
    tensors: Annotated[bool, typer.Option(help="list every tensor")] = True,
) -> None:
    """Show what a checkpoint holds; of a directory of checkpoints, all of them and what the newest holds."""
    from runtime.checkpoint.inspection import inspect, list_checkpoints

    found = inspect(directory)
    listed = list_checkpoints(directory) if found.directory != directory else []
    if as_json:
        document = _document(found, tensors=tensors)
        document["checkpoints"] = [
            {"path": str(path), "iteration": m.iteration, "optimizer_steps": m.optimizer_steps} for path, m in listed
        ]
        _print_json(document)
        raise typer.Exit(1 if found.missing else 0)
    from .output import fail, say, table

    if listed:
        rows = [
            (path.name, str(m.iteration), str(m.optimizer_steps), _size(m.size_bytes), _when(m.saved_at_s))
            for path, m in listed
        ]
        table("Checkpoints, oldest first", ("name", "iteration", "steps", "size", "saved"), rows, empty="")
    table(str(found.directory), ("what", "value"), _facts(found), empty="")
    table("Parts", ("part", "kind"), sorted(found.parts.items()), empty="No parts.")
    if tensors:
        rows_of_tensors = [(t.name, t.dtype, str(list(t.shape))) for t in found.tensors]
        table("Tensors", ("name", "dtype", "shape"), rows_of_tensors, empty="No tensors.")
    else:
        say(f"{len(found.tensors)} tensors")
    for name in found.missing:
        fail(f"{name} is missing, or cut")
    raise typer.Exit(1 if found.missing else 0)


@checkpoint_app.command("verify")
def verify_command(directory: Directory, as_json: AsJson = False) -> None:
    """Compare every file with its CRC-32 and SHA-256; each wrong one is named, and the exit code is 1."""
    from runtime.checkpoint.inspection import check_files, targets

    results: list[tuple[Path, list[Any], str]] = []
    for target in targets(directory):
        try:
            results.append((target, list(check_files(target)), ""))
        except CheckpointError as error:
            results.append((target, [], str(error)))
    failed = any(problem or any(check.problem for check in checks) for _, checks, problem in results)
    if as_json:
        _print_json(
            {
                "ok": not failed,
                "checkpoints": [
                    {"path": str(target), "problem": problem, "files": [vars(check) for check in checks]}
                    for target, checks, problem in results
                ],
            }
        )
        raise typer.Exit(1 if failed else 0)
    from .output import fail, say

    for target, checks, problem in results:
        wrong = [check for check in checks if check.problem]
        for check in wrong:
            fail(f"{target}: {check.path} {check.problem}")
        if problem:
            fail(problem)
        if not wrong and not problem:
            without = sum(not check.sha256 for check in checks)
            note = f"; of {without} of them only the CRC-32 is known" if without else ""
            say(f"{target}: {len(checks)} files are as they were saved{note}", style="green")
    raise typer.Exit(1 if failed else 0)


@checkpoint_app.command("prune")
def prune_command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="a directory of automatically named checkpoints")],
    keep: Annotated[int, typer.Option(min=1, help="how many of the newest complete ones stay")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what would go, and delete nothing")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False,
) -> None:
    """Delete the oldest automatically named checkpoints; asks first. Incomplete ones are left alone."""
    from runtime.checkpoint.inspection import root_of
    from runtime.checkpoint.selection import complete_checkpoints, prune, surplus

    from .output import say

    root = root_of(directory)
    known = dict(complete_checkpoints(root))
    if not known:
        raise CheckpointError(
            f"no complete checkpoint below {directory}",
            allowed="the directory in which checkpoint_0, checkpoint_1, ... lie",
            next_step="give that directory",
        )
    doomed = surplus(root, keep=keep)
    for path in doomed:
        say(f"{'would delete' if dry_run else 'to delete'}: {path} ({_size(known[path].size_bytes)})")
    say(f"{len(doomed)} of {len(known)} complete checkpoints go, {len(known) - len(doomed)} stay")
    if dry_run or not doomed:
        return
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigurationError(
                "nobody to ask: the input is no terminal", allowed="--yes", next_step="add --yes, or --dry-run"
            )
        if not typer.confirm("Delete them?", default=False):
            say("Nothing was deleted.")
            raise typer.Exit(1)
    for path in prune(root, keep=keep):
        say(f"deleted {path}")


def merge_weights(
    checkpoint_directory: Annotated[
        Path, typer.Argument(metavar="CHECKPOINT_DIR", help="of forerun, torch, Accelerate or DeepSpeed")
    ],
    output_path: Annotated[Path, typer.Argument(metavar="OUTPUT", help="a directory for the weights")],
    model: Annotated[int, typer.Option(min=0, help="which, where several were prepared")] = 0,
    max_shard_size: Annotated[
        str, typer.Option("--max-shard-size", "--max_shard_size", help="of a file: bytes, 5GB, 500MiB")
    ] = "5GB",
    unsafe_serialization: Annotated[
        bool, typer.Option("--unsafe-serialization", "--unsafe_serialization", help="pytorch_model.bin instead")
    ] = False,
) -> None:
    """Write the whole weights of a sharded checkpoint as safetensors, one shard in memory at a time."""
    try:
        from runtime.checkpoint.export import write_weights
        from runtime.checkpoint.inspection import root_of
        from runtime.checkpoint.merging import find_weights
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"merge-weights needs the package {error.name}", next_step='pip install "forerun[train]"'
        ) from error

    from .output import say

    found = find_weights(root_of(checkpoint_directory), model=model)
    if output_path.resolve() == found.source.resolve():
        raise ConfigurationError(
            f"{output_path} is the checkpoint itself", allowed="another directory", next_step="choose one"
        )
    target = write_weights(
        found.weights, output_path, rest=found.rest, max_shard_size=max_shard_size, safe=not unsafe_serialization
    )
    size_bytes = sum(weight.size_bytes for weight in found.weights)
    say(f"{target}: {len(found.weights)} tensors, {_size(size_bytes)}, of {found.source} ({found.written_by})")
    for weight in found.weights:
        for alias in weight.aliases:
            say(f"{alias} is tied to {weight.name}")
    for note in found.notes:
        say(note)


def _facts(found: Any) -> list[tuple[str, str]]:
    m = found.manifest
    with_sha = sum(file.sha256 is not None for file in m.files)
    return [
        ("iteration", str(m.iteration)),
        ("optimizer steps", str(m.optimizer_steps)),
        ("world size", str(m.world_size)),
        ("strategy", f"{m.strategy} ({'replicated' if m.replicated else 'sharded'})"),
        ("saved", _when(m.saved_at_s)),
        ("size", f"{_size(m.size_bytes)} in {len(m.files)} files"),
        ("SHA-256", "of all files" if with_sha == len(m.files) else f"of {with_sha} of {len(m.files)} files"),
        ("random states of ranks", ", ".join(map(str, found.rng_ranks)) or "none"),
        ("plan digest", m.plan_digest or "none"),
        *((f"version of {name}", value or "unknown") for name, value in m.versions.items()),
    ]


def _document(found: Any, *, tensors: bool) -> dict[str, Any]:
    document = {
        "path": str(found.directory),
        **found.manifest.as_dict(),
        "size_bytes": found.manifest.size_bytes,
        "parts": found.parts,
        "rng_ranks": list(found.rng_ranks),
        "missing": list(found.missing),
    }
    if tensors:
        document["tensors"] = [{"name": t.name, "dtype": t.dtype, "shape": list(t.shape)} for t in found.tensors]
    return document


def _print_json(document: dict[str, Any]) -> None:
    """ASCII alone: every other character of a file's name is escaped."""
    sys.stdout.write(json.dumps(document, indent=1, ensure_ascii=True) + "\n")


def _size(size_bytes: int) -> str:
    size = float(size_bytes)
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            break
        size /= 1024
    return f"{size:.4g} {unit}"


def _when(time_s: float) -> str:
    try:
        return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, OSError, ValueError):
        return f"{time_s} s after 1970"
