"""The job's environment: a listed base, what the plan adds, and secrets by name alone."""

import re
from collections.abc import Mapping

from ..text import redact
from .notes import Notes
from .settings import Settings

BASE = (
    "PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "USER", "LOGNAME", "TMPDIR", "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_HOME", "NVIDIA_VISIBLE_DEVICES", "OMP_NUM_THREADS",
    "MKL_NUM_THREADS", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "HF_HOME", "TORCH_HOME", "XDG_CACHE_HOME",
)  # fmt: skip
_SECRET_WORDS = frozenset(
    {"TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "KEY", "APIKEY", "CREDENTIAL", "CREDENTIALS", "PAT"}
)
# What these name is loaded into the job beside its modules.
_LOADS = frozenset({"BASH_ENV", "LD_AUDIT", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONHOME", "PYTHONUSERBASE"})
_OURS = re.compile(
    r"(?:FORERUN_|TORCHELASTIC_|SLURM_)|(?:RANK|LOCAL_RANK|GROUP_RANK|ROLE_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE"
    r"|GROUP_WORLD_SIZE|ROLE_WORLD_SIZE|MASTER_ADDR|MASTER_PORT)$"
)


def base_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The listed base, as far as it is set: nothing else of the server's environment reaches another program."""
    return {name: environment[name] for name in BASE if name in environment}


def job_environment(
    settings: Settings, base: Mapping[str, str], notes: Notes
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The whole environment of the job, and the names of secrets that pass through without being stored."""
    given: dict[str, str] = settings.get("env") or {}
    passed: tuple[str, ...] = settings.get("pass_env") or ()
    for name, value in given.items():
        if _OURS.match(name):
            notes.error("reserved_variable", f"env sets {name}, which the launcher sets", "leave it out")
        elif _is_secret(name, value):
            hint = (
                f"set {name} where forerun's server starts, and name it in settings.pass_env: its value is not stored"
            )
            notes.error("secret_in_env", f"env seems to hold a secret in {name}", hint)
        elif name in _LOADS:
            text = f"env sets {name}: an approval covers its value and not the content of what it names"
            notes.warning("content_not_covered", text, "declare what it names as data (other=path), or leave it out")
    for name in passed:
        if _OURS.match(name):
            notes.error("reserved_variable", f"pass_env names {name}, which the launcher sets", "leave it out")
        elif name not in base:
            hint = "set it where the server starts, or leave it out of pass_env"
            notes.error("variable_missing", f"pass_env names {name}, which the server's environment lacks", hint)
        elif name in given:
            notes.error("variable_twice", f"{name} stands in env and in pass_env", "name it once")
    environment = {name: value for name, value in base_variables(base).items() if name not in passed}
    return dict(sorted({**environment, **given}.items())), tuple(sorted(passed))


def _is_secret(name: str, value: str) -> bool:
    words = set(re.split(r"[^A-Z]+", name.upper()))
    return bool(words & _SECRET_WORDS) or redact(f"{name}={value}") != f"{name}={value}"
