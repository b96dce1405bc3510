"""InterpreterFacts: what the Python that trains says of itself."""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runtime.snapshots.surroundings import START_UP_FILES

from .asking import NoAnswer, ask

_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class InterpreterFacts:
    """One interpreter. `error` says why it gave no answer; all else is then empty or None.

    Attributes:
        executable: as it calls itself (a virtual environment's path is kept, not its target).
        packages: installed distributions in normal form (lower case, dashes) -> version.
        start_up_sha256: over the files that it executes before any program: .pth, sitecustomize, usercustomize.
        cuda_devices: CUDA or ROCm devices that its torch sees; 0 for a build without either; None if unknown.
        torch_error: why importing torch failed, if it was tried and did.
    """

    executable: str
    version: str | None = None
    packages: Mapping[str, str] = field(default_factory=dict)
    start_up_sha256: str | None = None
    torch_version: str | None = None
    cuda_version: str | None = None
    cuda_devices: int | None = None
    error: str | None = None
    torch_error: str | None = None

    @property
    def planned_packages(self) -> dict[str, str]:
        """What a plan keeps: the packages, and among them the digest of the start-up files."""
        start_up = {START_UP_FILES: self.start_up_sha256} if self.start_up_sha256 else {}
        return {**self.packages, **start_up}


def find_interpreter(python: str, *, base: Path | None = None, search_path: str | None = None) -> Path | None:
    """The executable file that `python` names: a path (relative ones from `base`) or a program on the search path.

    Symbolic links are kept: a virtual environment's python is a link, and following it would leave the environment.
    """
    if not python or "\0" in python:
        return None
    if os.sep not in python:
        found = shutil.which(python, path=search_path)
        return Path(found) if found else None
    path = Path(python).expanduser()
    path = path if path.is_absolute() else (base or Path.cwd()) / path
    path = Path(os.path.normpath(path))
    return path if path.is_file() and os.access(path, os.X_OK) else None


def probe_interpreter(python: str, *, environment: Mapping[str, str] | None = None) -> InterpreterFacts:
    """Ask `python`, in a process of its own, what it is."""
    try:
        answer = ask(python, "facts", {}, timeout_s=_TIMEOUT_S, environment=environment)
    except NoAnswer as error:
        return InterpreterFacts(executable=python, error=str(error))
    return InterpreterFacts(**answer)


def default_interpreter(near: Sequence[Path], *, within: Sequence[Path]) -> Path | None:
    """The Python of a virtual environment beside one of these paths or in a folder above, inside the roots."""
    for path in near:
        for folder in (path, *path.parents):
            if not any(folder == root or root in folder.parents for root in within):
                break
            for name in (".venv", "venv", "env"):
                found = find_interpreter(str(folder / name / "bin" / "python"))
                if found is not None:
                    return found
    return None
