"""NumPy files: shapes and types from the headers, NaN and infinity from the values; pickled objects are refused."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from ..domain.findings import Finding
from .delimited import SCAN_LIMIT_BYTES
from .report import ColumnReport, DataFileReport


def inspect_arrays(path: Path) -> DataFileReport:
    """One column per array; rows are the first axis, if all arrays agree on it."""
    size = path.stat().st_size
    file_format = "npz" if path.suffix.lower() == ".npz" else "npy"
    columns: list[ColumnReport] = []
    findings: list[Finding] = []
    lengths: set[int] = set()
    complete = size <= SCAN_LIMIT_BYTES
    try:
        for name, array in _arrays(path, with_values=complete):
            columns.append(_column(name, array))
            lengths.add(array.shape[0] if array.shape else 0)
            findings += _findings(name, array) if complete else []
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, KeyError) as error:
        complete = False
        text = f"not a readable {file_format} file: {str(error)[:200]}"
        hint = "save plain arrays (no objects, no pickle)"
        findings.append(Finding(code="broken_arrays", level="error", message=text, hint=hint))
    if not findings and not complete:
        text = "values were not checked for NaN: the file is large"
        findings.append(Finding(code="not_scanned", level="warning", message=text))
    if len(lengths) > 1:
        text = f"arrays have different lengths: {', '.join(map(str, sorted(lengths)))}"
        findings.append(Finding(code="lengths_differ", level="note", message=text))
    if lengths == {0}:
        findings.append(Finding(code="no_rows", level="error", message="the arrays are empty"))
    return DataFileReport.model_validate(
        {
            "path": str(path),
            "format": file_format,
            "size_bytes": size,
            "num_rows": next(iter(lengths)) if len(lengths) == 1 else None,
            "columns": tuple(columns),
            "complete": complete,
            "findings": tuple(findings),
        }
    )


def _arrays(path: Path, *, with_values: bool) -> list[tuple[str, Any]]:
    if path.suffix.lower() == ".npy":
        return [("array", np.load(path, mmap_mode="r", allow_pickle=False))]
    if with_values:
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as archive:
            return [(name, archive[name]) for name in archive.files]
    return _headers(path)


def _headers(path: Path) -> list[tuple[str, Any]]:
    """Arrays of the right shape and type that hold no memory, from the headers alone."""
    found = []
    with zipfile.ZipFile(path) as archive:
        for member in archive.namelist():
            with archive.open(member) as handle:
                version = np.lib.format.read_magic(handle)
                reader = np.lib.format.read_array_header_1_0
                if version != (1, 0):
                    reader = np.lib.format.read_array_header_2_0
                shape, _, dtype = reader(handle)
            if dtype.hasobject:
                raise ValueError(f"{member} holds pickled objects")
            found.append((member.removesuffix(".npy"), np.broadcast_to(np.zeros((), dtype), shape)))
    return found


def _column(name: str, array: Any) -> ColumnReport:
    label = f"{array.dtype}{list(array.shape)}"
    return ColumnReport(name=name, types={label: int(array.shape[0]) if array.shape else 1})


def _findings(name: str, array: Any) -> list[Finding]:
    if array.dtype.kind not in "fc":
        return []
    found = []
    for code, word, count in (
        ("nan_values", "NaN", int(np.isnan(array).sum())),
        ("infinite_values", "infinite", int(np.isinf(array).sum())),
    ):
        if count:
            text = f"array {name!r}: {count} {word} value(s) of {array.size}"
            hint = "clean or drop them; a loss computed from them becomes NaN"
            found.append(Finding(code=code, level="error", message=text, hint=hint))
    return found
