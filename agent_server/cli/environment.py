"""`forerun env`: what somebody who is to help must know, to be pasted into an issue, without secrets."""

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from runtime.config.loader import load
from runtime.config.locations import find_file
from runtime.config.option_kinds import write_text
from runtime.env import current_environment
from runtime.errors import ConfigurationError
from tools.domain.reports import EnvironmentReport
from tools.inspect_environment import inspect_environment
from tools.text import shown

_PACKAGES = ("torch", "numpy", "deepspeed", "torchao", "accelerate", "transformers", "mcp", "pydantic", "typer")
_PREFIXES = ("FORERUN_", "NCCL_", "GLOO_", "TORCH_", "OMP_", "CUDA_", "MASTER_", "SLURM_JOB", "SLURM_NNODES")


def print_report(python: str, config_file: Path | None) -> int:
    """Print the report; what could not be found out is said as unknown."""
    environ = current_environment()
    report = inspect_environment(python=python or sys.executable, paths=[])
    for line in lines(report, environ, config_file):
        sys.stdout.write(f"{line}\n")
    return 0


def lines(report: EnvironmentReport, environ: Mapping[str, str], config_file: Path | None) -> Iterator[str]:
    """The report's lines, every outside text made safe."""
    yield f"- forerun: {_version('forerun')} at {shown(shutil.which('forerun') or sys.argv[0])}"
    yield f"- platform: {shown(report.platform)}"
    yield f"- python: {report.python_version or 'unknown'} at {shown(report.python)}"
    for name in _PACKAGES:
        yield f"- {name}: {shown(report.packages.get(name, 'not installed'))}"
    total, free = report.memory_total_bytes / 2**30, report.memory_available_bytes / 2**30
    yield f"- CPUs: {report.num_cpus} ({report.cpu_source})"
    yield f"- memory: {total:.1f} GiB, {free:.1f} GiB available ({report.memory_source})"
    yield f"- driver: {report.driver_version or 'none'}; CUDA: {report.cuda_version or 'none'}"
    for device in report.devices:
        size = "unknown" if device.memory_total_bytes is None else f"{device.memory_total_bytes / 2**30:.1f} GiB"
        yield f"- device {device.kind}: {device.name}, memory {size}{'' if device.usable else ', not usable'}"
    if not report.devices:
        yield "- devices: none"
    yield from (f"- finding: {shown(finding.message)}" for finding in report.findings)
    yield from _configuration(environ, config_file)
    for name in sorted(name for name in environ if name.startswith(_PREFIXES)):
        yield f"- {shown(f'{name}={environ[name]}')}"


def _configuration(environ: Mapping[str, str], config_file: Path | None) -> Iterator[str]:
    named = str(config_file) if config_file else environ.get("FORERUN_CONFIG_FILE") or None
    try:
        path = find_file(named, environ)
        if path is None:
            yield "- configuration file: none"
            return
        read = load(path)
    except ConfigurationError as error:
        yield f"- configuration file: {shown(str(error))}"
        return
    yield f"- configuration file: {shown(str(path))} (form: {read.form})"
    for name, given in read.values.items():
        yield f"  - {shown(f'{name}={write_text(given.value)}')}"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return f"not installed, run from {os.path.dirname(os.path.dirname(os.path.dirname(__file__)))}"
