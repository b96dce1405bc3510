"""Which modules a worker loaded from outside its snapshot and its installed packages, written when it ends.

Needs the standard library alone: it runs in the interpreter that trains.
"""

import atexit
import contextlib
import hashlib
import json
import os
import site
import sys
import sysconfig
from pathlib import Path
from typing import Any

# Compiled by torch while it trains, under names that differ from run to run.
_GENERATED = ("torchinductor_", ".triton")


def record_at_exit(path: Path, *, rank: int, inside: list[Path]) -> None:
    """Write the list when this process ends by itself; after every exit handler of the script.

    Args:
        path: of the JSON list.
        rank: rank 0 writes an empty list too, so that "none" differs from "not recorded".
        inside: directories whose modules are no news: the run's own, and ours.
    """
    atexit.register(_record, os.getpid(), path, rank, inside)


def outside_modules(inside: list[Path]) -> list[dict[str, str]]:
    """Name, file and SHA-256 of every module that comes from elsewhere, by file; "" if it is gone by now."""
    known = [os.path.realpath(place) for place in [*map(str, inside), *_installed()]]
    found: dict[str, str] = {}
    for name, module in sorted(sys.modules.copy().items()):
        file = _file_of(module)
        if file and not _is_below(file, known) and not any(word in file for word in _GENERATED):
            found.setdefault(file, name)
    return [{"name": name, "path": file, "sha256": _digest(file)} for file, name in sorted(found.items())]


def _record(pid: int, path: Path, rank: int, inside: list[Path]) -> None:
    if os.getpid() != pid:
        return  # a forked child that ends as a program does
    found = outside_modules(inside)
    if not found and rank != 0:
        return
    temporary = path.with_name(path.name + ".tmp")
    with contextlib.suppress(OSError):  # on a full disk it stays unrecorded, which the report says
        temporary.write_text(json.dumps(found, indent=1), errors="backslashreplace")
        os.replace(temporary, path)


def _installed() -> list[str]:
    """Where this interpreter's own modules and its packages lie."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    places = [sysconfig.get_path(name) for name in names]
    with contextlib.suppress(AttributeError):  # the site module of an old virtualenv
        places += [*site.getsitepackages(), site.getusersitepackages()]
    archive = os.path.join(sys.base_prefix, "lib", f"python{sys.version_info[0]}{sys.version_info[1]}.zip")
    return [place for place in [*places, archive] if place]


def _file_of(module: Any) -> str:
    """The real file behind a module; the archive, if it lies in one; "" if there is none."""
    try:
        file = module.__file__
    except Exception:  # a lazy module may do anything
        return ""
    if not isinstance(file, str) or not os.path.dirname(file):
        return ""
    file = os.path.realpath(file)
    while not os.path.exists(file) and os.path.isfile(os.path.dirname(file)):
        file = os.path.dirname(file)
    return file


def _is_below(file: str, places: list[str]) -> bool:
    return any(file == place or file.startswith(place.rstrip(os.sep) + os.sep) for place in places)


def _digest(file: str) -> str:
    digest = hashlib.sha256()
    try:
        with open(file, "rb") as handle:
            for piece in iter(lambda: handle.read(2**20), b""):
                digest.update(piece)
    except OSError:
        return ""
    return digest.hexdigest()
