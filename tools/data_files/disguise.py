"""Files that are not what their name says: archives, web pages, pointers, UTF-16 without a mark."""

from pathlib import Path

from ..domain.findings import Finding

_HEAD_BYTES = 4096
_BEGINNINGS = (
    (b"\x1f\x8b", "compressed with gzip", "unpack it, and name the file that comes out"),
    (b"PK\x03\x04", "a zip archive or an office document", "unpack it, or export it as CSV"),
    (b"BZh", "compressed with bzip2", "unpack it, and name the file that comes out"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd", "unpack it, and name the file that comes out"),
    (b"\xfd7zXZ\0", "compressed with xz", "unpack it, and name the file that comes out"),
    (b"PAR1", "a Parquet file", "name it .parquet"),
    (b"ARROW1", "an Arrow file", "write it as Parquet"),
    (b"\x93NUMPY", "a NumPy array", "name it .npy"),
    (b"\x80\x04", "a Python pickle", "write it as Parquet; unpickling runs what the file says"),
    (b"%PDF", "a PDF document", "give the table itself"),
    (b"version https://git-lfs", "a Git LFS pointer, not the data", "fetch the data: git lfs pull"),
)


def disguise(path: Path, *, expected: bytes = b"") -> Finding | None:
    """What the file is instead of a text table (or of what begins with `expected`); None if nothing else is known."""
    with path.open("rb") as handle:
        head = handle.read(_HEAD_BYTES)
    for beginning, what, hint in _BEGINNINGS:
        if head.startswith(beginning) and beginning != expected:
            return _finding("not_the_format", f"the file is {what}, whatever its name says", hint)
    if head.lstrip()[:15].lower().startswith((b"<!doctype html", b"<html")):
        return _finding("not_the_format", "the file is a web page, as a failed download leaves it", "fetch it again")
    if expected:
        return None
    if _is_wide(head):
        return _finding("utf16", "the file is encoded as UTF-16, without a byte-order mark", "save it as UTF-8")
    return None


def _is_wide(head: bytes) -> bool:
    """Whether nearly every second byte is NUL, as Latin text is in UTF-16."""
    pairs = len(head) // 2
    nuls = (head[0 : 2 * pairs : 2].count(0), head[1 : 2 * pairs : 2].count(0))
    return pairs >= 2 and max(nuls) > 0.7 * pairs and min(nuls) < 0.3 * pairs


def _finding(code: str, message: str, hint: str) -> Finding:
    return Finding(code=code, level="error", message=message, hint=hint)
