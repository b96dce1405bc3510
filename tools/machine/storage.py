"""Where data lies and how large it is: files, directories summed, the file system below, what is free on it."""

import os
import shutil
from pathlib import Path

import psutil

from ..domain.reports import PathReport


def report_path(path: Path) -> tuple[PathReport, list[str]]:
    """The report, and what could not be read. Links inside a directory are counted as links and not followed."""
    anchor = path
    while not anchor.exists() and anchor != anchor.parent:
        anchor = anchor.parent
    filesystem = _filesystem(anchor.resolve())
    free = shutil.disk_usage(anchor).free
    if not path.exists():
        report = PathReport(
            path=str(path), exists=False, kind="missing", size_bytes=None, num_files=None, filesystem=filesystem,
            free_bytes=free,
        )  # fmt: skip
        return report, []
    problems: list[str] = []
    size, num_files = _sum(path, problems) if path.is_dir() else (path.stat().st_size, 1)
    report = PathReport(
        path=str(path),
        exists=True,
        kind="directory" if path.is_dir() else "file",
        size_bytes=None if problems else size,
        num_files=None if problems else num_files,
        filesystem=filesystem,
        free_bytes=free,
    )
    return report, problems


def _sum(root: Path, problems: list[str]) -> tuple[int, int]:
    size = num_files = 0
    for folder, _, names in os.walk(root, onerror=lambda error: problems.append(str(error))):
        for name in names:
            try:
                size += os.lstat(os.path.join(folder, name)).st_size
            except OSError as error:
                problems.append(str(error))
            num_files += 1
    return size, num_files


def _filesystem(path: Path) -> str | None:
    best, kind = -1, None
    for partition in psutil.disk_partitions(all=True):
        mount = Path(partition.mountpoint)
        if (path == mount or mount in path.parents) and len(mount.parts) >= best:
            best, kind = len(mount.parts), partition.fstype
    return kind or None
