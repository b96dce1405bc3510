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


# What the records of folders of PYTHONPATH are called; a module's name has no blanks.
NAMES = "names in a folder of PYTHONPATH"
HOOKS = "start-up hooks in a folder of PYTHONPATH"
_HOOKS = ("sitecustomize", "usercustomize")
_SUFFIXES = (".py", ".pyc", ".so")


def record_at_exit(path: Path, *, rank: int, inside: list[Path], tree: str = "", python_path: str = "") -> None:
    """Write the list when this process ends by itself; after every exit handler of the script.

    Args:
        path: of the JSON list.
        rank: rank 0 writes an empty list too, so that "none" differs from "not recorded".
        inside: directories whose modules are no news: the run's own, and ours.
        tree: the working tree, whose modules come from the run's copy; "" without one.
        python_path: PYTHONPATH as it was given. Which names its folders hold is recorded too: one that is put there
            later would come before an installed module, or run before the script.
    """
    atexit.register(_record, os.getpid(), path, rank, inside, folders(python_path, inside, tree))


def folders(python_path: str, inside: list[Path], tree: str) -> list[tuple[str, str]]:
    """(NAMES or HOOKS, folder) of each folder of PYTHONPATH outside the run; of the tree's, the hooks alone count."""
    found = {}
    known, planned = [os.path.realpath(place) for place in inside], [os.path.realpath(tree)] if tree else []
    for entry in filter(None, python_path.split(os.pathsep)):
        folder = os.path.realpath(entry)
        if not _is_below(folder, known):
            found[folder] = HOOKS if _is_below(folder, planned) else NAMES
    return [(name, folder) for folder, name in sorted(found.items())]


def folder_digest(name: str, folder: str) -> str:
    """SHA-256 of what can be imported from a folder by its name, or of its start-up hooks; of an archive as a whole."""
    if os.path.isfile(folder):
        return _digest(folder)
    try:
        entries = sorted(os.listdir(folder))
    except OSError:
        entries = []  # none can be imported
    importable = [entry for entry in entries if _is_importable(folder, entry)]
    if name == HOOKS:
        importable = [entry for entry in importable if entry.split(".")[0] in _HOOKS]
    return hashlib.sha256("\n".join(importable).encode(errors="surrogateescape")).hexdigest()


def _is_importable(folder: str, entry: str) -> bool:
    if entry.endswith(_SUFFIXES):
        return True
    return any(os.path.exists(os.path.join(folder, entry, f"__init__{suffix}")) for suffix in _SUFFIXES)


def outside_modules(inside: list[Path]) -> list[dict[str, str]]:
    """Name, file and SHA-256 of every module that comes from elsewhere, by file; "" if it is gone by now."""
    known = [os.path.realpath(place) for place in [*map(str, inside), *_installed()]]
    found: dict[str, str] = {}
    for name, module in sorted(sys.modules.copy().items()):
        file = _file_of(module)
        if file and not _is_below(file, known) and not any(word in file for word in _GENERATED):
            found.setdefault(file, name)
    return [{"name": name, "path": file, "sha256": _digest(file)} for file, name in sorted(found.items())]


def _record(pid: int, path: Path, rank: int, inside: list[Path], seen: list[tuple[str, str]]) -> None:
    if os.getpid() != pid:
        return  # a forked child that ends as a program does
    found = outside_modules(inside)
    found += [{"name": name, "path": place, "sha256": folder_digest(name, place)} for name, place in seen]
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
