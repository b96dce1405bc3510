"""Files that are not what their name says, and columns and keys that only seem to be what they are."""

import gzip
import io
import zipfile
from pathlib import Path

import pytest

from tools.data_files import DataFileReport, column_names, inspect_data_file
from tools.domain.errors import InvalidInput

TABLE = b"id,text\n1,a\n2,b\n"
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


def inspected(folder: Path, name: str, content: bytes) -> DataFileReport:
    path = folder / name
    path.write_bytes(content)
    return inspect_data_file(path)


def archive() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("a.csv", TABLE)
    return buffer.getvalue()


@pytest.mark.parametrize("name", ["x.csv", "x.tsv", "x.jsonl", "x.parquet"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (gzip.compress(TABLE, mtime=0), "gzip"),
        (archive(), "zip archive"),
        (LFS, "Git LFS pointer"),
        (b"\n<!DOCTYPE html><html><body>404</body></html>", "web page"),
        (b"%PDF-1.7", "PDF"),
    ],
)
def test_what_a_file_is_instead_is_said(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    report = inspected(tmp_path, name, content)
    assert [(f.level, f.code) for f in report.findings] == [("error", "not_the_format")]
    assert words in report.findings[0].message
    assert report.num_rows is None


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf16_without_a_mark_is_called_utf16(tmp_path: Path, encoding: str) -> None:
    report = inspected(tmp_path, "x.csv", TABLE.decode().encode(encoding))
    assert [f.code for f in report.findings] == ["utf16"]
    with pytest.raises(InvalidInput, match="UTF-16"):
        column_names(tmp_path / "x.csv")


def test_carriage_returns_alone_are_called_so(tmp_path: Path) -> None:
    assert [f.code for f in inspected(tmp_path, "x.csv", b"id,text\r1,a\r2,b\r").findings] == ["cr_line_ends"]


def test_a_text_table_is_no_disguise(tmp_path: Path) -> None:
    assert inspected(tmp_path, "x.csv", TABLE).findings == ()
    assert inspected(tmp_path, "y.csv", b"x\n\0\n1\n").num_rows == 2


def test_columns_that_differ_in_case_or_spaces_are_pointed_out(tmp_path: Path) -> None:
    report = inspected(tmp_path, "x.csv", b"id,text,Text, label\n1,a,b,0\n2,c,d,1\n")
    finding = next(f for f in report.findings if f.code == "similar_columns")
    assert "'Text', 'text', ' label'" in finding.message


def test_a_key_that_stands_twice_makes_a_line_faulty_at_any_depth(tmp_path: Path) -> None:
    report = inspected(tmp_path, "x.jsonl", b'{"a":1}\n{"a":1,"a":2}\n{"b":{"c":1,"c":1}}\n')
    text = next(f.message for f in report.findings if f.code == "broken_lines")
    assert "line 2: the key 'a' stands twice" in text
    assert "line 3: the key 'c' stands twice" in text
    assert report.num_rows == 1


@pytest.mark.parametrize("cells", [("True", "False", "1", "0"), ("01234", "02139", "90210", "10001")])
def test_numbers_among_flags_or_codes_are_mixed_types(tmp_path: Path, cells: tuple[str, ...]) -> None:
    report = inspected(tmp_path, "x.csv", "\n".join(("y", *cells, "")).encode())
    assert [f.code for f in report.findings] == ["mixed_types"]
