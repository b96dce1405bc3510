"""Which exceptions say that memory ran out, and whether it ran out in evaluation.

An exception is judged by its type, or by the form in which its message begins: a message that merely quotes the
words (a data row, the name of a test) is none.
"""

import errno
import os
import re
import types

import torch
from torch import nn

_FORMS = re.compile(
    r"""
    (?:CUDA|HIP|XPU)\ out\ of\ memory(?:[.:(]|\ Tried|$)
    | MPS\ backend\ out\ of\ memory
    | (?:CUDA|HIP|XPU)\ (?:driver\ )?error:\ (?:out\ of\ memory|cudaErrorMemoryAllocation|hipErrorOutOfMemory)
    | cuda\ runtime\ error\ \(2\)\ :\ out\ of\ memory
    | (?:CUDA|HIP|cuDNN|CUDNN|cusolver|cusparse|cuFFT|cublas)\ error:\ \w+_ALLOC_FAILED
    | (?:CU\w+|HIP\w+|ROC\w+|cu\w+)_STATUS_ALLOC_FAILED
    | Allocation\ on\ device\b.*(?:exceed|out\ of\ memory)
    | (?:NCCL\ error\b|.*\bNCCL\ WARN\ ).*[Cc]uda\ failure\ (?:\d+\ )?'out\ of\ memory'
    | (?:\[enforce\ fail\ at\ [^\]]*\]\s.{0,40}?)?DefaultCPUAllocator:\ (?:can't|not\ enough)\b
    | Unable\ to\ allocate\ .*\ for\ an\ array\ with\ shape
    | (?:Bad\ StatusOr\ access:\ )?RESOURCE_EXHAUSTED:
    | std::bad_alloc
    | \[Errno\ 12\]\ Cannot\ allocate\ memory
    | FATAL\ ERROR\ ::\ MODULE:PT_DEVMEM\ Allocation\ failed
    | unable\ to\ (?:write\ to\ file|mmap\ \d+\ bytes\ from\ file|open\ shared\ memory\ object)\ .*
      (?:No\ space\ left|Cannot\ allocate)
    | DataLoader\ worker\ \(pid.*Bus\ error
    """,
    re.VERBOSE | re.DOTALL,
)
_CLASS_PREFIX = re.compile(r"^[\w.]*(?:Error|Exception): ")
_FROM_WORKER = re.compile(r"^Caught \w+ in (?:DataLoader worker process|replica|pin memory thread)")
_EVALUATION_WORDS = frozenset(
    {"eval", "evaluate", "evaluation", "valid", "validate", "validation", "predict", "prediction", "test", "inference"}
)
_SOUGHT = 2
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this exception, or the one that it was raised from, says that memory ran out.

    The device's allocator, the workspaces of its libraries, buffers of communication, the host's allocator, a fork,
    and the shared memory of DataLoader workers all count. A full disk, an absent kernel or a lost connection do not.
    """
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if isinstance(error, RuntimeError) and _says_so(str(error)):
        return True
    return error.__cause__ is not None and is_out_of_memory(error.__cause__)


def evaluation_frame(error: BaseException) -> str | None:
    """Where evaluation ran out of memory, as the name of a function or model; None if it was not evaluation.

    Read off the frames below the function whose batch size is sought, which is the third: a function with eval,
    validate, predict or test as a word of its name, or a trainable model whose mode is eval. Where the sought-for
    function has such a name itself, it is the evaluation's batch size that is sought, and nothing is said.
    """
    trace = error.__traceback__
    frames = []
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    if len(frames) <= _SOUGHT or _is_named_so(frames[_SOUGHT]):
        return None
    below = frames[_SOUGHT + 1 :]
    named = next((frame for frame in below if _is_named_so(frame)), None)
    if named is not None:
        return named.f_code.co_name
    models = [frame.f_locals.get("self") for frame in below]
    outermost = next((model for model in models if isinstance(model, nn.Module)), None)
    # A frozen teacher is in eval mode in the middle of training.
    if outermost is None or outermost.training or not any(p.requires_grad for p in outermost.parameters()):
        return None
    return f"{type(outermost).__name__} in eval mode"


def _says_so(message: str) -> bool:
    if _FROM_WORKER.match(message):
        # The worker's own traceback follows; its last paragraph begins with the class of the error.
        starts = [line for line in message.splitlines() if _CLASS_PREFIX.match(line)]
        message = starts[-1] if starts else message
    return _FORMS.match(_CLASS_PREFIX.sub("", message.strip())) is not None


def _is_named_so(frame: types.FrameType) -> bool:
    if frame.f_code.co_filename.startswith(_TORCH):
        return False
    words = re.findall(r"[a-z]+", re.sub(r"([A-Z])", r"_\1", frame.f_code.co_name).lower())
    return not _EVALUATION_WORDS.isdisjoint(words)
