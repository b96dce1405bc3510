"""Ranks that meet, or learn who is missing. Ranks are threads here, with a real store between them."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch.distributed as dist

from runtime.errors import DistributedError
from runtime.guard import Guard


def _guards(world: int, *, deadline_s: float = 20.0, notice_s: float = 30.0) -> list[Guard]:
    store = dist.HashStore()
    return [Guard(store, rank=r, world_size=world, deadline_s=deadline_s, notice_s=notice_s) for r in range(world)]


def _together(*functions: Callable[[], Any]) -> list[Any]:
    """Results of functions that run at the same time; an exception is a result."""

    def caught(function: Callable[[], Any]) -> Any:
        try:
            return function()
        except DistributedError as error:
            return error

    with ThreadPoolExecutor(len(functions)) as pool:
        return [future.result(timeout=30) for future in [pool.submit(caught, function) for function in functions]]


def test_details_arrive_in_rank_order_every_time() -> None:
    guards = _guards(3)
    for turn in range(5):
        results = _together(*(partial(g.meet, "gather", details=[r, turn]) for r, g in enumerate(guards)))
        assert results == [[[0, turn], [1, turn], [2, turn]]] * 3


def test_different_collectives_are_an_error_on_both_ranks_with_both_places() -> None:
    first, second = _guards(2)
    errors = _together(lambda: first.meet("gather"), lambda: second.meet("reduce"))
    for error in errors:
        assert isinstance(error, DistributedError)
        assert "rank 0 to gather at test_guard.py:" in str(error)
        assert "rank 1 to reduce at test_guard.py:" in str(error)


def test_a_rank_alone_is_named_with_its_place_at_the_deadline() -> None:
    first, _ = _guards(2, deadline_s=0.3)
    started = time.monotonic()
    with pytest.raises(DistributedError, match=r"rank 0 is in gather at test_guard\.py:\d+, but rank 1 did not come"):
        first.meet("gather")
    assert time.monotonic() - started < 10


def test_a_rank_that_has_ended_is_found_long_before_the_deadline() -> None:
    first, second = _guards(2, deadline_s=600)
    second.leave()
    with pytest.raises(DistributedError, match="rank 1 has ended"):
        first.meet("gather")


def test_a_rank_that_met_and_then_ended_is_no_error() -> None:
    first, second = _guards(2)

    def last() -> None:
        second.meet("gather")
        second.leave()

    results = _together(lambda: first.meet("gather"), last)
    assert results == [[None, None], None]


def test_a_busy_rank_is_waited_for_beyond_the_deadline() -> None:
    first, second = _guards(2, deadline_s=0.3)
    waiting = threading.Event()

    def slow() -> list[Any]:
        with second.busy():
            waiting.set()
            end = time.monotonic() + 1.0
            while time.monotonic() < end:
                threading.Event().wait(0.05)
        return second.meet("gather")

    def patient() -> list[Any]:
        waiting.wait(10)
        return first.meet("gather")

    assert _together(patient, slow) == [[None, None]] * 2


def test_waiting_is_noticed_on_stderr_before_it_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    first, _ = _guards(2, deadline_s=0.6, notice_s=0.1)
    with pytest.raises(DistributedError):
        first.meet("reduce")
    assert "rank 0 waits in reduce at test_guard.py" in capsys.readouterr().err


def test_a_posted_word_arrives_and_a_missing_one_is_an_error() -> None:
    first, second = _guards(2, deadline_s=0.3)
    first.post("save/1", "done")
    assert second.fetch("save/1", operation="save_state", source=0) == "done"
    with pytest.raises(DistributedError, match=r"rank 1 is in save_state .* rank 0 did not come"):
        second.fetch("save/2", operation="save_state", source=0)


def test_keys_of_old_meetings_are_removed() -> None:
    store = dist.HashStore()
    guards = [Guard(store, rank=r, world_size=2, deadline_s=20) for r in range(2)]
    for _ in range(20):
        _together(*(partial(g.meet, "gather") for g in guards))
    assert store.num_keys() <= 6
