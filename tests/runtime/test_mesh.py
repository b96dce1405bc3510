"""Degrees of parallelism: the arithmetic and its refusals."""

import pytest

from runtime.errors import ConfigurationError
from runtime.mesh import ParallelDims, effective_batch


def test_the_rest_is_data_parallel() -> None:
    dims = ParallelDims(tensor=2).resolve(8)
    assert (dims.data_replicate, dims.data_parallel) == (4, 4)
    assert dims.beyond_data() == ["tensor"]
    assert ParallelDims().resolve(1).data_parallel == 1


@pytest.mark.parametrize(
    ("dims", "world_size", "words"),
    [
        (ParallelDims(tensor=3), 8, "data_replicate 2 x data_shard 1 x context 1 x tensor 3 x pipeline 1"),
        (ParallelDims(data_replicate=2), 3, "is not the world size 3"),
        (ParallelDims(tensor=16), 8, "is not the world size 8"),
        (ParallelDims(tensor=0, pipeline=-1), 8, "tensor=0, pipeline=-1"),
    ],
)
def test_impossible_degrees_are_refused_before_anything_starts(dims: ParallelDims, world_size: int, words: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        dims.resolve(world_size)
    assert words in str(refused.value)


def test_only_data_parallel_ranks_enlarge_the_batch() -> None:
    dims = ParallelDims(tensor=2).resolve(8)
    assert effective_batch(3, data_parallel=dims.data_parallel, accumulation=5) == 60
