"""Every command of `forerun`, with its options; what each one does lies in the module that it imports.

The imports stand inside the commands, because `forerun serve` must answer its client at once: no command pays for
the database, cryptography and numerics of another.
"""

import sys
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from runtime.errors import ConfigurationError, ForerunError
from tools.domain.errors import InvalidInput, NotFound

from .checkpoint import checkpoint_app, merge_weights

app = typer.Typer(
    name="forerun",
    help="Distributed PyTorch training by the book: run small first, launch what a human approved, verify, report.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
keys_app = typer.Typer(no_args_is_help=True, help="Keys of the humans who may approve.")
audit_app = typer.Typer(no_args_is_help=True, help="The audit log.")
policy_app = typer.Typer(no_args_is_help=True, help="Which launches need which approval, and what they may cost.")
prices_app = typer.Typer(no_args_is_help=True, help="The prices by which costs are estimated.")
config_app = typer.Typer(invoke_without_command=True, help="The configuration file of `forerun launch`.")
app.add_typer(config_app, name="config")
app.add_typer(checkpoint_app, name="checkpoint")
app.command("merge-weights")(merge_weights)
app.add_typer(keys_app, name="keys")
app.add_typer(audit_app, name="audit")
app.add_typer(policy_app, name="policy")
app.add_typer(prices_app, name="prices")

_WITHOUT_SETTINGS = ("checkpoint", "merge-weights")

RunId = Annotated[str, typer.Argument(metavar="RUN", help="run id, run-...")]
RequestId = Annotated[str, typer.Argument(metavar="REQUEST_ID", help="request id, req-...")]
YamlFile = Annotated[Path, typer.Argument(metavar="FILE", help="a YAML file")]
KeyOption = Annotated[str, typer.Option("--key", help="which of your keys, by the start of its id")]


def main() -> None:
    """The console script: a refusal is one paragraph and an exit code, 2 for bad input and 1 for everything else."""
    try:
        if sys.argv[1:2] == ["launch"]:  # it reads no settings of the server, and its start is measured
            launch_by_hand(sys.argv[1:])
        app()
    except ForerunError as error:
        from .output import fail

        fail(str(error))
        sys.exit(2 if isinstance(error, InvalidInput | NotFound | ConfigurationError) else 1)
    except OSError as error:
        from .output import fail

        fail(f"{error.strerror or error}: {error.filename or ''}")
        sys.exit(1)


@app.callback()
def options(
    context: typer.Context,
    state_dir: Annotated[Path | None, typer.Option(help="instead of FORERUN_STATE_DIR")] = None,
    keys_dir: Annotated[Path | None, typer.Option(help="instead of FORERUN_KEYS_DIR")] = None,
) -> None:
    if context.invoked_subcommand in _WITHOUT_SETTINGS:
        return
    from agent_server.settings import load_settings

    context.obj = load_settings(state_dir=state_dir, keys_dir=keys_dir)


@app.command()
def serve(
    context: typer.Context,
    root: Annotated[list[Path], typer.Option(help="a directory in which agents may name files; repeatable")],
) -> None:
    """Serve MCP on stdin and stdout, for an agent's client to start."""
    from agent_server.mcp_api.server import serve as serve_stdio
    from tools.domain.paths import AllowedRoots

    serve_stdio(context.obj, AllowedRoots.of(root))


# Its options are runtime.cli's own business: everything after `launch` goes there untouched.
_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}


@app.command(add_help_option=False, context_settings=_PASS_ON)
def launch(context: typer.Context) -> None:
    """Start a training script on several processes by hand, without plan or approval."""
    launch_by_hand(["launch", *context.args])


def launch_by_hand(words: list[str]) -> NoReturn:
    """Hand these words over to `runtime.cli`; ends the process."""
    from runtime.cli.launch import add_launch
    from tools.text import shown

    launcher = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    launcher.callback()(lambda: None)  # so that `launch` stays a word of its own
    add_launch(launcher, mask=shown)
    launcher(words, prog_name="forerun")
    sys.exit(0)


ConfigFile = Annotated[
    Path | None, typer.Option("--config-file", "--config_file", help="instead of ~/.config/forerun/config.yaml")
]


@config_app.callback()
def config(context: typer.Context, config_file: ConfigFile = None) -> None:
    """Answer questions, and get the configuration file of `forerun launch`."""
    if context.invoked_subcommand is None:
        from . import configuration as commands

        raise typer.Exit(commands.ask_and_write(config_file))
    if config_file is not None:
        name = context.invoked_subcommand
        raise ConfigurationError(f"--config-file before {name}", next_step=f"write it after {name}")


@config_app.command("default")
def config_default(
    config_file: ConfigFile = None,
    mixed_precision: Annotated[
        str, typer.Option("--mixed-precision", "--mixed_precision", help="no, bf16, fp16 or fp8")
    ] = "no",
) -> None:
    """Write a configuration file for this machine without a question."""
    from . import configuration as commands

    raise typer.Exit(commands.write_default(config_file, mixed_precision))


@config_app.command("update")
def config_update(
    config_file: ConfigFile = None,
    output: Annotated[Path | None, typer.Option(help="instead of the file itself, or for one of another form")] = None,
) -> None:
    """Bring a configuration file into the present form, one of Accelerate's too."""
    from . import configuration as commands

    raise typer.Exit(commands.update(config_file, output))


@app.command()
def env(
    config_file: ConfigFile = None,
    python: Annotated[str, typer.Option(help="the interpreter that trains; default: this one")] = "",
) -> None:
    """Print what belongs into an issue: versions, devices, configuration; secrets are masked."""
    from . import environment as commands

    raise typer.Exit(commands.print_report(python, config_file))


@app.command("test")
def self_test(
    config_file: ConfigFile = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="leave GPUs out")] = False,
    python: Annotated[str, typer.Option(help="the interpreter that trains; default: this one")] = "",
) -> None:
    """Start small jobs of one and several processes, and say what of this set-up works. Takes up to two minutes."""
    from runtime.cli.selftest import run_selftest
    from tools.text import shown

    raise typer.Exit(run_selftest(config_file=str(config_file or ""), cpu=cpu, python=python, mask=shown))


@app.command()
def approvals(context: typer.Context) -> None:
    """List what agents have asked for, newest first."""
    from . import approvals as commands

    commands.list_requests(context.obj)


@app.command()
def approve(context: typer.Context, request_id: RequestId, key: KeyOption = "") -> None:
    """Read a plan and its cost, and approve it. Needs a terminal, and your passphrase."""
    from . import approvals as commands

    commands.approve(context.obj, request_id, key_prefix=key)


@app.command()
def refuse(context: typer.Context, request_id: RequestId, key: KeyOption = "") -> None:
    """Refuse a request, with a reason. Needs a terminal, and your passphrase."""
    from . import approvals as commands

    commands.refuse(context.obj, request_id, key_prefix=key)


@app.command()
def runs(context: typer.Context, limit: Annotated[int, typer.Option(min=1, max=1000)] = 20) -> None:
    """List runs, newest first."""
    from . import runs as commands

    commands.list_runs(context.obj, limit=limit)


@app.command()
def logs(
    context: typer.Context,
    run_id: RunId,
    rank: Annotated[int, typer.Option(min=0)] = 0,
    stream: Annotated[Literal["stdout", "stderr", "engine"], typer.Option()] = "stdout",
    pattern: Annotated[str, typer.Option(help="only lines that contain this, whatever the case")] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="go on until the run ends")] = False,
) -> None:
    """Print one rank's log."""
    from . import runs as commands

    commands.print_logs(context.obj, run_id, rank=rank, stream=stream, pattern=pattern, follow=follow)


@app.command()
def cancel(context: typer.Context, run_id: RunId) -> None:
    """Stop a run and everything that it started."""
    from . import runs as commands

    commands.cancel(context.obj, run_id)


@app.command()
def wait(
    context: typer.Context,
    id_: Annotated[str, typer.Argument(metavar="ID", help="a plan, request or run")],
    timeout: Annotated[float, typer.Option(min=0, help="seconds; exit code 1 when they are over")] = 86_400.0,
) -> None:
    """Wait until a request is decided or a run has ended, and print how."""
    from . import runs as commands

    raise typer.Exit(commands.wait(context.obj, id_, timeout_s=timeout))


@app.command()
def report(
    context: typer.Context,
    run_id: RunId,
    summary: Annotated[str, typer.Option(help="a text whose numbers are checked against the evidence")] = "",
    verify: Annotated[bool, typer.Option("--verify", help="check the one that was written instead")] = False,
) -> None:
    """Write the provenance report of an ended run and print where it lies."""
    from . import runs as commands

    if verify:
        raise typer.Exit(commands.verify_written_report(context.obj, run_id))
    commands.report(context.obj, run_id, summary=summary)


@keys_app.command("enroll")
def keys_enroll(context: typer.Context, name: Annotated[str, typer.Option(help="the approver's name")]) -> None:
    """Make a key pair; whoever has its passphrase may approve. Needs a terminal."""
    from . import keys as commands

    commands.enroll_key(context.obj, name)


@keys_app.command("list")
def keys_list(context: typer.Context) -> None:
    """List the enrolled keys, removed ones too."""
    from . import keys as commands

    commands.list_keys(context.obj)


@keys_app.command("remove")
def keys_remove(context: typer.Context, key: Annotated[str, typer.Argument(help="the start of its id")]) -> None:
    """Remove a key: what it approved and did not launch yet is void. Needs a terminal."""
    from . import keys as commands

    commands.remove_key(context.obj, key)


@policy_app.command("check")
def policy_check(context: typer.Context, file: YamlFile) -> None:
    """Say everything that is wrong with a policy file, or what it would change."""
    from .documents import check_document

    check_document(context.obj, "policy", file)


@policy_app.command("apply")
def policy_apply(context: typer.Context, file: YamlFile, key: KeyOption = "") -> None:
    """Sign a policy, so that it counts. Needs a terminal, and your passphrase."""
    from .documents import apply_document

    apply_document(context.obj, "policy", file, key_prefix=key)


@policy_app.command("explain")
def policy_explain(
    context: typer.Context, plan_id: Annotated[str, typer.Argument(metavar="[PLAN_ID]", help="a plan, plan-...")] = ""
) -> None:
    """Show the policy that counts, or why a plan needs which level."""
    from .policy import explain

    explain(context.obj, plan_id)


@prices_app.command("check")
def prices_check(context: typer.Context, file: YamlFile) -> None:
    """Say everything that is wrong with a price file, or what it would change."""
    from .documents import check_document

    check_document(context.obj, "prices", file)


@prices_app.command("apply")
def prices_apply(context: typer.Context, file: YamlFile, key: KeyOption = "") -> None:
    """Sign a price list, so that it counts. Needs a terminal, and your passphrase."""
    from .documents import apply_document

    apply_document(context.obj, "prices", file, key_prefix=key)


@prices_app.command("show")
def prices_show(
    context: typer.Context, file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="a YAML file")] = None
) -> None:
    """Show the prices that count, or those of a file."""
    from .policy import show_prices

    show_prices(context.obj, file)


@audit_app.command("verify")
def audit_verify(context: typer.Context) -> None:
    """Check the hash chain, every record against it, and every signature; exit code 1 if something does not fit."""
    from . import audit as commands

    raise typer.Exit(commands.verify(context.obj))


@app.command("init-demo")
def init_demo(directory: Annotated[Path, typer.Argument(help="a new state directory")]) -> None:
    """Make a state directory for simulated approvals, which count nowhere else."""
    from . import demo as commands

    commands.init_demo(directory)


@app.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as installed_version

    from .output import say

    say(f"forerun {installed_version('forerun')}")


if __name__ == "__main__":
    main()
