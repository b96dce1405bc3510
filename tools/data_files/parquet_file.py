"""Parquet through pyarrow: schema with full paths, rows, non-finite values inside nested columns, duplicates."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..domain.findings import Finding
from .column_tally import ColumnTally
from .report import DataFileReport

_ROW_LIMIT = 200_000


class UnreadableParquet(Exception):
    """pyarrow cannot open the file."""


def inspect_parquet(path: Path, *, id_columns: Sequence[str]) -> DataFileReport:
    """Report on the file; rows beyond _ROW_LIMIT are counted but not looked at, and the report says so."""
    size = path.stat().st_size
    try:
        return _inspect(path, size, id_columns)
    except UnreadableParquet as error:
        text = f"not a whole Parquet file: {error}"
        finding = Finding(code="broken_parquet", level="error", message=text, hint="write or fetch the file again")
        return DataFileReport(
            path=str(path), format="parquet", size_bytes=size, num_rows=None, complete=False, findings=(finding,)
        )


def _inspect(path: Path, size: int, id_columns: Sequence[str]) -> DataFileReport:
    with _open(path) as file:
        schema = file.schema_arrow
        num_rows = file.metadata.num_rows
        tallies = [
            ColumnTally(name, is_id=name in id_columns or name.lower() == "id", text_file=False)
            for name in schema.names
        ]
        num_read, num_duplicates = _tally(file, tallies)
        paths = tuple(_schema_paths(schema))
    findings = []
    if num_rows == 0:
        text = "the file has a schema and no rows"
        findings.append(Finding(code="no_rows", level="error", message=text, hint="give a file with rows"))
    if num_read < num_rows:
        text = f"only the first {num_read} of {num_rows} rows were checked"
        findings.append(Finding(code="not_scanned", level="warning", message=text, hint="the rest is unknown"))
    if num_duplicates:
        text = f"{num_duplicates} row(s) repeat an earlier row exactly"
        findings.append(Finding(code="duplicate_rows", level="warning", message=text))
    for tally in tallies:
        findings += tally.findings()
    return DataFileReport(
        path=str(path),
        format="parquet",
        size_bytes=size,
        num_rows=num_rows,
        columns=tuple(tally.report() for tally in tallies),
        schema_paths=paths,
        complete=num_read == num_rows,
        findings=tuple(findings),
    )


def _open(path: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).split("\n")[0][:200]
        if "magic bytes not found" in reason or "Parquet file size" in reason:
            reason = "footer missing or truncated"
        raise UnreadableParquet(reason) from error


def _tally(file: Any, tallies: list[ColumnTally]) -> tuple[int, int]:
    num_read = num_duplicates = 0
    fingerprints: set[str] = set()
    for columns in _batches(file):
        if num_read >= _ROW_LIMIT:
            break
        rows = len(columns[0]) if columns else 0
        for tally, values in zip(tallies, columns, strict=True):
            tally.add(values, first_row=num_read + 1)
        for row in zip(*columns, strict=True):
            text = repr(row)
            num_duplicates += text in fingerprints
            fingerprints.add(text)
        num_read += rows
    return num_read, num_duplicates


def _batches(file: Any) -> Iterator[list[list[Any]]]:
    import pyarrow as pa

    try:
        for batch in file.iter_batches(batch_size=20_000):
            yield [column.to_pylist() for column in batch.columns]
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UnreadableParquet(str(error).split("\n")[0][:200]) from error


def _schema_paths(schema: Any) -> Iterator[str]:
    for field in schema:
        yield from _paths(field, field.name)


def _paths(field: Any, path: str) -> Iterator[str]:
    import pyarrow as pa

    kind = field.type
    if pa.types.is_struct(kind):
        for index in range(kind.num_fields):
            child = kind.field(index)
            yield from _paths(child, f"{path}.{child.name}")
    elif pa.types.is_map(kind):
        yield from _paths(kind.key_field, f"{path}.key")
        yield from _paths(kind.item_field, f"{path}.value")
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        yield from _paths(kind.value_field, f"{path}[]")
    else:
        yield f"{path}: {kind}"


def parquet_names(path: Path) -> list[str]:
    with _open(path) as file:
        return list(file.schema_arrow.names)


def read_parquet(path: Path, columns: Sequence[str]) -> dict[str, list[Any]]:
    with _open(path) as file:
        table = file.read(columns=list(columns))
    return {name: table.column(name).to_pylist() for name in columns}
