"""What `forerun launch` refuses before it starts anything: each value seen, what is allowed, what to do."""

import errno
import importlib.util
import os
import socket
import sys
from dataclasses import dataclass, replace
from importlib.machinery import PathFinder
from pathlib import Path

from ..config.choices import Choices
from ..env import DEVICE, MIXED_PRECISION
from ..errors import ConfigurationError
from ..launchers import process
from ..supervision.preflight import find_place
from .foreground import HandLaunch

_ACCELERATOR_SIGNS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
_COUNT_DEVICES = "import torch; print(torch.cuda.device_count())"
_FIND_TORCH = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"


@dataclass(frozen=True)
class DeviceChoice:
    """What the caller said of devices; `gpu_ids` as typed."""

    cpu: bool
    multi_gpu: bool
    gpu_ids: str


@dataclass(frozen=True)
class Checked:
    """A launch that can be started, or shown: `refusals` are what would stop it on this machine."""

    launch: HandLaunch
    device: str
    refusals: tuple[str, ...] = ()


def check(launch: HandLaunch, choices: Choices, *, gpu_ids: str, num_threads: int | None = None) -> Checked:
    """The launch with its number of processes and its environment settled.

    Args:
        gpu_ids: as given; empty if it was not.
        num_threads: OMP_NUM_THREADS of each process; None leaves it as it is.

    Raises:
        ConfigurationError: it could run nowhere: no script, no torch, a port that is taken.
    """
    _require_unicode(launch)
    _require_target(launch)
    if launch.port is not None:
        _require_free(launch.port)
    _require_torch(launch.python)
    refusals = list(choices.unavailable)
    here = choices.num_processes
    if launch.nodes is not None and here is not None:
        here //= launch.nodes.num_nodes
    device, count = choices.device or "cpu", here or 1
    environment: dict[str, str] = {}
    if choices.device in ("", "cpu", "cuda"):
        wanted = DeviceChoice(cpu=choices.device == "cpu", multi_gpu=choices.device == "cuda", gpu_ids=gpu_ids)
        present = 0 if wanted.cpu else _count_devices(launch.python)
        device = choices.device or ("cuda" if present else "cpu")
        try:
            count, environment = settle_devices(present, here, wanted)
        except ConfigurationError as error:
            refusals.append(str(error))
    environment.update(choices.variables)
    if choices.device:
        environment[DEVICE] = choices.device
    if choices.precision is not None:
        environment[MIXED_PRECISION] = choices.precision
    if num_threads is not None:
        environment["OMP_NUM_THREADS"] = str(num_threads)
    place = None
    if launch.nodes is not None:
        try:
            place = find_place(launch.nodes)
        except ConfigurationError as error:
            refusals.append(str(error))
    checked = replace(launch, num_processes=count, environment=environment, place=place)
    return Checked(checked, device, tuple(refusals))


def _require_unicode(launch: HandLaunch) -> None:
    """What goes on record must be text: a name or an argument of other bytes would be another one there."""
    texts = {"script": launch.target, "--log-dir": str(launch.log_dir), "--python": launch.python}
    texts |= {f"argument {number} of the script": text for number, text in enumerate(launch.arguments, start=1)}
    texts["current directory"] = os.getcwd()
    for what, text in texts.items():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ConfigurationError(
                f"{what} {text!r} is no UTF-8 (character {error.start + 1})",
                allowed="names and arguments in UTF-8",
                next_step="rename it, or give the script a file that holds the value",
            ) from error


def _require_target(launch: HandLaunch) -> None:
    if not launch.is_module:
        if not Path(launch.target).is_file():
            raise ConfigurationError(
                f"script {launch.target!r} is no file (looked in {Path.cwd()})",
                allowed="the path of a Python script",
                next_step="correct the path, or use -m for a module",
            )
        if not os.access(launch.target, os.R_OK):
            raise ConfigurationError(
                f"script {launch.target!r} cannot be read",
                allowed="a file that you may read",
                next_step="change its permissions",
            )
        return
    top = launch.target.partition(".")[0]
    known = launch.python != sys.executable or PathFinder.find_spec(top, [str(Path.cwd()), *sys.path]) is not None
    if not known:
        raise ConfigurationError(
            f"module {launch.target!r} is not found from {Path.cwd()}",
            allowed="a module that `python -m` would find",
            next_step="correct the name, or install the package",
        )


def _require_free(port: int) -> None:
    if not 1 <= port <= 65535:
        raise ConfigurationError(f"--main-process-port {port}", allowed="1 to 65535, or 0 for a free one")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what just closed does not count
        try:
            probe.bind(("", port))
        except OSError as error:
            why = "in use" if error.errno == errno.EADDRINUSE else f"not available ({error.strerror})"
            raise ConfigurationError(
                f"port {port} is {why}",
                allowed="a free port",
                next_step="leave --main-process-port out: a free port is then chosen",
            ) from error


def _require_torch(python: str) -> None:
    if python == sys.executable:
        found = importlib.util.find_spec("torch") is not None
    else:
        if not os.access(python, os.X_OK) or not Path(python).is_file():
            raise ConfigurationError(f"--python {python!r} is no executable file", next_step="correct the path")
        found = process.run([python, "-c", _FIND_TORCH], timeout_s=60.0).returncode == 0
    if not found:
        raise ConfigurationError(
            f"{python} has no torch",
            allowed="an interpreter with torch 2.6 or later",
            next_step="pip install 'forerun[train]', or name another interpreter with --python",
        )


def settle_devices(present: int, num_processes: int | None, devices: DeviceChoice) -> tuple[int, dict[str, str]]:
    """Number of processes where `present` GPUs are, and the environment that shows them their devices."""
    if devices.cpu:
        if devices.multi_gpu or devices.gpu_ids:
            raise ConfigurationError("--cpu together with GPU options", allowed="one or the other")
        return num_processes or 1, {DEVICE: "cpu", "CUDA_VISIBLE_DEVICES": ""}
    ids = _parse_ids(devices.gpu_ids, present)
    usable = present if ids is None else len(ids)
    if devices.multi_gpu and not usable:
        raise ConfigurationError("--multi-gpu, but there is no GPU", next_step="leave it out, or use --cpu")
    count = num_processes or (max(1, usable) if devices.multi_gpu or ids else 1)
    if usable and count > usable:
        raise ConfigurationError(
            f"{count} processes for {usable} GPU{'s' * (usable > 1)}",
            allowed=f"at most {usable} processes, one a GPU",
            next_step="lower --num-processes, or use --cpu",
        )
    if ids is None:
        return count, {}
    return count, {"CUDA_VISIBLE_DEVICES": ",".join(str(index) for index in ids)}


def _parse_ids(text: str, present: int) -> list[int] | None:
    if not text or text == "all":
        return None
    words = [word.strip() for word in text.split(",")]
    ids = [int(word) for word in words if word.isascii() and word.isdigit()]
    if len(ids) != len(words) or len(set(ids)) != len(ids) or any(index >= present for index in ids):
        allowed = f"different numbers from 0 to {present - 1}, or all" if present else "nothing: there is no GPU"
        raise ConfigurationError(f"--gpu-ids {text!r}", allowed=allowed, next_step="correct it, or use --cpu")
    return ids


def _count_devices(python: str) -> int:
    """GPUs that torch sees; torch is only asked where a driver's device node exists."""
    if not any(Path(sign).exists() for sign in _ACCELERATOR_SIGNS):
        return 0
    done = process.run([python, "-c", _COUNT_DEVICES], timeout_s=120.0)
    if done.returncode != 0 or not done.stdout.strip().isdigit():
        raise ConfigurationError(
            f"torch cannot count the GPUs: {done.stderr.strip()[-300:]}",
            next_step="check the driver, or use --cpu",
        )
    return int(done.stdout)
