"""`forerun launch`: start a training script on several processes of this machine, by hand."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from .errors import ForerunError
from .foreground import HandLaunch, describe, run
from .launch_checks import DeviceChoice, check, whole_number

LAUNCH_CONTEXT: dict[str, Any] = {"allow_interspersed_args": False}
"""Settings for typer's command(): whatever follows the script is the script's."""


def launch(
    script: Annotated[str, typer.Argument(help="Python script (with -m: module) that every process runs.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGUMENTS]...", help="The script's own, passed on untouched.")
    ] = None,
    num_processes: Annotated[
        str,
        typer.Option("--num-processes", "--num_processes", metavar="N", help="Default 1; with GPU options one a GPU."),
    ] = "",
    cpu: Annotated[bool, typer.Option("--cpu", help="Use no GPU.")] = False,
    multi_gpu: Annotated[bool, typer.Option("--multi-gpu", "--multi_gpu", help="One process for each GPU.")] = False,
    mixed_precision: Annotated[
        str, typer.Option("--mixed-precision", "--mixed_precision", help="no, bf16 or fp16.")
    ] = "",
    main_process_port: Annotated[
        str,
        typer.Option(
            "--main-process-port", "--main_process_port", metavar="PORT", help="A fixed port; 0 chooses a free one."
        ),
    ] = "0",
    gpu_ids: Annotated[str, typer.Option("--gpu-ids", "--gpu_ids", help="GPUs to use, such as 0,2; or all.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", "--dry_run", help="Show the command, start nothing.")] = False,
    log_dir: Annotated[Path, typer.Option("--log-dir", "--log_dir", help="Where the run directory is made.")] = Path(
        "forerun-runs"
    ),
    module: Annotated[bool, typer.Option("-m", "--module", help="The script is a module's name.")] = False,
    python: Annotated[str, typer.Option("--python", help="The interpreter that has torch; default: this one.")] = "",
) -> None:
    """Start a training script on several processes of this machine and show their output.

    The exit code is that of the process that failed first, 128 + number if a signal ended it, and 2 if nothing was
    started because a value is wrong.
    """
    try:
        request = check(
            HandLaunch(
                python=python or sys.executable,
                target=script,
                arguments=tuple(arguments or ()),
                num_processes=1,
                is_module=module,
                port=whole_number(main_process_port, "--main-process-port") or None,
                log_dir=log_dir,
            ),
            num_processes=whole_number(num_processes, "--num-processes") if num_processes else None,
            devices=DeviceChoice(cpu=cpu, multi_gpu=multi_gpu, gpu_ids=gpu_ids),
            mixed_precision=mixed_precision,
        )
        if dry_run:
            sys.stdout.write(describe(request) + "\n")
            code = 0
        else:
            code = run(request)
    except ForerunError as error:
        sys.stderr.write(f"error: {error}\n")
        code = 2
    raise typer.Exit(code)


def add_launch(app: typer.Typer) -> None:
    """Register `launch` with a command-line application."""
    app.command("launch", context_settings=LAUNCH_CONTEXT)(launch)


def main() -> None:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)
    app.callback()(lambda: None)  # so that `launch` stays a word of its own
    add_launch(app)
    app(prog_name="forerun")


if __name__ == "__main__":
    main()
