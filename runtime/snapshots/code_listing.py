"""Which files are the code of a script: those of its git work tree, or of its directory; and what is refused."""

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..env import current_environment
from ..errors import ConfigurationError, LaunchError
from ..launchers.process import Completed, run

_SKIPPED_NAMES = frozenset(
    {".git", ".hg", ".svn", "__pycache__", "node_modules", ".tox", ".nox", ".eggs", ".ipynb_checkpoints"}
    | {".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", "forerun-runs"}
)
_ENVIRONMENT_SIGNS = ("pyvenv.cfg", "conda-meta")
# Kept for programs that log in, by names that leave no doubt; a run gets its secrets by name from the server.
_SECRET_NAMES = re.compile(
    r"\.env(?:\.(?!example|sample|template|dist)[^.]+)*|\.netrc|\.pypirc|\.git-credentials|id_(?:rsa|dsa|ecdsa|ed25519)"
)
_KEY_SUFFIXES = (".pem", ".key")
_KEY_SIGN = b"PRIVATE KEY-----"
_KEY_LIMIT_BYTES = 2**16
_LFS_HEAD = b"version https://git-lfs.github.com/spec/"
_LFS_MAX_BYTES = 1024
_GIT_TIMEOUT_S = 60.0
_NAMED = 5
_NO_UTF8 = "\ufffd"  # what stands for undecodable bytes in git's answer


@dataclass
class CodeListing:
    """The tree's root, its files (path relative to the root -> where the bytes lie), and what was left out."""

    root: Path
    files: dict[str, Path] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def list_code(script: Path, *, data_paths: Sequence[Path], max_bytes: int) -> CodeListing:
    """List the code of `script` (absolute); raises ConfigurationError for what collect() refuses."""
    top = _git_top(script.parent)
    listing = CodeListing(root=script.parent if top is None else top)
    if top is None:
        if any((folder / ".git").exists() for folder in (script.parent, *script.parent.parents)):
            listing.notes.append(f"git cannot list the work tree: the code is the directory {script.parent}")
        candidates = set(_walk(listing, listing.root, set()))
    else:
        candidates = _git_files(listing, top)
        if script.relative_to(top).as_posix() not in candidates:
            listing.notes.append(f"{script.name} is ignored by git and was added, being the script")
            candidates.add(script.relative_to(top).as_posix())
    for relative in sorted(candidates):
        _take(listing, relative, data_paths)
    _require_small(listing, max_bytes)
    _require_content(listing)
    return listing


def _git(directory: Path, *arguments: str) -> Completed | None:
    """git's answer, with nothing of the repository's own (hooks, monitors) run; None if git cannot answer."""
    clean = {name: value for name, value in current_environment().items() if not name.startswith("GIT_")}
    try:
        done = run(
            ["git", "-C", str(directory), "-c", "core.fsmonitor=false", "-c", "core.quotePath=false", *arguments],
            timeout_s=_GIT_TIMEOUT_S,
            environment=clean | {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"},
            max_output_bytes=64 * 2**20,
        )
    except LaunchError:
        return None
    return done if done.returncode == 0 and not done.timed_out else None


def _git_top(directory: Path) -> Path | None:
    answer = _git(directory, "rev-parse", "--show-toplevel")
    if answer is None or not answer.stdout.strip():
        return None
    top = Path(answer.stdout.removesuffix("\n")).resolve()
    return top if top == directory or top in directory.parents else None


def _git_files(listing: CodeListing, tree: Path) -> set[str]:
    """Tracked files, and untracked ones that are not ignored, submodules included; relative to the listing's root."""
    tracked, others = _git(tree, "ls-files", "-z", "--stage"), _git(tree, *_OTHERS)
    if tracked is None or others is None:
        raise ConfigurationError(f"git cannot list {tree}", next_step="run `git status` there and mend what it says")
    prefix = "" if tree == listing.root else tree.relative_to(listing.root).as_posix() + "/"
    found = set()
    for row in filter(None, tracked.stdout.split("\0")):
        mode, path = row.split(" ", 1)[0], row.split("\t", 1)[1]
        if mode != "160000":
            found.add(prefix + path)
        elif (tree / path / ".git").exists():
            found |= _git_files(listing, tree / path)
        else:
            raise ConfigurationError(
                f"submodule {prefix}{path} is not initialised",
                next_step="run `git submodule update --init --recursive`, or remove the submodule",
            )
    for path in filter(None, others.stdout.split("\0")):
        if path.endswith("/"):  # a repository inside this one that is no submodule
            found.update(_walk(listing, tree / path, set()))
        elif not _is_skipped(tree, path):
            found.add(prefix + path)
    return found


_OTHERS = ("ls-files", "-z", "--others", "--exclude-standard")


def _is_skipped(tree: Path, relative: str) -> bool:
    parts = relative.split("/")
    folders = [tree.joinpath(*parts[:count]) for count in range(1, len(parts))]
    return (
        bool(_SKIPPED_NAMES.intersection(parts))
        or relative.endswith(".pyc")
        or any((folder / sign).exists() for folder in folders for sign in _ENVIRONMENT_SIGNS)
    )


def _walk(listing: CodeListing, folder: Path, seen: set[Path]) -> Iterator[str]:
    """Files below a folder, links to folders inside the tree followed once; relative to the listing's root."""
    seen.add(folder.resolve())
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise ConfigurationError(f"code directory {folder} cannot be read: {error.strerror}") from error
    for entry in entries:
        path = folder / entry.name
        if entry.name in _SKIPPED_NAMES or entry.name.endswith(".pyc"):
            continue
        if not entry.is_dir():
            yield path.relative_to(listing.root).as_posix()
        elif any((path / sign).exists() for sign in _ENVIRONMENT_SIGNS):
            listing.notes.append(f"{path.relative_to(listing.root)} is a Python environment and was left out")
        elif not entry.is_symlink():
            yield from _walk(listing, path, seen)
        else:
            yield from _follow(listing, path, seen)


def _follow(listing: CodeListing, link: Path, seen: set[Path]) -> Iterator[str]:
    target = link.resolve()
    name = link.relative_to(listing.root)
    if listing.root not in target.parents:
        listing.notes.append(f"{name} is a link to a directory outside the code ({target}) and was left out")
    elif target in seen:
        listing.notes.append(f"{name} is a link to a directory that is copied already ({target}) and was left out")
    else:
        yield from _walk(listing, link, seen)


def _take(listing: CodeListing, relative: str, data_paths: Sequence[Path]) -> None:
    path = listing.root / relative
    if not relative.isprintable() or (_NO_UTF8 in relative and not path.exists()):
        raise ConfigurationError(f"the name of code file {relative!r} is not printable UTF-8", next_step="rename it")
    resolved = path.resolve()
    if any(resolved == data or data in resolved.parents for data in data_paths):
        return
    try:
        mode = path.stat().st_mode
    except OSError:
        listing.notes.append(f"{relative} is a broken link or has been deleted, and was left out")
        return
    if stat.S_ISREG(mode) and _holds_secrets(path):
        listing.notes.append(f"{relative} looks like a file of secrets and was left out")
    elif stat.S_ISREG(mode):
        listing.files[relative] = path
    elif stat.S_ISDIR(mode):
        for inner in _follow(listing, path, set()):
            _take(listing, inner, data_paths)
    else:
        listing.notes.append(f"{relative} is no regular file and was left out")


def _holds_secrets(path: Path) -> bool:
    if _SECRET_NAMES.fullmatch(path.name):
        return True
    if not path.name.endswith(_KEY_SUFFIXES):
        return False
    try:
        with path.open("rb") as handle:
            return _KEY_SIGN in handle.read(_KEY_LIMIT_BYTES)
    except OSError:
        return False  # refused as unreadable when it is digested


def _require_small(listing: CodeListing, max_bytes: int) -> None:
    sizes = sorted(((path.stat().st_size, relative) for relative, path in listing.files.items()), reverse=True)
    total = sum(size for size, _ in sizes)
    if total > max_bytes:
        largest = ", ".join(f"{relative} ({size / 2**20:.1f} MiB)" for size, relative in sizes[:_NAMED])
        raise ConfigurationError(
            f"the code below {listing.root} has {total / 2**20:.1f} MiB; largest: {largest}",
            allowed=f"at most {max_bytes / 2**20:.0f} MiB of code",
            next_step="declare data files as data, add the rest to .gitignore, or move the script to its own directory",
        )


def _require_content(listing: CodeListing) -> None:
    """Refuse the pointers that git-lfs leaves where the files themselves were not fetched."""
    pointers = []
    for relative, path in listing.files.items():
        if path.stat().st_size < _LFS_MAX_BYTES and _begins_with(path, _LFS_HEAD):
            pointers.append(relative)
    if pointers:
        more = f" and {len(pointers) - _NAMED} more" if len(pointers) > _NAMED else ""
        raise ConfigurationError(
            f"git-lfs pointers in place of files: {', '.join(sorted(pointers)[:_NAMED])}{more}",
            next_step="run `git lfs pull`",
        )


def _begins_with(path: Path, head: bytes) -> bool:
    try:
        with path.open("rb") as handle:
            return handle.read(len(head)) == head
    except OSError as error:
        raise ConfigurationError(f"code file {path} cannot be read: {error.strerror}") from error
