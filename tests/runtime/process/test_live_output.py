"""What ranks print appears line by line and whole, whatever the pieces in which it was written; tracebacks do not."""

import io
import json
from pathlib import Path

from runtime.cli.live_output import LiveOutput
from runtime.layout import RunLayout


def _append(path: Path, text: str) -> None:
    with path.open("a") as handle:
        handle.write(text)


def _follow(layout: RunLayout, num_processes: int) -> tuple[LiveOutput, io.BytesIO, io.BytesIO]:
    layout.logs.mkdir()
    out, err = io.BytesIO(), io.BytesIO()
    return LiveOutput(layout, num_processes=num_processes, stdout=out, stderr=err), out, err


def test_lines_of_several_ranks_are_never_torn(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    output, out, _ = _follow(layout, 2)
    for piece in ("one\ntw", "o\nthr", "ee\n", "no end"):
        for rank in (0, 1):
            _append(layout.stdout(rank), piece)
        output.look(last=False)
    output.look(last=True)
    for rank in (0, 1):
        mine = [line for line in out.getvalue().decode().splitlines() if line.startswith(f"[rank{rank}] ")]
        assert mine == [f"[rank{rank}] {text}" for text in ("one", "two", "three", "no end")]


def test_one_rank_is_copied_as_it_is(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    output, out, _ = _follow(layout, 1)
    for piece in ("10%\r", "20%\r", "done"):
        _append(layout.stdout(0), piece)
        output.look(last=False)
    output.look(last=True)
    assert out.getvalue() == b"10%\r20%\rdone"


def test_a_progress_bar_of_several_ranks_moves_before_its_line_ends(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    output, _, err = _follow(layout, 2)
    for piece, shown in (
        ("\r 0%", "\r"),
        ("\r50%", "[rank1]  0%\r"),
        ("\r99%\r", "[rank1] 50%\r"),
        ("100%\r", "[rank1] 99%\r"),
        ("\nnext\r\n", "[rank1] 100%\r\n[rank1] next\r\n"),
        ("end", ""),
    ):
        before = len(err.getvalue())
        _append(layout.stderr(1), piece)
        output.look(last=False)
        assert err.getvalue()[before:].decode() == shown
    output.look(last=True)
    assert err.getvalue().endswith(b"[rank1] end\n")


def test_a_traceback_is_left_out_however_it_arrives(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    output, _, err = _follow(layout, 1)
    _append(layout.stderr(0), "before\n")
    layout.error(0).write_text(json.dumps({"stderr_begin": 7}))
    _append(layout.stderr(0), "Traceback (most")
    output.look(last=False)
    _append(layout.stderr(0), " recent call last):\n")
    output.look(last=False)
    assert err.getvalue() == b"before\n"
    end = layout.stderr(0).stat().st_size
    _append(layout.stderr(0), "after\n")
    layout.error(0).write_text(json.dumps({"stderr_begin": 7, "stderr_end": end}))
    output.look(last=False)
    output.look(last=True)
    assert err.getvalue() == b"before\nafter\n"


def test_a_rank_that_dies_while_it_prints_its_traceback_shows_none_of_it(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    output, _, err = _follow(layout, 1)
    layout.error(0).write_text(json.dumps({"stderr_begin": 0}))
    _append(layout.stderr(0), "Traceback (most")
    output.look(last=False)
    output.look(last=True)
    assert err.getvalue() == b""
