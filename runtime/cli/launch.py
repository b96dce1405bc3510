"""`forerun launch`: start a training script on several processes of this machine, by hand."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import typer

from ..config.choices import Choices, choose
from ..config.hostfile import apply_hostfile
from ..config.loader import load
from ..config.locations import expanded, find_file
from ..config.machines import node_group
from ..config.resolve import Resolved, from_command_line, from_environment, resolve
from ..env import current_environment
from ..errors import ConfigurationError, ForerunError
from ..masking import redact
from ..supervision.preflight import python_files
from .checks import Checked, check
from .flags import LaunchCommand, knows_options, misplaced, with_options
from .foreground import HandLaunch, preview, run
from .report import Mask, dry_run, explain, file_note

LAUNCH_CONTEXT: dict[str, Any] = {"allow_interspersed_args": False, "help_option_names": ["--help", "-h"]}
"""Settings for typer's command(): whatever follows the script is the script's."""


def resolve_launch(texts: Mapping[str, str], environ: Mapping[str, str]) -> Resolved:
    """Every option, from what was typed, the environment and the file that they name or that lies at home.

    Raises:
        ConfigurationError: something in one of them is wrong.
    """
    typed, variables = from_command_line(texts), from_environment(environ)
    named = typed.values.get("config_file") or variables.values.get("config_file")
    path = find_file(named.value if named else None, environ)
    return apply_hostfile(resolve([typed, variables], load(path) if path is not None else None))


def launch(
    script: str, arguments: tuple[str, ...], texts: Mapping[str, str], *, mask: Mask, separated: bool = False
) -> None:
    """Start a training script on several processes of this machine and show their output.

    A value on the command line wins over its variable FORERUN_NAME, that over the configuration file, that over the
    default; --explain shows which it was. A flag may also be written --flag=true or --flag=false.

    The exit code is that of the process that failed first, 128 + number if a signal ended it, and 2 if nothing was
    started because a value is wrong.
    """
    try:
        resolved = resolve_launch(texts, current_environment())
        choices = choose(resolved)
        if resolved.get("explain"):
            explain(resolved, choices, mask=mask, stream=sys.stdout)
        code = 0
        if resolved.get("dry_run") or not resolved.get("explain"):
            if not separated:
                _require_no_stray(script, arguments, is_module=resolved.get("module"))
            code = _start_or_show(script, arguments, resolved, choices, mask)
    except ForerunError as error:
        sys.stderr.write(f"error: {mask(str(error))}\n")
        code = 2
    raise typer.Exit(code)


def _start_or_show(script: str, arguments: tuple[str, ...], resolved: Resolved, choices: Choices, mask: Mask) -> int:
    checked = check_launch(script, arguments, resolved, choices)
    if resolved.get("dry_run"):
        for line in dry_run(resolved, choices, checked, preview(checked.launch), mask=mask):
            sys.stdout.write(line + "\n")
        return 0
    if checked.refusals:
        raise ConfigurationError("; ".join(checked.refusals), next_step="--dry-run shows the launch as a whole")
    for note in filter(None, [file_note(resolved, choices), _misplaced_note(arguments)]):
        sys.stderr.write(f"forerun: {mask(note)}\n")
    return run(checked.launch)


def check_launch(script: str, arguments: tuple[str, ...], resolved: Resolved, choices: Choices) -> Checked:
    """The launch that these options mean on this machine; raises as check does."""
    nodes = node_group(resolved)
    request = HandLaunch(
        python=str(expanded(resolved.get("python"), "--python")) if resolved.get("python") else sys.executable,
        target=script,
        arguments=arguments,
        num_processes=1,
        is_module=resolved.get("module"),
        port=resolved.get("main_process_port") or None if nodes is None else None,
        log_dir=expanded(resolved.get("log_dir"), "--log-dir"),
        max_restarts=resolved.get("max_restarts"),
        nodes=nodes,
    )
    gpu_ids = resolved.get("gpu_ids") if resolved["gpu_ids"].is_given else ""
    return check(request, choices, gpu_ids=gpu_ids, num_threads=resolved.get("num_cpu_threads_per_process"))


def _require_no_stray(script: str, arguments: tuple[str, ...], *, is_module: bool) -> None:
    """Refuse an option of launch that stands after a script which has no such option: it would change nothing."""
    words = misplaced(arguments)
    if not words or is_module or not Path(script).is_file():
        return
    if not knows_options(_sources(Path(script)), words):
        raise ConfigurationError(
            f"{', '.join(words)} after {script}, which has no such option",
            allowed="options of launch before the script, the script's own after it",
            next_step=f"put {'it' if len(words) == 1 else 'them'} before {script}; "
            f"or write -- before {script} to pass on whatever follows",
        )


def _sources(script: Path) -> Iterator[str]:
    """The text of the script, then those of the files that it may import from its folder."""
    yield script.read_text(errors="replace")
    for path in python_files(script.resolve().parent, skipped=Path("forerun-runs")):
        with contextlib.suppress(OSError):
            yield path.read_text(errors="replace")


def _misplaced_note(arguments: tuple[str, ...]) -> str:
    words = misplaced(arguments)
    if not words:
        return ""
    return f"{', '.join(words)} after the script: the script gets it; options of launch stand before the script"


def masked(text: str) -> str:
    """The mask of a caller who has none: secrets are hidden, control characters become visible."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in redact(text))


def add_launch(app: typer.Typer, *, mask: Callable[[str], str] = masked) -> None:
    """Register `launch` with a command-line application; `mask` makes a text safe to show."""
    command = with_options(partial(launch, mask=mask), document=launch.__doc__)
    app.command("launch", cls=LaunchCommand, context_settings=LAUNCH_CONTEXT)(command)
