"""Files from real failures, and files written on the spot."""

from collections.abc import Callable
from pathlib import Path

import pytest

FILES = Path(__file__).parent / "files"


@pytest.fixture
def files() -> Path:
    return FILES


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def make(text: str, name: str = "config.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return make
