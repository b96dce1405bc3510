"""Recognising a want of memory by the type and the form of an exception."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from runtime.out_of_memory import evaluation_frame, is_out_of_memory

SPELLINGS = [
    "CUDA out of memory. Tried to allocate 132.00 MiB. GPU 3 has a total capacity of 79.10 GiB",
    "CUDA error: out of memory",
    "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call",
    "cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/THCGeneral.cpp:50",
    "HIP out of memory. Tried to allocate 2.00 GiB",
    "XPU out of memory. Tried to allocate 2.00 GiB",
    "MPS backend out of memory (MPS allocated: 5.00 GB, other allocations: 1.00 GB, max allowed: 6.77 GB).",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`",
    "node:1:2 [0] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'",
    "NCCL error in: ../ProcessGroupNCCL.cpp:1970, unhandled cuda error\nLast error:\nCuda failure 2 'out of memory'",
    "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "68719476736 bytes. Error code 12 (Cannot allocate memory)",
    "[enforce fail at alloc_cpu.cpp:80] data. DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes.",
    "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 64.0 GiB for an array with shape (8589934592,)",
    "OSError: [Errno 12] Cannot allocate memory",
    "unable to write to file </torch_1_2>: No space left on device (28)",
    "DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's workers are out of "
    "shared memory. Please try to raise your shared memory limit.",
    "RESOURCE_EXHAUSTED: Out of memory allocating 1234 bytes",
    "std::bad_alloc",
    "Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
    '  File "d.py", line 3, in __getitem__\nRuntimeError: CUDA error: out of memory',
]
LOOK_ALIKES = [
    "INFO oom_handler enabled: will retry on CUDA out of memory",
    "tests/test_out_of_memory.py::test_retry PASSED",
    '{"text": "I asked my laptop and it said CUDA out of memory, lol", "label": 1}',
    "CUDA out of memory, lol",
    "epoch 1 room zoom OOMPH 0.93",
    "DeprecationWarning: torch.cuda.OutOfMemoryError will move to torch.OutOfMemoryError",
    "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a non-contiguous input.",
    "CUDA error: device-side assert triggered",
    "CUDA error: an illegal memory access was encountered",
    "PytorchStreamWriter failed writing file data/3: No space left on device",
    "Connection closed by peer",
    "size mismatch for out.memory: copying a param with shape [3] from checkpoint",
    "Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
    '  File "out of memory.py", line 3\nRuntimeError: bad row: CUDA out of memory.',
]


@pytest.mark.parametrize("message", SPELLINGS)
def test_every_true_form_counts(message: str) -> None:
    assert is_out_of_memory(RuntimeError(message))


@pytest.mark.parametrize("message", LOOK_ALIKES)
def test_a_message_that_quotes_the_words_does_not(message: str) -> None:
    assert not is_out_of_memory(RuntimeError(message))


def test_types_decide_where_they_can() -> None:
    assert is_out_of_memory(torch.OutOfMemoryError("Allocation on device 0 would exceed allowed memory"))
    assert is_out_of_memory(torch.cuda.OutOfMemoryError())
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(OSError(12, "Cannot allocate memory"))
    assert not is_out_of_memory(OSError(28, "No space left on device"))
    assert not is_out_of_memory(ValueError("CUDA out of memory. Tried to allocate 1 GiB"))


def test_the_real_allocator_is_recognised_and_so_is_what_wraps_it() -> None:
    with pytest.raises(RuntimeError) as real:
        torch.empty(2**60)
    assert is_out_of_memory(real.value)
    wrapped = RuntimeError("step 7 failed")
    wrapped.__cause__ = real.value
    assert is_out_of_memory(wrapped)
    met_on_the_way = RuntimeError("step 7 failed")
    met_on_the_way.__context__ = real.value
    assert not is_out_of_memory(met_on_the_way)


def _exhaust() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 31.25 GiB")


def evaluation_loop() -> None:
    _exhaust()


class Trainer:
    def evaluate(self) -> None:
        _exhaust()

    def retrieval_step(self) -> None:
        _exhaust()


class Greedy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self) -> None:
        _exhaust()


class Step(torch.optim.Optimizer):
    def __init__(self) -> None:
        super().__init__([nn.Parameter(torch.ones(1))], {})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        _exhaust()


def _place(function: object) -> str | None:
    try:
        (lambda: function())()  # type: ignore[operator]
    except torch.OutOfMemoryError as error:
        return evaluation_frame(error)
    raise AssertionError


def test_evaluation_is_told_by_its_frames() -> None:
    assert _place(lambda: evaluation_loop()) == "evaluation_loop"
    assert _place(lambda: Trainer().evaluate()) == "evaluate"
    assert _place(lambda: Greedy().eval()()) == "Greedy in eval mode"


def evaluate(function: Callable[[], None]) -> None:
    function()


def test_a_search_of_the_evaluations_own_size_goes_on() -> None:
    with pytest.raises(torch.OutOfMemoryError) as seen:
        (lambda: evaluate(Greedy().eval()))()
    assert evaluation_frame(seen.value) is None


def test_training_is_not() -> None:
    frozen = Greedy().eval().requires_grad_(False)
    for function in (_exhaust, Greedy(), frozen, Trainer().retrieval_step, lambda: Step().step()):
        assert _place(lambda function=function: function()) is None  # type: ignore[misc]
