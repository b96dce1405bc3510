"""The typed report on one data file."""

from typing import Literal

from pydantic import Field

from runtime.config.plan import Frozen

from ..domain.findings import Finding

FileFormat = Literal["csv", "jsonl", "json", "parquet", "npy", "npz", "unknown"]


class ColumnReport(Frozen):
    """One column. Counts are of rows; rows are numbered from 1, a header is no row.

    Attributes:
        types: what the present cells hold -> number of rows.
        first_rows: the same types -> the first row that holds one.
        minimum, maximum, mean: over the finite numbers; None if there is none.
    """

    name: str
    types: dict[str, int] = Field(default_factory=dict)
    first_rows: dict[str, int] = Field(default_factory=dict)
    numeric: bool = False
    num_missing: int = 0
    num_nan: int = Field(default=0, description="written as NaN; in text files counted as missing too")
    num_infinite: int = 0
    num_finite: int = 0
    num_overflow_float32: int = 0
    num_distinct: int | None = Field(default=None, description="counted for id columns alone")
    duplicate_rows: tuple[int, int] | None = Field(default=None, description="first two rows with one id")
    minimum: float | None = None
    maximum: float | None = None
    mean: float | None = None


class DataFileReport(Frozen):
    """What is in a file. `complete` is False when only its beginning was read; `num_rows` is then None."""

    path: str
    format: FileFormat
    size_bytes: int
    num_rows: int | None
    columns: tuple[ColumnReport, ...] = ()
    schema_paths: tuple[str, ...] = Field(default=(), description="nested columns: full paths and types")
    encoding: str = ""
    delimiter: str = ""
    complete: bool = True
    findings: tuple[Finding, ...] = ()

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)
