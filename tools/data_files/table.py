"""One door to all data files: report on one, list its columns, read some of them."""

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..domain.errors import InvalidInput
from ..domain.findings import Finding
from .array_file import inspect_arrays
from .column_tally import MISSING, classify_text
from .delimited import TextLines, UnreadableText, inspect_csv, iterate_csv
from .disguise import disguise
from .json_lines import inspect_json, inspect_json_lines, iterate_lines, read_json_rows
from .parquet_file import UnreadableParquet, inspect_parquet, parquet_names, read_parquet
from .report import DataFileReport

_CSV = frozenset({".csv", ".tsv"})
_JSON_LINES = frozenset({".jsonl", ".ndjson"})
_PARQUET = frozenset({".parquet", ".pq"})
_ARRAYS = frozenset({".npy", ".npz"})
_READABLE = "a CSV, TSV, JSONL, JSON (array of objects) or Parquet file"


def inspect_data_file(path: Path, *, id_columns: Sequence[str] = ()) -> DataFileReport:
    """Read the file and report all that is odd about it.

    Args:
        id_columns: columns whose values are counted exactly, beside one that is called `id`.
    """
    suffix = path.suffix.lower()
    if path.stat().st_size == 0:
        finding = Finding(code="no_rows", level="error", message="the file is empty", hint="give a file with rows")
        return DataFileReport(path=str(path), format="unknown", size_bytes=0, num_rows=0, findings=(finding,))
    if suffix in _CSV | _JSON_LINES | _PARQUET:
        other = disguise(path, expected=b"PAR1" if suffix in _PARQUET else b"")
        if other is not None:
            size = path.stat().st_size
            return DataFileReport(
                path=str(path), format="unknown", size_bytes=size, num_rows=None, complete=False, findings=(other,)
            )
    if suffix in _CSV:
        return inspect_csv(path, id_columns=id_columns)
    if suffix in _JSON_LINES:
        return inspect_json_lines(path, id_columns=id_columns)
    if suffix in _PARQUET:
        return inspect_parquet(path, id_columns=id_columns)
    if suffix in _ARRAYS:
        return inspect_arrays(path)
    report = inspect_json(path, id_columns=id_columns) if suffix == ".json" else None
    if report is not None:
        return report
    text = f"the content of {suffix or 'a file without suffix'} files is not checked"
    finding = Finding(code="not_checked", level="note", message=text)
    size = path.stat().st_size
    return DataFileReport(
        path=str(path), format="unknown", size_bytes=size, num_rows=None, complete=False, findings=(finding,)
    )


def column_names(path: Path) -> list[str]:
    """The column names of a table.

    Raises:
        InvalidInput: the file is no table, or cannot be read.
    """
    suffix = path.suffix.lower()
    try:
        if suffix in _CSV | _JSON_LINES and (other := disguise(path)) is not None:
            raise UnreadableText(other)
        if suffix in _CSV:
            return next(iterate_csv(path), [])
        if suffix in _PARQUET:
            return parquet_names(path)
        rows = _json_rows(path)
    except (OSError, csv.Error, UnreadableText, UnreadableParquet) as error:
        raise _unreadable(path, str(error)) from error
    return list(dict.fromkeys(key for row in rows for key in row))


def read_columns(path: Path, columns: Sequence[str]) -> dict[str, list[Any]]:
    """The values of some columns, row by row; a missing value is None.

    In a CSV file a column becomes integers if every present cell is one (so 64-bit ids stay exact), floats if every
    present cell is a number, else text as written ('007' is text).

    Raises:
        InvalidInput: a column is absent, or the file cannot be read as a table.
    """
    present = column_names(path)
    absent = [name for name in columns if name not in present]
    if absent:
        raise InvalidInput(
            f"{path} has no column {', '.join(map(repr, absent))}",
            allowed=", ".join(map(repr, present)) or "nothing: the file has no columns",
            next_step="name a column that the file has",
        )
    suffix = path.suffix.lower()
    try:
        if suffix in _CSV:
            return _read_csv(path, columns)
        if suffix in _PARQUET:
            return read_parquet(path, columns)
        rows = _json_rows(path)
    except (OSError, csv.Error, UnreadableText, UnreadableParquet) as error:
        raise _unreadable(path, str(error)) from error
    return {name: [row.get(name) for row in rows] for name in columns}


def _json_rows(path: Path) -> list[dict[str, Any]]:
    if path.suffix.lower() == ".json":
        rows = read_json_rows(path)
        if rows is None:
            raise _unreadable(path, "no JSON array of objects")
        return rows
    if path.suffix.lower() not in _JSON_LINES:
        raise _unreadable(path, f"unknown suffix {path.suffix!r}")
    found = []
    with path.open("rb") as handle:
        for line in iterate_lines(TextLines(handle, limit_bytes=path.stat().st_size + 1)):
            if line.fault:
                raise _unreadable(path, f"line {line.number}: {line.fault}")
            if line.row is not None:
                found.append(line.row)
    return found


def _read_csv(path: Path, columns: Sequence[str]) -> dict[str, list[Any]]:
    records = iterate_csv(path)
    header = next(records)
    places = [header.index(name) for name in columns]
    cells: list[list[str]] = [[] for _ in columns]
    for number, record in enumerate(records, 1):
        if len(record) != len(header):
            raise _unreadable(path, f"record {number} has {len(record)} fields, the header {len(header)}")
        for values, place in zip(cells, places, strict=True):
            values.append(record[place])
    return {name: _typed(values) for name, values in zip(columns, cells, strict=True)}


def _typed(cells: list[str]) -> list[Any]:
    """Integers, floats or text, one type for the whole column."""
    types = {text: classify_text(text) for text in set(cells)}
    present = {cell.type for cell in types.values()} - {"missing", "missing word", "nan"}
    if present == {"integer"}:
        values: dict[str, Any] = {t: int(t) if c.type == "integer" else None for t, c in types.items()}
    elif present and present <= {"integer", "number", "infinite"}:
        values = {t: _number(t) for t in types}
    else:
        values = {t: t or None for t in types}
    return [values[text] for text in cells]


def _number(text: str) -> float | None:
    if text.strip().lower() in MISSING:
        return None
    value = float(text)
    return None if math.isnan(value) else value


def _unreadable(path: Path, reason: str) -> InvalidInput:
    return InvalidInput(f"{path} cannot be read as a table: {reason}", allowed=_READABLE, next_step="mend the file")
