"""Data files as they come in real life: each test is a whole kind of fault, on the file that shows it."""

import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.data_files import ColumnReport, DataFileReport, column_names, inspect_data_file, read_columns
from tools.domain.errors import InvalidInput

CASES = Path(__file__).parent / "cases"


def look(name: str, **options: tuple[str, ...]) -> DataFileReport:
    return inspect_data_file(CASES / name, **options)


def codes(report: DataFileReport, level: str | None = None) -> list[str]:
    return [f.code for f in report.findings if level in (None, f.level)]


def message(report: DataFileReport, code: str) -> str:
    return " | ".join(f.message for f in report.findings if f.code == code)


def column(report: DataFileReport, name: str) -> ColumnReport:
    return next(c for c in report.columns if c.name == name)


@pytest.mark.parametrize("name", ["bom.csv", "bom_quoted.csv", "bom_crlf.csv"])
def test_a_byte_order_mark_does_not_stick_to_the_first_column(name: str) -> None:
    report = look(f"C62/{name}")
    assert report.column_names == ("id", "text", "label")
    assert report.num_rows == 3
    assert report.encoding == "utf-8-sig"
    finding = next(f for f in report.findings if f.code == "utf8_bom")
    assert "utf-8-sig" in finding.hint
    assert read_columns(CASES / "C62" / name, ["id", "label"]) == {"id": [1, 2, 3], "label": [1, 0, 1]}


def test_utf16_is_called_utf16_and_not_garbage() -> None:
    report = look("C62/utf16.csv")
    assert codes(report, "error") == ["utf16"]
    assert "UTF-16" in message(report, "utf16")
    with pytest.raises(InvalidInput, match="UTF-16"):
        column_names(CASES / "C62/utf16.csv")


def test_a_byte_that_is_not_utf8_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "latin.csv"
    path.write_bytes(b"id,text\n1,ok\n2,caf\xe9\n")
    report = inspect_data_file(path)
    assert codes(report, "error") == ["bad_utf8"]
    assert "line 3: byte 0xe9" in message(report, "bad_utf8")


def test_large_ids_stay_exact() -> None:
    ids = column(look("C64/ids.csv"), "id")
    assert (ids.num_finite, ids.num_distinct, ids.num_missing, ids.duplicate_rows) == (3, 2, 1, (1, 4))
    read = read_columns(CASES / "C64/ids.csv", ["id"])["id"]
    assert read == [1582218195625938945, 1582218195625938946, None, 1582218195625938945]


def test_ids_beyond_int64_are_kept_and_flagged() -> None:
    report = look("C64/ids.jsonl")
    assert "beyond_int64" in codes(report)
    assert column(report, "id").types == {"text": 1, "integer": 3}
    assert read_columns(CASES / "C64/ids.jsonl", ["id"])["id"][-1] == 18446744073709551617


def test_broken_json_lines_are_named_by_physical_line() -> None:
    report = look("C65/broken.jsonl")
    assert report.num_rows == 4
    text = message(report, "broken_lines")
    for part in ("line 4: an array", "line 5: a string", "line 8: not JSON", "line 9: more than one", "line 12: trunc"):
        assert part in text
    assert text.count("line ") == 5
    assert message(report, "blank_lines").startswith("3 blank")
    assert "cut of" not in text
    with pytest.raises(InvalidInput, match="line 4"):
        read_columns(CASES / "C65/broken.jsonl", ["x"])


def test_a_column_that_changes_its_type_is_counted_over_the_whole_file() -> None:
    report = look("C67/mixed.jsonl")
    ids, talks, labels = (column(report, name) for name in ("id", "conversations", "label"))
    assert ids.types == {"integer": 99, "text": 1}
    assert ids.first_rows["text"] == 100
    assert talks.types == {"list": 99, "object": 1}
    assert talks.first_rows["object"] == 50
    assert labels.types == {"text": 25, "boolean": 25, "number": 25, "integer": 25}
    assert "row 100" in message(report, "mixed_types")


def test_a_number_with_a_thousands_comma_or_a_space_is_pointed_out() -> None:
    report = look("C67/mixed.csv")
    assert "'1,234'" in message(report, "mixed_types")
    assert "first in row 2" in message(report, "mixed_types")
    assert "first in row 3" in message(report, "padded_numbers")


def test_nested_parquet_shows_paths_duplicates_and_hidden_nan() -> None:
    report = look("C68/nested.parquet")
    assert report.num_rows == 6
    assert {"turns[].role: string", "meta.a: int64", "m.value: int64", "vec[]: float"} <= set(report.schema_paths)
    assert message(report, "duplicate_rows").startswith("1 row(s)")
    assert "column 'vec': 1 NaN" in message(report, "nan_values")


def test_parquet_without_rows_or_footer_is_an_error_and_no_traceback() -> None:
    assert codes(look("C68/empty.parquet"), "error") == ["no_rows"]
    cut = look("C68/cut.parquet")
    assert codes(cut, "error") == ["broken_parquet"]
    assert "footer missing or truncated" in message(cut, "broken_parquet")
    assert cut.num_rows is None


def test_rows_are_records_and_not_lines() -> None:
    assert look("C71/multi.csv").num_rows == 2
    ragged = look("C71/ragged.csv")
    assert "record 2 (line 3) has 4 fields, record 3 (line 4) has 2 fields" in message(ragged, "ragged_rows")
    assert message(ragged, "blank_lines").startswith("1 blank")
    unclosed = look("C71/unclosed.csv")
    assert message(unclosed, "unclosed_quote") == "the quote opened at line 3 is never closed"
    assert unclosed.num_rows is None
    semicolon = look("C71/semicolon.csv")
    assert (semicolon.delimiter, semicolon.column_names, semicolon.num_rows) == (";", ("a", "b", "c"), 2)


def test_infinity_overflow_and_missing_are_told_apart() -> None:
    report = look("C73/inf.csv")
    x = column(report, "x")
    assert (x.num_finite, x.num_infinite, x.num_missing, x.num_overflow_float32) == (3, 3, 3, 1)
    assert x.types["text"] == 1
    assert x.maximum == 3.5e38
    assert set(codes(report, "error")) == {"nan_values", "infinite_values"}
    json.dumps(report.model_dump(mode="json"), allow_nan=False)


def test_a_lone_nan_far_down_is_found(tmp_path: Path) -> None:
    path = tmp_path / "late.csv"
    path.write_text("id,x\n" + "".join(f"{i},{i}.5\n" for i in range(25_000)) + "25000,nan\n25001,1.5\n")
    report = inspect_data_file(path)
    assert "first in row 25001" in message(report, "nan_values")
    assert column(report, "x").num_finite == 25_001


def test_words_that_look_like_missing_values_are_text_in_a_text_column(tmp_path: Path) -> None:
    path = tmp_path / "names.csv"
    path.write_text("name,country\nAda,NA\nNan,null\nInf,DE\n")
    report = inspect_data_file(path)
    assert not codes(report)
    assert read_columns(path, ["country"])["country"] == ["NA", "null", "DE"]


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_json_lines_with_values_that_json_does_not_know(tmp_path: Path, value: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"x": 1.0, "v": [1.0]}\n{"x": 2.0, "v": [' + value + ']}\n{"x": ' + value + ', "v": []}\n')
    report = inspect_data_file(path)
    assert len(codes(report, "error")) == 2
    json.dumps(report.model_dump(mode="json"), allow_nan=False)


def test_numpy_files_are_described_checked_and_never_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "good.npz", images=np.zeros((5, 8, 8), np.float32), labels=np.arange(5))
    good = inspect_data_file(tmp_path / "good.npz")
    assert (good.num_rows, good.column_names, codes(good)) == (5, ("images", "labels"), [])
    np.save(tmp_path / "bad.npy", np.array([1.0, math.nan, math.inf]))
    assert codes(inspect_data_file(tmp_path / "bad.npy"), "error") == ["nan_values", "infinite_values"]
    np.save(tmp_path / "objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    assert codes(inspect_data_file(tmp_path / "objects.npy"), "error") == ["broken_arrays"]
    (tmp_path / "cut.npz").write_bytes((tmp_path / "good.npz").read_bytes()[:200])
    assert codes(inspect_data_file(tmp_path / "cut.npz"), "error") == ["broken_arrays"]


def test_a_column_that_is_absent_is_answered_with_those_that_exist() -> None:
    with pytest.raises(InvalidInput) as caught:
        read_columns(CASES / "C70/test.csv", ["text", "lable"])
    assert "'lable'" in caught.value.what
    assert "'label'" in caught.value.allowed


def test_codes_with_leading_zeros_stay_text(tmp_path: Path) -> None:
    path = tmp_path / "zip.csv"
    path.write_text("zip,n\n00123,1\n00124,2.5\n,\n")
    assert read_columns(path, ["zip", "n"]) == {"zip": ["00123", "00124", None], "n": [1.0, 2.5, None]}


def test_empty_and_unknown_files_say_so(tmp_path: Path) -> None:
    (tmp_path / "empty.csv").touch()
    assert codes(inspect_data_file(tmp_path / "empty.csv"), "error") == ["no_rows"]
    (tmp_path / "model.bin").write_bytes(b"\x00\x01")
    assert codes(inspect_data_file(tmp_path / "model.bin")) == ["not_checked"]
    (tmp_path / "header.csv").write_text("a,b\n")
    assert codes(inspect_data_file(tmp_path / "header.csv"), "error") == ["no_rows"]


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=12)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(-(2**70), 2**70), TEXT), min_size=1, max_size=20))
def test_csv_and_parquet_and_jsonl_tell_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, str]]
) -> None:
    import csv

    folder = tmp_path_factory.mktemp("same")
    with (folder / "t.csv").open("w", newline="", encoding="utf-8") as handle:
        csv.writer(handle, quoting=csv.QUOTE_ALL).writerows([("id", "t"), *rows])
    lines = [json.dumps({"id": number, "t": text}) for number, text in rows]
    (folder / "t.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    table = pa.table({"id": [str(number) for number, _ in rows], "t": [text for _, text in rows]})
    pq.write_table(table, folder / "t.parquet")
    reports = [inspect_data_file(folder / f"t.{suffix}") for suffix in ("csv", "jsonl", "parquet")]
    assert {r.num_rows for r in reports} == {len(rows)}
    ids = read_columns(folder / "t.csv", ["id"])["id"]
    assert ids == [number for number, _ in rows]
    assert ids == read_columns(folder / "t.jsonl", ["id"])["id"]
    assert len({column(r, "id").num_distinct for r in reports}) == 1
