"""`forerun config`: the wizard, a file without questions, and other forms brought into ours."""

import shutil
import sys
from pathlib import Path

from runtime.config.choices import choose
from runtime.config.loader import ConfigFile, dump, load, require_writable, save
from runtime.config.locations import default_path, expanded, find_file
from runtime.config.option_table import table
from runtime.config.resolve import resolve
from runtime.config.wizard import Interview, Machine, default_values
from runtime.env import current_environment
from runtime.errors import ConfigurationError
from runtime.launchers import process
from tools.machine import machine_limits, open_nvml, survey_devices

from .output import fail, say

_HAS_BF16 = "import torch; print(torch.cuda.is_bf16_supported())"


def found_machine() -> Machine:
    """This machine, as the wizard needs it."""
    limits = machine_limits()
    usable = survey_devices(current_environment(), limits, open_nvml).usable
    return Machine(
        num_cpus=limits.num_cpus,
        memory_bytes=limits.memory_total_bytes,
        gpus=tuple(device.name for device in usable),
        has_bf16=bool(usable) and _torch_has_bf16(),
        has_slurm=shutil.which("sbatch") is not None,
    )


def _torch_has_bf16() -> bool:
    done = process.run([sys.executable, "-c", _HAS_BF16], timeout_s=120.0)
    return done.returncode == 0 and done.stdout.strip() == "True"


def ask_and_write(config_file: Path | None) -> int:
    """Hold the interview and write its result; nothing is written before the last answer."""
    path = _target(config_file)
    require_writable(path)
    earlier = _earlier(path)
    say(f"The answers become {path}, which stays as it is until the last one. Return takes what stands in brackets.")
    interview = Interview(
        ask=_read_line, tell=say, machine=found_machine(), earlier=_values(earlier) if earlier is not None else {}
    )
    try:
        values = interview.hold()
    except (EOFError, KeyboardInterrupt):
        say("")
        fail(f"The answers ended half way: {path} {'is as it was' if path.exists() else 'was not written'}.")
        return 1
    _write(path, values)
    return 0


def write_default(config_file: Path | None, mixed_precision: str) -> int:
    """Write a file for this machine without a question; never over another one."""
    path = _target(config_file)
    if path.exists():
        raise ConfigurationError(
            f"{path} exists already", next_step="change it with `forerun config`, or name another with --config-file"
        )
    precision = table()["mixed_precision"].kind
    try:
        word = str(precision.parse(mixed_precision))
    except ValueError:
        raise ConfigurationError(
            f"--mixed-precision {mixed_precision!r}", allowed=precision.allowed, next_step="use one of these"
        ) from None
    _write(path, default_values(found_machine(), mixed_precision=word))
    return 0


def update(config_file: Path | None, output: Path | None) -> int:
    """Bring a file into our form: one of ours in its place, one of Accelerate's as a new file."""
    path = find_file(str(config_file) if config_file else None, current_environment())
    if path is None:
        raise ConfigurationError(
            f"{default_path(current_environment())} does not exist", next_step="name a file with --config-file"
        )
    read = load(path)
    if read.form == "deepspeed":
        raise ConfigurationError(
            f"{path} is a DeepSpeed configuration, which stays as it is",
            next_step="give it to `forerun launch --config-file`",
        )
    target = output or (path if read.form == "forerun" else default_path(current_environment()))
    if read.form != "forerun" and target.exists() and output is None:
        raise ConfigurationError(f"{target} exists already", next_step="name another file with --output")
    _write(target, _values(read))
    return 0


def _target(config_file: Path | None) -> Path:
    path = default_path(current_environment()) if config_file is None else expanded(str(config_file), "--config-file")
    if path.is_dir():
        raise ConfigurationError(f"{path} is a directory", allowed="a file", next_step="correct --config-file")
    return path


def _earlier(path: Path) -> ConfigFile | None:
    """The file that is there, for its answers as proposals."""
    if not path.exists():
        return None
    try:
        return load(path)
    except ConfigurationError as error:
        fail(f"What stands in {path} is not used: {error}")
        return None


def _values(read: ConfigFile) -> dict[str, object]:
    return {name: given.value for name, given in read.values.items()}


def _write(path: Path, values: dict[str, object]) -> None:
    for line in dump(values).splitlines():
        say(f"  {line}")
    save(path, values)
    say(f"Written: {path}")
    used = "" if path == default_path(current_environment()) else f" --config-file {path}"
    say(f"Start with: forerun launch{used} SCRIPT")
    if values.get("distributed_type") == "NO":
        say("It starts one process. For several, choose multi-CPU or multi-GPU as the type of machine.")
    for refusal in choose(resolve([], load(path))).unavailable:
        say(f"Not in this version, so that a launch will be refused: {refusal}")


def _read_line(prompt: str) -> str:
    try:
        return input(prompt)
    except UnicodeDecodeError:
        return "\ufffd"  # no answer of any question
    except (RuntimeError, ValueError) as error:  # stdin is closed
        raise EOFError from error
