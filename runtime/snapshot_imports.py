"""Imports from the planned working tree come from the run's copy of it, however they get there.

An editable install, a PYTHONPATH or a path written into the script may point to the tree that was copied. The plan
covers the copy, so the copy is what is imported. What git ignores, such as a compiled extension, has no copy: it is
imported from the tree and goes on record as a module from outside. Needs the standard library alone.
"""

import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType


class SnapshotFinder:
    """Asks the finders behind it, and moves what they find from the tree to its copy.

    Attributes:
        origin: the tree that was copied; code: its copy; untouched: directories that are never moved, in or out of it.
    """

    def __init__(self, origin: str, code: str, *, untouched: Sequence[str]) -> None:
        self.origin = os.path.realpath(origin)
        self.code = code
        self.untouched = tuple(untouched)
        self._added: frozenset[str] = frozenset()

    def install(self) -> None:
        """Come before all other finders; on the path, which spawned children get, copies come before the tree."""
        before = set(sys.path)
        sys.path[:] = self._remapped(sys.path)
        sys.path += [folder for folder in self._mapped_packages() if folder not in sys.path]
        self._added = frozenset(sys.path) - before
        sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            places = path
            if path is None and finder is importlib.machinery.PathFinder:
                places = [entry for entry in sys.path if entry not in self._added]  # found in the tree, then moved
            spec = find(name, places, target) if find else None
            if spec is not None:
                return self._moved(spec)
        return None

    def copy_of(self, path: str) -> str | None:
        """Where the copy of this file or folder of the tree lies; None if it has none or is no part of the tree."""
        path = os.path.abspath(path)
        for candidate in (path, os.path.realpath(path)):
            if any(_is_below(candidate, folder) for folder in self.untouched):
                return None
            if _is_below(candidate, self.origin):
                copy = os.path.normpath(os.path.join(self.code, os.path.relpath(candidate, self.origin)))
                return copy if os.path.exists(copy) else None
        return None

    def _moved(self, spec: importlib.machinery.ModuleSpec) -> importlib.machinery.ModuleSpec:
        locations = spec.submodule_search_locations
        folders = None if locations is None else self._remapped(locations)
        if spec.has_location and spec.origin:
            copy = self.copy_of(spec.origin)
            if copy is None:
                return spec
            moved = importlib.util.spec_from_file_location(spec.name, copy, submodule_search_locations=folders)
            return spec if moved is None else moved
        if folders is None or spec.loader is not None or folders == list(locations or ()):
            return spec
        moved = importlib.machinery.ModuleSpec(spec.name, None, is_package=True)
        moved.submodule_search_locations = folders
        return moved

    def _remapped(self, folders: Sequence[str]) -> list[str]:
        """Each folder behind its copy."""
        found: list[str] = []
        for folder in folders:
            copy = self.copy_of(folder) if folder else None
            found += [entry for entry in (copy, folder) if entry is not None and entry not in found]
        return found

    def _mapped_packages(self) -> list[str]:
        """Folders of packages that setuptools' editable finders map by name: spawned children have only the path."""
        found = []
        for name, module in list(sys.modules.items()):
            mapping = getattr(module, "MAPPING", None) if name.startswith("__editable__") else None
            for package, place in mapping.items() if isinstance(mapping, dict) else ():
                copy = self.copy_of(str(place))
                if copy is not None and os.path.basename(copy) == package:
                    found.append(os.path.dirname(copy))
        return list(dict.fromkeys(found))


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)
