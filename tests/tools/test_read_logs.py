"""Pages of logs: nothing repeated, nothing lost, nothing raw, nothing secret."""

import time
import tracemalloc
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.layout import RunLayout
from tools.domain.errors import InvalidInput
from tools.domain.reports import LogPage
from tools.read_logs import CONTINUES, PAGE_BYTES, UNFINISHED, read_logs

RUN = "run-0000000000"


def make(root: Path, content: bytes = b"", *, rank: int = 0) -> RunLayout:
    layout = RunLayout(root)
    layout.logs.mkdir(parents=True, exist_ok=True)
    layout.stdout(rank).write_bytes(content)
    return layout


def page(layout: RunLayout, cursor: str = "", *, pattern: str = "", max_lines: int = 1000) -> LogPage:
    return read_logs(layout, run_id=RUN, rank=0, cursor=cursor, pattern=pattern, max_lines=max_lines)


def joined(pages: list[LogPage]) -> str:
    """The text of pages, put together by what their notes say."""
    text = ""
    for one in pages:
        if one.lines and text and CONTINUES not in one.note:
            text += "\n"
        text += "\n".join(one.lines)
        if one.lines and text and UNFINISHED not in one.note and one is pages[-1]:
            text += ""
    return text


TEXT = st.text(alphabet=st.sampled_from(list("ab \u00e9\u4e2d\U0001f600")), max_size=30)


@settings(max_examples=40, deadline=None)
@given(
    lines=st.lists(TEXT.filter(bool), min_size=1, max_size=12),
    chunks=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    max_lines=st.integers(1, 5),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_pages_of_a_growing_log_make_the_whole(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], chunks: list[int], max_lines: int, end: str
) -> None:
    content = "".join(line + end for line in lines).encode()
    layout = make(tmp_path_factory.mktemp("run"))
    pages: list[LogPage] = []
    cursor, written = "", 0
    for number in range(len(content)):
        size = chunks[number % len(chunks)]
        with layout.stdout(0).open("ab") as handle:
            handle.write(content[written : written + size])
        written += size
        at_end = False
        while not at_end:
            pages.append(page(layout, cursor, max_lines=max_lines))
            cursor, at_end = pages[-1].cursor, pages[-1].at_end
        if written >= len(content):
            break
    assert joined(pages).split("\n") == lines
    assert cursor == f"rank0.stdout@{len(content)}"


@settings(max_examples=40, deadline=None)
@given(content=st.binary(max_size=400), max_lines=st.integers(1, 7))
def test_any_bytes_are_paged_to_the_end_and_shown_harmlessly(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, max_lines: int
) -> None:
    layout = make(tmp_path_factory.mktemp("run"), content)
    cursor, at_end = "", False
    for _ in range(len(content) + 1):
        one = page(layout, cursor, max_lines=max_lines)
        assert len(one.lines) <= max_lines
        assert all(c.isprintable() or unicodedata.category(c) == "Zs" for line in one.lines for c in line)
        cursor, at_end = one.cursor, one.at_end
        if at_end:
            break
    assert at_end


def test_an_endless_line_comes_in_pieces_and_no_character_is_cut(tmp_path: Path) -> None:
    layout = make(tmp_path, ("\u4e2d" * 30_000).encode() + b"\nend\n")
    pages = [page(layout)]
    while not pages[-1].at_end:
        pages.append(page(layout, pages[-1].cursor))
    assert all(sum(len(line.encode()) + 1 for line in one.lines) <= PAGE_BYTES for one in pages)
    assert "".join("".join(one.lines) for one in pages) == "\u4e2d" * 30_000 + "end"
    assert "more follows" in pages[0].note


def test_progress_updates_are_lines_and_the_newest_is_seen_at_once(tmp_path: Path) -> None:
    layout = make(tmp_path, b"".join(b"\rstep %d loss 0.5" % i for i in range(1, 300)))
    first = page(layout)
    assert first.lines[0] == "step 1 loss 0.5"
    newest = page(layout, "tail", max_lines=2)
    assert newest.lines[-1] == "step 299 loss 0.5"
    assert newest.at_end
    with layout.stdout(0).open("ab") as handle:
        handle.write(b"\rstep 300 loss 0.1234\nTraceback (most recent call last):\n")
    assert page(layout, newest.cursor).lines == ("step 300 loss 0.1234", "Traceback (most recent call last):")


def test_a_huge_progress_log_is_searched_in_flat_memory(tmp_path: Path) -> None:
    layout = make(tmp_path)
    with layout.stdout(0).open("wb") as handle:
        for i in range(1, 30_001):
            handle.write(f"\r{i / 300:5.1f}% step {i} loss {0.1234 if i == 30_000 else 1 + 1 / i:.4f} |███|".encode())
        handle.write(b'\nTraceback (most recent call last):\n  File "t.py", line 1, in <module>\nRuntimeError: size\n')
    tracemalloc.start()
    start = time.process_time()
    found, cursor = [], ""
    while True:
        one = page(layout, cursor, pattern="traceback")
        found += one.lines
        cursor = one.cursor
        if one.at_end:
            break
    assert found == ["Traceback (most recent call last):"]
    assert tracemalloc.get_traced_memory()[1] < 3_000_000
    tracemalloc.stop()
    assert time.process_time() - start < 30
    assert "step 30000 loss 0.1234 |███|" in page(layout, "tail").lines[-4]


def test_a_five_megabyte_line_is_capped(tmp_path: Path) -> None:
    layout = make(tmp_path, b"x" * 5_000_000)
    one = page(layout, "tail")
    assert sum(map(len, one.lines)) <= PAGE_BYTES
    assert one.at_end
    first = page(layout)
    assert sum(map(len, first.lines)) <= PAGE_BYTES
    assert UNFINISHED in first.note
    assert CONTINUES in page(layout, first.cursor).note


def test_overwritten_text_and_escapes_stay_visible(tmp_path: Path) -> None:
    layout = make(tmp_path, b"rm -rf /tmp/x\rall is fine     \n\x1b]0;owned\x07title\nsecret\b\bpublic\n\x9b31mc1\n")
    assert page(layout).lines == (
        "rm -rf /tmp/x",
        "all is fine     ",
        "\\x1b]0;owned\\x07title",
        "secret\\x08\\x08public",
        "\\x9b31mc1",
    )


def test_secrets_are_masked_also_across_pieces_and_cannot_be_searched_for(tmp_path: Path) -> None:
    layout = make(tmp_path, b"--hub_token=SECRET-abc\nsafe\n" + b"y" * 4_090 + b" api_key=SECRET-def ghi\n")
    lines = page(layout).lines
    assert lines[:2] == ("--hub_token=***", "safe")
    assert "SECRET" not in "".join(lines)
    assert "DEF" not in "".join(lines).upper()
    assert "".join(lines).endswith(" ghi")
    assert page(layout, pattern="SECRET-a").lines == ()


def test_the_pattern_is_no_regular_expression(tmp_path: Path) -> None:
    layout = make(tmp_path, b"aaaa\nthe (a+)+$ line\n")
    assert page(layout, pattern="(A+)+$").lines == ("the (a+)+$ line",)


@pytest.mark.parametrize(
    "cursor", ["5", "rank1.stdout@0", "rank0.stderr@0", "rank0.stdout@-1", "rank0.stdout@99", "x\x1b"]
)
def test_a_foreign_cursor_is_refused(tmp_path: Path, cursor: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        page(make(tmp_path, b"abc\n"), cursor)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    ("rank", "max_lines", "pattern"), [(7, 5, ""), (-1, 5, ""), (0, 0, ""), (0, 10_000, ""), (0, 5, "p" * 201)]
)
def test_impossible_arguments_are_refused(tmp_path: Path, rank: int, max_lines: int, pattern: str) -> None:
    with pytest.raises(InvalidInput):
        read_logs(make(tmp_path, b"a\n"), run_id=RUN, rank=rank, cursor="", pattern=pattern, max_lines=max_lines)


def test_a_log_that_does_not_exist_yet_is_an_empty_page(tmp_path: Path) -> None:
    one = read_logs(RunLayout(tmp_path), run_id=RUN, rank=0, cursor="", pattern="", max_lines=5, stream="engine")
    assert (one.lines, one.at_end, one.note) == ((), True, "no engine log yet")
