"""inspect_environment: what the machine, the interpreter and the data are, with everything unknown called unknown."""

import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from runtime.env import current_environment

from .domain.findings import Finding
from .domain.reports import Device, EnvironmentReport, PathReport
from .machine import DeviceSurvey, MachineLimits, Nvml, machine_limits, open_nvml, report_path, survey_devices
from .probe import InterpreterFacts, default_interpreter, find_interpreter, probe_interpreter
from .text import visible


def inspect_environment(
    *,
    python: str,
    paths: Sequence[Path],
    environment: Mapping[str, str] | None = None,
    open_driver: Callable[[], Nvml] = open_nvml,
    limits: MachineLimits | None = None,
) -> EnvironmentReport:
    """Look at everything; what fails is a finding and never an exception.

    Args:
        python: the interpreter that trains; empty: the environment beside the data, or this process's own.
        paths: data to be located and measured, resolved and inside the allowed roots.
        environment: the job's, for CUDA_VISIBLE_DEVICES; this process's own by default.
        open_driver: gives NVML; another one in tests.
        limits: processors and memory; read from the machine by default.
    """
    environment = current_environment() if environment is None else environment
    limits = limits or machine_limits()
    survey = survey_devices(environment, limits, open_driver)
    chosen = find_interpreter(python) if python else default_interpreter(paths, within=[Path("/")])
    facts = probe_interpreter(str(chosen) if chosen else python or sys.executable, environment=environment)
    findings = [*_interpreter_findings(facts, survey), *survey.findings]
    reports = []
    for path in paths:
        report, problems = report_path(path)
        reports.append(report.model_copy(update={"path": visible(report.path)}))
        findings += _path_findings(report, problems)
    return EnvironmentReport(
        python=facts.executable,
        python_version=facts.version,
        packages=dict(facts.packages),
        platform=platform.platform(),
        num_cpus=limits.num_cpus,
        cpu_source=limits.cpu_source,
        memory_total_bytes=limits.memory_total_bytes,
        memory_available_bytes=limits.memory_available_bytes,
        memory_source=limits.memory_source,
        driver_version=survey.driver_version,
        cuda_version=survey.cuda_version or facts.cuda_version,
        devices=tuple(_safe(device) for device in survey.devices),
        paths=tuple(reports),
        findings=tuple(f.model_copy(update={"message": visible(f.message)}) for f in findings),
    )


def _safe(device: Device) -> Device:
    reasons = tuple(visible(reason) for reason in device.reasons)
    return device.model_copy(update={"name": visible(device.name), "reasons": reasons})


def _interpreter_findings(facts: InterpreterFacts, survey: DeviceSurvey) -> list[Finding]:
    if facts.error is not None:
        hint = "name the Python of the project's own environment"
        return [Finding(code="interpreter", level="error", message=facts.error, hint=hint)]
    if facts.torch_version is None:
        text = f"{facts.executable} has no torch"
        hint = "name the Python in which the project trains, or install torch into it"
        return [Finding(code="no_torch", level="warning", message=text, hint=hint)]
    if facts.torch_error:
        text = f"torch {facts.torch_version} does not import: {facts.torch_error}"
        return [Finding(code="torch_broken", level="error", message=text, hint="mend that environment")]
    if facts.cuda_version is None and survey.devices:
        text = f"torch {facts.torch_version} is built without CUDA and will not use the NVIDIA devices"
        return [Finding(code="torch_without_cuda", level="warning", message=text, hint="install a CUDA build")]
    if facts.cuda_devices is not None and survey.devices and facts.cuda_devices != len(survey.usable):
        text = f"torch sees {facts.cuda_devices} CUDA device(s), the driver says {len(survey.usable)} are usable"
        return [Finding(code="device_count", level="warning", message=text, hint="trust the smaller number")]
    return []


def _path_findings(report: PathReport, problems: list[str]) -> list[Finding]:
    if not report.exists:
        text = f"{report.path} does not exist"
        return [Finding(code="path_missing", level="warning", message=text, hint="check the spelling")]
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        text = f"{report.path}: size unknown, unreadable: {'; '.join(problems[:3])}{more}"
        return [Finding(code="path_unreadable", level="warning", message=text, hint="check the permissions")]
    return []
