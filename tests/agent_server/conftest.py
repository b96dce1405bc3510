"""The bench on which procedure and reconciler are tested."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.bench import Bench, make_bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = make_bench(tmp_path)
    yield made
    made.store.close()
