"""The only reader of the environment inside workers: the variables that forerun sets, and those of the engine."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .errors import ConfigurationError

RUN_MARKER = "FORERUN_RUN"
RUN_DIR = "FORERUN_RUN_DIR"
SMOKE_STEPS = "FORERUN_SMOKE_STEPS"
MIXED_PRECISION = "FORERUN_MIXED_PRECISION"
ACCUMULATION = "FORERUN_GRADIENT_ACCUMULATION_STEPS"
CPU_ONLY = "FORERUN_CPU"
DEVICE = "FORERUN_DEVICE"
CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
RESUME = "FORERUN_RESUME"
BATCH_JOB = "FORERUN_BATCH_JOB"
STRATEGY = "FORERUN_STRATEGY"
FSDP_PREFIX = "FORERUN_FSDP_"
_DEEPSPEED = (
    "deepspeed_config_file",
    "zero_stage",
    "offload_optimizer_device",
    "offload_param_device",
    "offload_optimizer_nvme_path",
    "offload_param_nvme_path",
    "gradient_clipping",
)


@dataclass(frozen=True)
class WorkerEnvironment:
    """What a worker process was told by whoever started it.

    Attributes:
        run_id: the run's marker, present in every process of the job; empty outside a run.
        run_dir: the run directory; None when the script was started by hand.
        smoke_steps: number of optimizer steps after which prepared loaders end; None in a full run.
        rank, world_size, local_rank, local_world_size: as torchrun sets them (0, 1, 0, 1 without it).
        mixed_precision, device: defaults for Accelerator given at launch; empty when none was.
        gradient_accumulation_steps: the same; None when it was not given.
        resume: the checkpoint from which a restarted job goes on; None in a first attempt.
        strategy: word of the launch's option --strategy; empty when none was given.
        fsdp: words of its fsdp options by their names, such as fsdp_offload_params.
        deepspeed: words of its DeepSpeed options by their names, such as zero_stage.
    """

    run_id: str
    run_dir: Path | None
    smoke_steps: int | None
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    mixed_precision: str
    device: str
    resume: Path | None = None
    strategy: str = ""
    fsdp: Mapping[str, str] = field(default_factory=dict)
    gradient_accumulation_steps: int | None = None
    deepspeed: Mapping[str, str] = field(default_factory=dict)


def read_environment(environ: Mapping[str, str] | None = None) -> WorkerEnvironment:
    """Read and check the worker's variables.

    Raises:
        ConfigurationError: a variable holds no integer where one is needed, or rank is outside the world.
    """
    source = os.environ if environ is None else environ
    world_size = _integer(source, "WORLD_SIZE", 1, least=1)
    rank = _integer(source, "RANK", 0, least=0)
    if rank >= world_size:
        raise ConfigurationError(
            f"RANK={rank} with WORLD_SIZE={world_size}",
            allowed=f"0 to {world_size - 1}",
            next_step="start the script with `forerun launch` or torchrun, which set both",
        )
    run_dir = source.get(RUN_DIR, "")
    smoke = source.get(SMOKE_STEPS, "")
    return WorkerEnvironment(
        run_id=source.get(RUN_MARKER, ""),
        run_dir=Path(run_dir) if run_dir else None,
        smoke_steps=_integer(source, SMOKE_STEPS, 0, least=1) if smoke else None,
        rank=rank,
        world_size=world_size,
        local_rank=_integer(source, "LOCAL_RANK", 0, least=0),
        local_world_size=_integer(source, "LOCAL_WORLD_SIZE", 1, least=1),
        mixed_precision=source.get(MIXED_PRECISION, ""),
        gradient_accumulation_steps=_integer(source, ACCUMULATION, 1, least=1) if source.get(ACCUMULATION) else None,
        device=source.get(DEVICE, ""),
        resume=Path(resume) if (resume := source.get(RESUME, "")) else None,
        strategy=source.get(STRATEGY, ""),
        fsdp={
            name.removeprefix("FORERUN_").lower(): word
            for name, word in source.items()
            if name.startswith(FSDP_PREFIX) and word
        },
        deepspeed={name: word for name in _DEEPSPEED if (word := source.get(f"FORERUN_{name.upper()}", ""))},
    )


def batch_job() -> str:
    """The job of a batch system in which this process runs, as its batch script says; empty outside of one."""
    return os.environ.get(BATCH_JOB, "")


def current_environment() -> dict[str, str]:
    """A copy of this process's whole environment, for starting another one."""
    return dict(os.environ)


def adopt_environment(variables: Mapping[str, str]) -> None:
    """Become the rank that these variables describe; for a process that was copied from one that is no rank."""
    os.environ.update(variables)


def set_default(name: str, value: str) -> None:
    """Set a variable that a library reads later, unless it is set."""
    os.environ.setdefault(name, value)


def _integer(source: Mapping[str, str], name: str, default: int, *, least: int) -> int:
    text = source.get(name, "")
    if not text:
        return default
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise ConfigurationError(
            f"{name}={text!r} in the environment",
            allowed=f"an integer of at least {least}",
            next_step=f"unset {name}, or start the script with `forerun launch`",
        )
    return value
