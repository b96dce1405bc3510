"""JSON lines, and a JSON array of objects: physical line numbers, one fault a line, nothing dropped silently."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..domain.findings import Finding
from .column_tally import ColumnTally
from .delimited import SCAN_LIMIT_BYTES, TextLines, UnreadableText
from .report import DataFileReport

_CHUNK_ROWS = 5_000
_LISTED = 10


class Line(NamedTuple):
    """A physical line: its object, or what is wrong with it; both None when it is blank."""

    number: int
    row: dict[str, Any] | None
    fault: str | None


class _KeyTwice(Exception):
    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(name)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise _KeyTwice(next(name for name in names if names.count(name) > 1))
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_object)


def parse_line(text: str, *, last: bool) -> tuple[dict[str, Any] | None, str | None]:
    """One line's object or fault; `last` means that the file ends here without a newline."""
    stripped = text.strip()
    if not stripped:
        return None, None
    try:
        value, end = _DECODER.raw_decode(stripped)
    except RecursionError:
        return None, "nested too deeply"
    except _KeyTwice as error:
        return None, f"the key {error.name[:40]!r} stands twice in one object"
    except ValueError as error:
        at_end = isinstance(error, json.JSONDecodeError) and _cut_off(error, stripped)
        return None, "truncated" if last and at_end else "not JSON"
    if stripped[end:].strip():
        return None, "more than one value on the line"
    if isinstance(value, dict):
        return value, None
    return None, f"{_json_type(value)} where an object is needed"


def _cut_off(error: json.JSONDecodeError, text: str) -> bool:
    return error.msg.startswith("Unterminated string") or error.pos >= len(text) - 1


def _json_type(value: Any) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def iterate_lines(lines: TextLines) -> Iterator[Line]:
    for text in lines:
        row, fault = parse_line(text, last=not text.endswith("\n"))
        yield Line(lines.num_lines, row, fault)


class _Columns:
    """Column tallies of rows whose keys may differ."""

    def __init__(self, id_columns: Sequence[str]) -> None:
        self.id_columns = id_columns
        self.tallies: dict[str, ColumnTally] = {}
        self.num_rows = 0
        self.fingerprints: set[str] = set()
        self.num_duplicates = 0

    def add(self, rows: list[dict[str, Any]]) -> None:
        first_row = self.num_rows + 1
        for name in dict.fromkeys(key for row in rows for key in row):
            tally = self.tallies.get(name)
            if tally is None:
                is_id = name in self.id_columns or name.lower() == "id"
                tally = self.tallies[name] = ColumnTally(name, is_id=is_id, text_file=False)
                tally.counts["missing"] += self.num_rows
        for name, tally in self.tallies.items():
            tally.add([row.get(name) for row in rows], first_row=first_row)
        self.num_rows += len(rows)
        for row in rows:
            text = repr(sorted(row.items()))
            self.num_duplicates += text in self.fingerprints
            self.fingerprints.add(text)


def inspect_json_lines(path: Path, *, id_columns: Sequence[str]) -> DataFileReport:
    """Read the whole file (or its first SCAN_LIMIT_BYTES) and report."""
    columns = _Columns(id_columns)
    faults: list[str] = []
    num_faults = num_blank = 0
    chunk: list[dict[str, Any]] = []
    findings: list[Finding] = []
    readable = True
    with path.open("rb") as handle:
        lines = TextLines(handle)
        try:
            for line in iterate_lines(lines):
                if line.row is not None:
                    chunk.append(line.row)
                elif line.fault is None:
                    num_blank += 1
                else:
                    num_faults += 1
                    faults += [f"line {line.number}: {line.fault}"] if len(faults) < _LISTED else []
                if len(chunk) == _CHUNK_ROWS:
                    columns.add(chunk)
                    chunk = []
        except UnreadableText as error:
            readable = False
            findings.append(error.finding)
    columns.add(chunk)
    if num_faults:
        more = f"; and {num_faults - len(faults)} more" if num_faults > len(faults) else ""
        text = f"{num_faults} line(s) hold no JSON object: {'; '.join(faults)}{more}"
        findings.append(Finding(code="broken_lines", level="error", message=text, hint="mend or drop these lines"))
    if num_blank:
        findings.append(Finding(code="blank_lines", level="note", message=f"{num_blank} blank line(s) ignored"))
    if lines.bom:
        hint = "the script must read it as utf-8-sig"
        text = "the file starts with a UTF-8 BOM"
        findings.append(Finding(code="utf8_bom", level="warning", message=text, hint=hint))
    return _report(path, columns, findings, complete=lines.complete and readable, file_format="jsonl")


def _report(
    path: Path, columns: _Columns, findings: list[Finding], *, complete: bool, file_format: str
) -> DataFileReport:
    found = list(findings)
    if not complete:
        text = f"only the first {columns.num_rows} rows were checked"
        found.append(Finding(code="not_scanned", level="warning", message=text, hint="what lies behind is unknown"))
    if columns.num_rows == 0:
        text = "the file has no rows of data"
        found.append(Finding(code="no_rows", level="error", message=text, hint="one JSON object a line"))
    if columns.num_duplicates:
        text = f"{columns.num_duplicates} row(s) repeat an earlier row exactly"
        found.append(Finding(code="duplicate_rows", level="warning", message=text))
    for tally in columns.tallies.values():
        found += tally.findings()
    return DataFileReport.model_validate(
        {
            "path": str(path),
            "format": file_format,
            "size_bytes": path.stat().st_size,
            "num_rows": columns.num_rows if complete else None,
            "columns": tuple(tally.report() for tally in columns.tallies.values()),
            "encoding": "utf-8",
            "complete": complete,
            "findings": tuple(found),
        }
    )


def inspect_json(path: Path, *, id_columns: Sequence[str]) -> DataFileReport | None:
    """Report on a JSON array of objects; None if the file is JSON of another form (a configuration, say)."""
    if path.stat().st_size > SCAN_LIMIT_BYTES:
        return None
    rows = read_json_rows(path)
    if rows is None:
        return None
    columns = _Columns(id_columns)
    columns.add(rows)
    return _report(path, columns, [], complete=True, file_format="json")


def read_json_rows(path: Path) -> list[dict[str, Any]] | None:
    """The objects of a JSON array; None if it is not one."""
    try:
        data = json.loads(path.read_bytes().decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None
    if isinstance(data, list) and data and all(isinstance(row, dict) for row in data):
        return data
    return None
