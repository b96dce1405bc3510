"""Fixtures that several folders share: a store with a clock that tests move, its human, and the bench."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_server.store.sql import SqlStore
from tests.fakes.approvals import Clock, Human, open_store
from tests.fakes.bench import Bench, make_bench


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[SqlStore]:
    opened = open_store(tmp_path, clock)
    yield opened
    opened.close()


@pytest.fixture
def human(store: SqlStore, clock: Clock) -> Human:
    return Human(store, clock).enroll()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = make_bench(tmp_path)
    yield made
    made.store.close()
