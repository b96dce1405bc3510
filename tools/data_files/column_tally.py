"""Counting what the cells of a column hold: exact integers, numbers, missing and non-finite values, text."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..domain.findings import Finding
from .report import ColumnReport

MISSING = frozenset({"", "na", "n/a", "#n/a", "nan", "-nan", "+nan", "null", "none", "<na>"})
NAN = frozenset({"nan", "-nan", "+nan"})
FLOAT32_MAX = 3.4028234663852886e38
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)\Z")
_CODE = re.compile(r"[-+]?0[0-9]")  # '007' is a name, whose zeros a number would lose
_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?\Z|[-+]?(?:inf|infinity)\Z", re.IGNORECASE)
# A whole column of one plain spelling, joined by newlines: counted without looking at each cell.
_DECIMALS = re.compile(r"-?[0-9]+\.[0-9]+(?:[eE][-+]?[0-9]+)?(?:\n-?[0-9]+\.[0-9]+(?:[eE][-+]?[0-9]+)?)*")
_INTEGERS = re.compile(r"-?(?:0|[1-9][0-9]{0,17})(?:\n-?(?:0|[1-9][0-9]{0,17}))*")
_NUMERIC = frozenset({"integer", "number", "infinite", "nan"})


class Cell(NamedTuple):
    """One value: its type, and the number if it is one. A 'missing word' is N/A or the like in a text file."""

    type: str
    number: float | None = None
    padded: bool = False
    beyond_int64: bool = False


def classify_text(text: str) -> Cell:
    """The type of a cell of a text file; '1,234' and the infinity sign are text."""
    stripped = text.strip()
    padded = stripped != text
    if _INTEGER.match(stripped) and len(stripped) <= 400:
        value = int(stripped)
        return Cell("integer", _as_float(value), padded, not -(2**63) <= value < 2**63)
    if _NUMBER.match(stripped) and not _CODE.match(stripped):
        number = float(stripped)
        return Cell("infinite" if math.isinf(number) else "number", number, padded)
    lowered = stripped.lower()
    if lowered in MISSING:
        return Cell("nan" if lowered in NAN else "missing" if not stripped else "missing word")
    return Cell("text", None, padded)


def classify_value(value: Any) -> Cell:
    """The type of a JSON or Arrow value; true is not 1."""
    if value is None:
        return Cell("missing")
    if isinstance(value, bool):
        return Cell("boolean")
    if isinstance(value, int):
        return Cell("integer", _as_float(value), False, not -(2**63) <= value < 2**63)
    if isinstance(value, float):
        return Cell("nan" if math.isnan(value) else "infinite" if math.isinf(value) else "number", value)
    if isinstance(value, str):
        return Cell("text")
    if isinstance(value, list):
        return Cell("list")
    return Cell("object" if isinstance(value, dict) else type(value).__name__)


def _as_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


@dataclass
class ColumnTally:
    """The running counts of one column; feed it chunk by chunk, then ask for the report.

    Args:
        is_id: also count distinct values, exactly, as text.
        text_file: 'N/A' and 'nan' are words there, and mean missing only in a numeric column.
    """

    name: str
    is_id: bool = False
    text_file: bool = True
    counts: Counter[str] = field(default_factory=Counter)
    first_rows: dict[str, int] = field(default_factory=dict)
    overflow: int = 0
    padded: int = 0
    first_padded: int | None = None
    beyond_int64: int = 0
    nested_non_finite: int = 0
    low: float = math.inf
    high: float = -math.inf
    total: float = 0.0
    seen: dict[str, int] = field(default_factory=dict)
    duplicate: tuple[int, int] | None = None
    sample_text: str = ""

    def add(self, values: Sequence[Any], *, first_row: int) -> None:
        """Count `values`, the first of which lies in row `first_row`."""
        if self.is_id:
            self._note_ids(values, first_row)
        if self.text_file and self._add_uniform(values, first_row):
            return
        if self.text_file:
            for text, count in Counter(values).items():
                cell = classify_text(text)
                self._count(cell, count)
                if cell.type not in self.first_rows or (cell.padded and self.first_padded is None):
                    self._note_first(cell, first_row + values.index(text), text)
            return
        for row, value in enumerate(values, first_row):
            cell = classify_value(value)
            self._count(cell, 1)
            if cell.type not in self.first_rows:
                self._note_first(cell, row, str(value))
            if cell.type in ("list", "object"):
                self.nested_non_finite += _non_finite(value)

    def _add_uniform(self, values: Sequence[str], first_row: int) -> bool:
        """Count a chunk whose cells are all plain integers or all plain decimals; False if they are not."""
        joined = "\n".join(values)
        kind = "number" if _DECIMALS.fullmatch(joined) else "integer" if _INTEGERS.fullmatch(joined) else None
        if kind is None:
            return False
        try:
            numbers = list(map(float, values))
        except ValueError:  # a newline inside a cell
            return False
        low, high = min(numbers), max(numbers)
        if max(high, -low) > FLOAT32_MAX:
            return False
        self.counts[kind] += len(numbers)
        self.first_rows.setdefault(kind, first_row)
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.total += sum(numbers)
        return True

    def _note_first(self, cell: Cell, row: int, text: str) -> None:
        if row < self.first_rows.get(cell.type, row + 1):
            self.first_rows[cell.type] = row
            if cell.type == "text":
                self.sample_text = text[:20]
        if cell.padded and _is_number(cell) and self.first_padded is None:
            self.first_padded = row

    def _count(self, cell: Cell, count: int) -> None:
        self.counts[cell.type] += count
        self.beyond_int64 += count * cell.beyond_int64
        if cell.padded and _is_number(cell):
            self.padded += count
        if cell.number is None or not math.isfinite(cell.number):
            return
        self.overflow += count * (abs(cell.number) > FLOAT32_MAX)
        self.low, self.high = min(self.low, cell.number), max(self.high, cell.number)
        self.total += cell.number * count

    def _note_ids(self, values: Sequence[Any], first_row: int) -> None:
        for row, value in enumerate(values, first_row):
            text = "" if value is None else str(value).strip()
            if text and self.seen.setdefault(text, row) != row and self.duplicate is None:
                self.duplicate = (self.seen[text], row)

    @property
    def numeric(self) -> bool:
        """Whether most present cells are numbers."""
        numbers = self.counts["integer"] + self.counts["number"] + self.counts["infinite"]
        return numbers > sum(self._present().values()) - numbers

    def _present(self) -> Counter[str]:
        gone = {"missing", "missing word", "nan"} if self.text_file else {"missing"}
        return Counter({t: n for t, n in self.counts.items() if t not in gone})

    def report(self) -> ColumnReport:
        numeric = self.numeric
        types = dict(self._present())
        missing = self.counts["missing"]
        if self.text_file and (numeric or not types):
            missing += self.counts["missing word"] + self.counts["nan"]
        elif self.text_file:
            types["text"] = types.get("text", 0) + self.counts["missing word"] + self.counts["nan"]
        finite = self.counts["integer"] + self.counts["number"]
        statistics = math.isfinite(self.low) and math.isfinite(self.total)
        return ColumnReport(
            name=self.name,
            types=types,
            first_rows={t: self.first_rows[t] for t in types if t in self.first_rows},
            numeric=numeric,
            num_missing=missing,
            num_nan=self.counts["nan"] if numeric or not self.text_file else 0,
            num_infinite=self.counts["infinite"] if numeric else 0,
            num_finite=finite,
            num_overflow_float32=self.overflow,
            num_distinct=len(self.seen) if self.is_id else None,
            duplicate_rows=self.duplicate,
            minimum=self.low if statistics else None,
            maximum=self.high if statistics else None,
            mean=self.total / finite if statistics and finite else None,
        )

    def findings(self) -> list[Finding]:
        """What is wrong or odd with this column."""
        report = self.report()
        where = f"column {self.name!r}"
        found = _value_findings(where, report, self.first_rows)
        absent = report.num_missing - (report.num_nan if self.text_file else 0)
        if absent:
            text = f"{where}: missing in {absent} row(s)" if report.types else f"{where}: every cell is empty"
            hint = "say how the script treats them; readers turn them into NaN, and integers into floats"
            found.append(Finding(code="missing_values", level="warning", message=text, hint=hint))
        if self.nested_non_finite:
            text = f"{where}: {self.nested_non_finite} NaN or infinite value(s) inside nested values"
            found.append(Finding(code="nan_values", level="error", message=text, hint="clean or drop these rows"))
        found += self._type_findings(where, report)
        if self.beyond_int64:
            text = (
                f"{where}: {self.beyond_int64} integer(s) beyond 64 bits; a reader that uses int64 or float loses them"
            )
            found.append(Finding(code="beyond_int64", level="warning", message=text, hint="read the column as text"))
        if report.duplicate_rows:
            first, second = report.duplicate_rows
            text = f"{where}: one id stands in rows {first} and {second}; {report.num_distinct} distinct ids in all"
            found.append(Finding(code="duplicate_ids", level="warning", message=text, hint="ids should be unique"))
        return found

    def _type_findings(self, where: str, report: ColumnReport) -> list[Finding]:
        found = []
        kinds = Counter({_kind(t): 0 for t in report.types})
        for name, count in report.types.items():
            kinds[_kind(name)] += count
        some_numbers = kinds["number"] >= max(2, kinds["text"])  # a column of codes or flags, not of words
        if len(kinds) > 1 and (report.numeric or not self.text_file or some_numbers):
            ordered = sorted(report.types.items(), key=lambda item: -item[1])
            words = [f"{name} in {count} row(s), first in row {report.first_rows.get(name)}" for name, count in ordered]
            sample = f" ({self.sample_text!r})" if self.text_file and self.sample_text else ""
            text = f"{where} mixes types: " + "; ".join(words) + sample
            found.append(Finding(code="mixed_types", level="warning", message=text, hint="make the column one type"))
        if self.padded and report.numeric:
            text = f"{where}: {self.padded} number(s) with spaces around them, first in row {self.first_padded}"
            found.append(Finding(code="padded_numbers", level="warning", message=text, hint="strip the cells"))
        return found


def _is_number(cell: Cell) -> bool:
    return cell.type in _NUMERIC


def _kind(name: str) -> str:
    return "number" if name in _NUMERIC else name


def _value_findings(where: str, report: ColumnReport, first_rows: dict[str, int]) -> list[Finding]:
    found = []
    hint = "clean or drop these rows; a loss computed from them becomes NaN"
    if report.num_nan:
        text = f"{where}: NaN in {report.num_nan} row(s), first in row {first_rows.get('nan')}"
        found.append(Finding(code="nan_values", level="error", message=text, hint=hint))
    if report.num_infinite:
        text = f"{where}: infinite in {report.num_infinite} row(s), first in row {first_rows.get('infinite')}"
        found.append(Finding(code="infinite_values", level="error", message=text, hint=hint))
    if report.num_overflow_float32:
        text = f"{where}: {report.num_overflow_float32} value(s) overflow float32"
        found.append(Finding(code="overflow_float32", level="warning", message=text, hint="scale the column"))
    return found


def _non_finite(value: Any) -> int:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return sum(_non_finite(v) for v in value.values())
    if isinstance(value, (list, tuple)):
        return sum(_non_finite(v) for v in value)
    return 0
