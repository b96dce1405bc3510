"""Tables in terminals of any width."""

import io
from contextlib import redirect_stdout
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from agent_server.cli.output import table

_WORDS = st.lists(st.text("abc-", min_size=1, max_size=24), max_size=4).map(" ".join)


@given(rows=st.lists(st.tuples(_WORDS, _WORDS, _WORDS), min_size=1, max_size=4), width=st.integers(20, 200))
def test_no_word_is_broken_or_lost(rows: list[tuple[str, str, str]], width: int) -> None:
    printed = _printed(rows, width)
    wanted = " ".join(("Runs run state reason", *(cell for row in rows for cell in row)))
    assert sorted(word for word in printed.split() if "─" not in word) == sorted(wanted.split())


def test_a_line_that_has_room_is_one_line() -> None:
    row = ("run-re0b0x6cnd", "succeeded", "3 min ago")
    assert "run-re0b0x6cnd  succeeded  3 min ago" in _printed([row], 60)


def test_a_word_that_is_longer_than_any_is_folded() -> None:
    row = ("run-re0b0x6cnd", "failed", "/data/" + "x" * 60)
    lines = _printed([row], 60).splitlines()
    assert max(map(len, lines)) <= 60
    assert "".join(line.split()[-1] for line in lines if "/data" in line or "xxx" in line) == row[2]


def _printed(rows: list[tuple[str, str, str]], width: int) -> str:
    output = io.StringIO()
    with redirect_stdout(output), patch.dict("os.environ", COLUMNS=str(width)):
        table("Runs", ("run", "state", "reason"), rows, empty="none")
    return output.getvalue()
