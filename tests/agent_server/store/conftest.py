"""A store in a directory of its own, with a clock that tests move; and a PostgreSQL server, started when first used."""

from collections.abc import Iterator

import pytest

from tests.fakes.fixtures import clock, human, store
from tests.fakes.postgres import Postgres, binaries

__all__ = ["clock", "human", "store"]


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    programs = binaries()
    if programs is None:
        pytest.skip("PostgreSQL is not installed (Debian package postgresql)")
    server = Postgres(programs)
    yield server
    server.remove()
