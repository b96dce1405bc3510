"""CSV and TSV, read with care: records are not lines, and nothing that is odd is passed over."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from ..domain.findings import Finding
from .column_tally import ColumnTally, classify_text
from .report import DataFileReport

SCAN_LIMIT_BYTES = 64 * 2**20
_CHUNK_ROWS = 20_000
_LISTED = 5
_DELIMITERS = (",", ";", "\t", "|")


class UnreadableText(Exception):
    """The file's bytes are no UTF-8 text; carries the finding."""

    def __init__(self, finding: Finding) -> None:
        self.finding = finding
        super().__init__(finding.message)


@dataclass
class TextLines:
    """Physical lines of a text file as UTF-8, a byte-order mark taken off, up to `limit_bytes`."""

    handle: IO[bytes]
    limit_bytes: int = SCAN_LIMIT_BYTES
    bom: bool = False
    complete: bool = True
    num_lines: int = 0

    def __iter__(self) -> Iterator[str]:
        read = 0
        for raw in self.handle:
            if read >= self.limit_bytes:
                self.complete = False
                return
            read += len(raw)
            self.num_lines += 1
            if self.num_lines == 1:
                raw = self._first(raw)
            try:
                yield raw.decode()
            except UnicodeDecodeError as error:
                raise UnreadableText(_bad_bytes(raw, error, self.num_lines)) from error

    def _first(self, raw: bytes) -> bytes:
        for mark, name in ((b"\xff\xfe\0\0", "UTF-32"), (b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16")):
            if raw.startswith(mark):
                raise UnreadableText(_finding("utf16", f"the file is encoded as {name}", "save it as UTF-8"))
        self.bom = raw.startswith(b"\xef\xbb\xbf")
        return raw[3:] if self.bom else raw


def _bad_bytes(raw: bytes, error: UnicodeDecodeError, line: int) -> Finding:
    byte = raw[error.start]
    text = f"line {line}: byte 0x{byte:02x} at position {error.start} is not UTF-8"
    return _finding("bad_utf8", text, "save the file as UTF-8 (was it Latin-1 or Windows-1252?)")


def _finding(code: str, message: str, hint: str) -> Finding:
    return Finding(code=code, level="error", message=message, hint=hint)


@dataclass
class _Scan:
    header: list[str] = field(default_factory=list)
    tallies: list[ColumnTally] = field(default_factory=list)
    num_rows: int = 0
    num_blank: int = 0
    ragged: list[str] = field(default_factory=list)
    num_ragged: int = 0
    fingerprints: set[int] = field(default_factory=set)
    num_duplicates: int = 0
    findings: list[Finding] = field(default_factory=list)


def inspect_csv(path: Path, *, id_columns: Sequence[str]) -> DataFileReport:
    """Read the whole file (or its first SCAN_LIMIT_BYTES) and report."""
    delimiter = detect_delimiter(path)
    scan = _Scan()
    with path.open("rb") as handle:
        lines = TextLines(handle)
        try:
            _read_records(lines, delimiter, scan, id_columns)
        except UnreadableText as error:
            scan.findings.append(error.finding)
            return _report(path, scan, delimiter, lines, readable=False)
        except csv.Error as error:
            scan.findings.append(_csv_error(path, delimiter, error, lines))
            return _report(path, scan, delimiter, lines, readable=False)
    return _report(path, scan, delimiter, lines, readable=True)


def _read_records(lines: TextLines, delimiter: str, scan: _Scan, id_columns: Sequence[str]) -> None:
    csv.field_size_limit(2**31 - 1)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    chunk: list[list[str]] = []
    for record in reader:
        if not record or (len(record) == 1 and not record[0].strip() and len(scan.header) != 1):
            scan.num_blank += 1
            continue
        if not scan.header:
            scan.header = record
            scan.tallies = [ColumnTally(name, is_id=_is_id(name, id_columns)) for name in record]
            continue
        scan.num_rows += 1
        if len(record) != len(scan.header):
            scan.num_ragged += 1
            if len(scan.ragged) < _LISTED:
                scan.ragged.append(f"record {scan.num_rows} (line {reader.line_num}) has {len(record)} fields")
            record = (record + [""] * len(scan.header))[: len(scan.header)]
        chunk.append(record)
        if len(chunk) == _CHUNK_ROWS:
            _add_chunk(scan, chunk)
            chunk = []
    _add_chunk(scan, chunk)


def _is_id(name: str, id_columns: Sequence[str]) -> bool:
    return name in id_columns or name.lower() == "id"


def _add_chunk(scan: _Scan, chunk: list[list[str]]) -> None:
    if not chunk:
        return
    first_row = scan.num_rows - len(chunk) + 1
    for tally, column in zip(scan.tallies, zip(*chunk, strict=True), strict=True):
        tally.add(column, first_row=first_row)
    for record in chunk:
        fingerprint = hash(tuple(record))
        scan.num_duplicates += fingerprint in scan.fingerprints
        scan.fingerprints.add(fingerprint)


def _report(path: Path, scan: _Scan, delimiter: str, lines: TextLines, *, readable: bool) -> DataFileReport:
    findings = list(scan.findings)
    if readable:
        findings += _shape_findings(scan, delimiter, lines)
        for tally in scan.tallies:
            findings += tally.findings()
    whole = readable and lines.complete
    return DataFileReport(
        path=str(path),
        format="csv",
        size_bytes=path.stat().st_size,
        num_rows=scan.num_rows if whole else None,
        columns=tuple(tally.report() for tally in scan.tallies) if readable else (),
        encoding="utf-8-sig" if lines.bom else "utf-8" if readable else "",
        delimiter=delimiter,
        complete=whole,
        findings=tuple(findings),
    )


def _shape_findings(scan: _Scan, delimiter: str, lines: TextLines) -> list[Finding]:
    found: list[Finding] = []

    def add(code: str, level: str, message: str, hint: str = "") -> None:
        found.append(Finding.model_validate({"code": code, "level": level, "message": message, "hint": hint}))

    if lines.bom:
        add("utf8_bom", "warning", "the file starts with a UTF-8 BOM", "the script must read it as utf-8-sig")
    if not lines.complete:
        text = f"only the first {SCAN_LIMIT_BYTES // 2**20} MiB ({scan.num_rows} rows) were checked"
        add("not_scanned", "warning", text, "what lies behind is unknown")
    if scan.num_rows == 0:
        add("no_rows", "error", "the file has no rows of data", "give a file with a header and rows")
    if delimiter != ",":
        add("delimiter", "note", f"fields are separated by {delimiter!r}", "the script must read it so")
    if scan.num_blank:
        add("blank_lines", "note", f"{scan.num_blank} blank line(s) ignored")
    if scan.num_ragged:
        more = f" and {scan.num_ragged - len(scan.ragged)} more" if scan.num_ragged > len(scan.ragged) else ""
        text = f"the header has {len(scan.header)} fields, but {', '.join(scan.ragged)}{more}"
        add("ragged_rows", "error", text, "mend these records (quote fields that hold the delimiter)")
    duplicated = sorted({name for name in scan.header if scan.header.count(name) > 1})
    if duplicated:
        add("duplicate_columns", "error", f"columns that occur twice: {', '.join(map(repr, duplicated))}", "rename")
    alike = _alike(scan.header)
    if alike:
        text = f"columns that differ only in case or spaces: {', '.join(alike)}"
        add("similar_columns", "warning", text, "the script must name exactly the one that it means")
    if scan.header and all(classify_text(name).number is not None for name in scan.header):
        add("no_header", "warning", "the first record is all numbers and was taken for the header", "add a header")
    if scan.num_duplicates:
        add("duplicate_rows", "warning", f"{scan.num_duplicates} row(s) repeat an earlier row exactly")
    return found


def _alike(header: Sequence[str]) -> list[str]:
    """Names that another one would be, but for case and surrounding spaces; a name with such spaces counts itself."""
    seen: dict[str, set[str]] = {}
    for name in header:
        seen.setdefault(name.strip().casefold(), set()).add(name)
    return [repr(name) for names in seen.values() for name in sorted(names) if len(names) > 1 or name != name.strip()]


def _csv_error(path: Path, delimiter: str, error: csv.Error, lines: TextLines) -> Finding:
    if "unexpected end of data" in str(error):
        if not lines.complete:
            return _finding("unclosed_quote", "a quoted field runs over the part that was read", "check the quotes")
        line = _open_quote_line(path, delimiter)
        return _finding("unclosed_quote", f"the quote opened at line {line} is never closed", "close or double it")
    if "new-line character" in str(error):
        text = "the lines end with a carriage return alone, as old Macintosh programs wrote them"
        return _finding("cr_line_ends", text, "save it with line feeds")
    hint = "a field that holds quotes must be quoted, and its quotes doubled"
    return _finding("malformed_csv", f"line {lines.num_lines}: {error}", hint)


def _open_quote_line(path: Path, delimiter: str) -> int:
    """The line on which the quote that is still open at the end was opened."""
    opened, line, inside, at_field_start = 1, 1, False, True
    text = path.read_bytes().decode("utf-8-sig", errors="replace")
    position = 0
    while position < len(text):
        character = text[position]
        if inside:
            if character == '"' and text[position + 1 : position + 2] == '"':
                position += 1
            elif character == '"':
                inside = False
        elif character == '"' and at_field_start:
            inside, opened = True, line
        at_field_start = not inside and (character == delimiter or character in "\r\n")
        line += character == "\n"
        position += 1
    return opened


def detect_delimiter(path: Path) -> str:
    """The delimiter that cuts the first records into the same number of fields, more than one; a comma if none."""
    with path.open("rb") as handle:
        sample = handle.read(64 * 1024)
    text = sample.decode("utf-8-sig", errors="replace")
    candidates = ("\t", *_DELIMITERS) if path.suffix.lower() == ".tsv" else _DELIMITERS
    best, best_score = candidates[0], (0.0, 0)
    for delimiter in candidates:
        counts = _field_counts(text, delimiter, truncated=len(sample) == 64 * 1024)
        if not counts or counts[0] < 2:
            continue
        score = (counts.count(counts[0]) / len(counts), counts[0])
        if score[0] > best_score[0] or (score[0] == best_score[0] and score[1] > best_score[1]):
            best, best_score = delimiter, score
    return best


def _field_counts(text: str, delimiter: str, *, truncated: bool) -> list[int]:
    csv.field_size_limit(2**31 - 1)
    counts = [len(record) for record in csv.reader(text.splitlines(keepends=True), delimiter=delimiter) if record]
    return counts[:-1][:50] if truncated else counts[:50]


def iterate_csv(path: Path) -> Iterator[list[str]]:
    """The records of a file that inspect_csv found sound, header first; blank lines left out."""
    csv.field_size_limit(2**31 - 1)
    with path.open("rb") as handle:
        lines = TextLines(handle, limit_bytes=path.stat().st_size + 1)
        for record in csv.reader(lines, delimiter=detect_delimiter(path), strict=True):
            if record:
                yield record
