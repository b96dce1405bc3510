"""A store in a directory of its own, with a clock that tests move."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_server.store.sql import SqlStore
from tests.fakes.approvals import Clock, Human, open_store
from tests.fakes.postgres import Postgres, binaries


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


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    programs = binaries()
    if programs is None:
        pytest.skip("PostgreSQL is not installed (Debian package postgresql)")
    server = Postgres(programs)
    yield server
    server.remove()
