"""Batch sizes add up, or the sum that does not is shown (C23)."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.batch_arithmetic import BatchNumber, BatchSettings, settle_batches
from runtime.config.loader import load
from runtime.errors import ConfigurationError

FILES = Path(__file__).parent / "config" / "files"
SMALL = st.integers(1, 64)


def _settings(name: str, ranks: int, dataloader: int | None = None) -> BatchSettings:
    file = load(FILES / name).deepspeed
    assert file is not None
    return file.batches_on(ranks, dataloader=dataloader)


def test_a_sum_that_does_not_add_up_is_shown_with_its_places() -> None:
    with pytest.raises(ConfigurationError) as refused:
        settle_batches(_settings("ds_bad.json", 2))
    assert "16 != 2 x 2 x 2 = 8" in str(refused.value)
    assert "ds_bad.json (train_batch_size)" in str(refused.value)
    assert settle_batches(_settings("ds_bad.json", 4)).formula == "16 = 2 x 2 x 4"


def test_auto_takes_the_loaders_batch() -> None:
    assert settle_batches(_settings("ds_auto.json", 2, dataloader=3)).formula == "24 = 3 x 4 x 2"


def test_auto_without_a_loader_is_open() -> None:
    verdict = settle_batches(_settings("ds_auto.json", 2))
    assert (verdict.formula, verdict.train, verdict.micro, verdict.accumulation) == ("", None, None, 4)


def test_a_loader_that_contradicts_the_file_is_refused() -> None:
    with pytest.raises(ConfigurationError) as refused:
        settle_batches(_settings("ds_conflict.json", 2, dataloader=3))
    assert "the micro-batch is 2 (" in str(refused.value)
    assert "the loader's batch is 3" in str(refused.value)
    assert settle_batches(_settings("ds_conflict.json", 2, dataloader=2)).formula == "4 = 2 x 1 x 2"


def test_what_is_missing_is_derived() -> None:
    verdict = settle_batches(_settings("ds_part.json", 2))
    assert verdict.formula == "8 = 2 x 2 x 2"
    assert verdict.derived == ("accumulation 2 = 8 / (2 x 2)",)
    assert settle_batches(_settings("ds_part.json", 1)).accumulation == 4
    with pytest.raises(ConfigurationError, match=r"8 .* is no multiple of 2 x 3 = 6"):
        settle_batches(_settings("ds_part.json", 3))
    with pytest.raises(ConfigurationError, match="no multiple of 2 x 8 = 16"):
        settle_batches(_settings("ds_part.json", 8))


def test_numbers_below_one_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="micro-batch 0"):
        settle_batches(BatchSettings(micro=BatchNumber(0, "here")))


@given(SMALL, SMALL, SMALL, st.sets(st.sampled_from(["train", "micro", "accumulation"]), max_size=1))
def test_any_one_number_follows_from_the_others(micro: int, steps: int, ranks: int, left_out: set[str]) -> None:
    numbers = {"train": micro * steps * ranks, "micro": micro, "accumulation": steps}
    given_numbers = {name: BatchNumber(n, name) for name, n in numbers.items() if name not in left_out}
    verdict = settle_batches(BatchSettings(**given_numbers, ranks=BatchNumber(ranks, "ranks")))
    assert (verdict.train, verdict.micro, verdict.accumulation, verdict.ranks) == (*numbers.values(), ranks)


@given(SMALL, SMALL, SMALL, st.integers(1, 300_000))
def test_no_wrong_sum_passes(micro: int, steps: int, ranks: int, train: int) -> None:
    settings = BatchSettings(*(BatchNumber(n, "x") for n in (train, micro, steps)), ranks=BatchNumber(ranks, "x"))
    if train == micro * steps * ranks:
        assert settle_batches(settings).train == train
    else:
        with pytest.raises(
            ConfigurationError, match=f"{train} != {micro} x {steps} x {ranks} = {micro * steps * ranks}"
        ):
            settle_batches(settings)
