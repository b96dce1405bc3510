"""Running the document's samples as they are written: their text, between what it leaves open and what is checked."""

import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from tests.runtime.conftest import rank_server, run_ranks

__all__ = ["rank_server", "run_ranks", "run_sample"]

RunSample = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def run_sample(run_ranks: Any) -> RunSample:
    """run_sample(text, ranks=, supplied=, checked=, name=value): what each rank said after the sample.

    `accelerate` is read as `runtime`, and that alone is changed. `supplied` comes before it, `checked` after it, where
    say(...) hands figures to the test.
    """

    def run(text: str, *, ranks: int = 2, supplied: str, checked: str) -> list[dict[str, Any]]:
        sample = textwrap.dedent(text).replace("from accelerate", "from runtime")
        script = "\n".join([textwrap.dedent(supplied), sample, textwrap.dedent(checked)])
        said: list[dict[str, Any]] = run_ranks(script, ranks=ranks).said
        return said

    return run
