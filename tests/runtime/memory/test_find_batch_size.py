"""find_executable_batch_size on one process: what shrinks, what is raised, and what it may be called with."""

from collections.abc import Callable

import pytest
import torch

from runtime.errors import BatchSizeSignatureError, ConfigurationError, NoExecutableBatchSizeError, UsageError
from runtime.memory import find_executable_batch_size, release_memory

pytestmark = pytest.mark.usefixtures("fresh_process")


def _fits(limit: int, tried: list[int]) -> Callable[[int], int]:
    def train(batch_size: int) -> int:
        tried.append(batch_size)
        if batch_size > limit:
            torch.empty(batch_size * 2**50)  # the host's allocator refuses this
        return batch_size

    return train


def test_it_shrinks_until_it_fits_and_begins_there_the_next_time() -> None:
    tried: list[int] = []
    train = find_executable_batch_size(_fits(50, tried), starting_batch_size=64)
    assert train() == 45
    assert tried == [64, 57, 51, 45]
    assert train() == 45
    assert tried[4:] == [45]


def test_the_next_size_may_be_the_callers_own() -> None:
    tried: list[int] = []
    sizes = iter([16, 4])
    train = find_executable_batch_size(
        _fits(5, tried), starting_batch_size=64, reduce_batch_size_fn=lambda: next(sizes)
    )
    assert train() == 4
    assert tried == [64, 16, 4]


def test_a_size_that_does_not_fall_is_refused() -> None:
    train = find_executable_batch_size(_fits(1, []), starting_batch_size=8, reduce_batch_size_fn=lambda: 8)
    with pytest.raises(ConfigurationError, match="gave 8 after 8"):
        train()


def test_nothing_fits_is_an_error_that_says_why() -> None:
    tried: list[int] = []
    train = find_executable_batch_size(_fits(0, tried), starting_batch_size=3)
    with pytest.raises(NoExecutableBatchSizeError, match=r"reached zero.*tried is 1: .*DefaultCPUAllocator"):
        train()
    assert tried == [3, 2, 1]
    assert issubclass(NoExecutableBatchSizeError, RuntimeError)


@pytest.mark.parametrize("size", [0, -1, 2.5, True, None])
def test_the_first_size_is_a_positive_number(size: object) -> None:
    with pytest.raises(ConfigurationError, match="starting_batch_size"):
        find_executable_batch_size(_fits(1, []), starting_batch_size=size)  # type: ignore[arg-type]  # on purpose


@pytest.mark.parametrize(
    "error", [ValueError("CUDA out of memory."), RuntimeError("boom: CUDA out of memory, lol"), KeyError("x")]
)
def test_anything_else_is_raised_at_once(error: Exception) -> None:
    tried: list[int] = []

    @find_executable_batch_size(starting_batch_size=8)
    def train(batch_size: int) -> None:
        tried.append(batch_size)
        raise error

    with pytest.raises(type(error)) as seen:
        train()
    assert seen.value is error
    assert tried == [8]


def test_want_of_memory_in_evaluation_leaves_the_training_batch_alone() -> None:
    tried: list[int] = []

    def evaluation_loop() -> None:
        torch.empty(64 * 2**50)

    @find_executable_batch_size(starting_batch_size=8)
    def train(batch_size: int) -> None:
        tried.append(batch_size)
        evaluation_loop()

    with pytest.raises(RuntimeError, match="DefaultCPUAllocator") as seen:
        train()
    assert tried == [8]
    assert seen.value.__notes__[0].startswith(
        "forerun: memory ran out in evaluation (evaluation_loop), so the training batch of 8 stays."
    )


def test_the_caller_does_not_pass_the_size() -> None:
    @find_executable_batch_size(starting_batch_size=8)
    def train(batch_size: int, model: str) -> tuple[int, str]:
        return batch_size, model

    assert train("net") == (8, "net")
    with pytest.raises(BatchSizeSignatureError, match=r"Batch size was passed into `train`.*`train\(model='net'\)`"):
        train(128, "net")
    with pytest.raises(TypeError, match="missing a required argument: 'model'"):
        train()


def test_a_function_without_a_batch_size_is_refused() -> None:
    @find_executable_batch_size(starting_batch_size=8)
    def train() -> None:
        """Takes nothing."""

    with pytest.raises(TypeError, match="it takes none"):
        train()


def test_ranks_that_do_not_know_each_other_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="make the Accelerator outside"):
        find_executable_batch_size(_fits(8, []), starting_batch_size=8)()


def test_the_failed_tries_tensors_are_gone_before_the_next() -> None:
    import weakref

    alive: list[weakref.ref[torch.Tensor]] = []
    left: list[int] = []

    @find_executable_batch_size(starting_batch_size=4)
    def train(batch_size: int) -> None:
        left.append(sum(reference() is not None for reference in alive))
        held = torch.ones(8)
        alive.append(weakref.ref(held))
        if batch_size > 2:
            torch.empty(2**60)

    train()
    assert left == [0, 0, 0]


def test_release_memory_gives_none_for_each() -> None:
    first, second = release_memory(torch.ones(1), torch.ones(1))
    assert first is None
    assert second is None
