"""Failures beyond the numbered table: many spellings of one kind, and what only looks like them."""

import pytest

from tools.evidence.failure_lines import statement_of
from tools.evidence.failure_patterns import match_failure
from tools.evidence.failure_signals import signal_in_text, signal_of_exit_code
from tools.evidence.further_failures import FURTHER_FAILURES

KERNEL = "/aten/src/ATen/native/cuda/{0}: block: [0,0,0], thread: [4,0,0] Assertion `{1}` failed."
DIST = "torch.distributed.DistNetworkError: "
NCCL = "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, "
LINES = (
    ("out_of_memory_gpu", "RuntimeError: CUDA driver error: out of memory"),
    ("out_of_memory_gpu", "RuntimeError: HIP error: out of memory"),
    ("out_of_memory_gpu", "RuntimeError: CUDA failure 2: out of memory ; GPU=0"),
    ("out_of_memory_nccl", NCCL + "unhandled cuda error, ncclUnhandledCudaError: Cuda failure 2 'out of memory'"),
    ("out_of_memory_host", "slurmstepd: error: Detected 1 oom_kill event in StepId=1.batch. Some were OOM Killed."),
    ("out_of_memory_host", "srun: error: node1: task 3: Out Of Memory"),
    ("out_of_memory_host", "[ 1234.5] Memory cgroup out of memory: Killed process 42 (python) total-vm:10kB"),
    ("out_of_memory_host", "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory."),
    ("dataloader_worker_killed", "RuntimeError: DataLoader worker (pid(s) 11, 12) exited unexpectedly"),
    ("shared_memory", "RuntimeError: unable to write to file </torch_123_456>"),
    ("shared_memory", "RuntimeError: unable to mmap 4194304 bytes from file </torch_8>: Cannot allocate memory (12)"),
    ("shared_memory", "RuntimeError: DataLoader worker (pid 4) is killed by signal: Bus error."),
    ("kernel_resources", "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 131072"),
    ("cuda_kernel_failed", "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate`"),
    ("cuda_kernel_failed", "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    ("cuda_kernel_failed", "torch.AcceleratorError: CUDA error: unspecified launch failure"),
    ("index_out_of_range", KERNEL.format("Loss.cu:250", "t >= 0 && t < n_classes")),
    ("index_out_of_range", KERNEL.format("Indexing.cu:1292: indexSelectLargeIndex", "srcIndex < srcSelectDimSize")),
    ("kernel_input_invalid", KERNEL.format("Loss.cu:90", "input_val >= zero && input_val <= one")),
    ("nccl_cuda_error", NCCL + "unhandled cuda error, ncclUnhandledCudaError: Call to CUDA function failed."),
    ("nccl_cuda_error", NCCL + "internal error, ncclInternalError: Internal check failed."),
    ("collective_mismatch", "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running"),
    ("collective_mismatch", "RuntimeError: DDP expects same model across all ranks, but Rank 0 has 10 params"),
    ("collective_timeout", "RuntimeError: [Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 30000 ms"),
    ("collective_timeout", "[rank1]:[E1201 00:11 ProcessGroupNCCL.cpp:1484] [Rank 1] Heartbeat monitor timed out! x"),
    ("rendezvous_incomplete", DIST + "The client socket has timed out after 60000ms while trying to connect to x"),
    ("rendezvous_incomplete", DIST + "The client socket has failed to connect to n0:29500 (errno: 111)."),
    ("rendezvous_incomplete", "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0"),
    ("rendezvous_incomplete", "ConnectionRefusedError: [Errno 111] Connection refused"),
    ("address_not_resolved", "socket.gaierror: [Errno -2] Name or service not known"),
    ("address_not_resolved", DIST + "cannot connect to [n0]:29500 (errno: 97 - Address family not supported)."),
    ("port_not_allowed", DIST + "The server socket has failed to bind to [::]:80 (errno: 13 - Permission denied)."),
    ("gpu_hardware", "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution"),
    ("driver_mismatch", "NVMLError_LibRmVersionMismatch: Driver/library version mismatch"),
    ("driver_mismatch", "RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain."),
    ("gpu_not_available", "RuntimeError: No CUDA GPUs are available"),
    ("gpu_not_available", "RuntimeError: CUDA error: invalid device ordinal"),
    ("gpu_not_available", "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable"),
    ("gpu_not_available", "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: not yet initialized"),
    ("cuda_in_forked_process", "RuntimeError: Cannot re-initialize CUDA in forked subprocess. Use 'spawn'"),
    ("no_kernel_image", "RuntimeError: HIP error: invalid device function"),
    ("non_finite_values", "ValueError: Loss is nan, stopping training"),
    ("non_finite_values", "RuntimeError: The total norm of order 2.0 is non-finite, so it cannot be clipped."),
    ("non_finite_values", "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0"),
    ("non_finite_values", "AssertionError: found NaN in local grad norm in backward pass"),
    ("read_only_file_system", "OSError: [Errno 30] Read-only file system: '/out/x'"),
    ("permission_denied", "PermissionError: [Errno 13] Permission denied: '/data/out'"),
    ("storage_fault", "OSError: [Errno 116] Stale file handle"),
    ("too_many_processes", "RuntimeError: can't start new thread"),
    ("too_many_processes", "BlockingIOError: [Errno 11] Resource temporarily unavailable"),
    ("library_missing", "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory"),
    ("library_missing", "ImportError: /lib/libc.so.6: version `GLIBC_2.34' not found (required by x.so)"),
    ("extension_not_built", "OSError: CUDA_HOME environment variable is not set."),
    ("compile_toolchain", "torch._dynamo.exc.InternalTorchDynamoError: x"),
    ("hub_unreachable", "huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error."),
    ("hub_unreachable", "requests.exceptions.SSLError: HTTPSConnectionPool(host='h', port=443): Max retries exceeded"),
    ("checkpoint_damaged", "_pickle.UnpicklingError: invalid load key, 'v'."),
    ("checkpoint_damaged", "EOFError: Ran out of input"),
    ("shape_mismatch", "RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x10 and 20x5)"),
    ("autograd_misuse", "RuntimeError: Trying to backward through the graph a second time"),
    ("not_picklable", "AttributeError: Can't pickle local object 'main.<locals>.f'"),
    ("data_unreadable", "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
)  # fmt: skip


@pytest.mark.parametrize(("cause", "line"), LINES)
def test_each_spelling_is_of_its_kind(cause: str, line: str) -> None:
    statement = statement_of(line)
    assert statement is not None
    row = match_failure(statement)
    assert row is not None
    assert (row.cause, bool(row.remedies)) == (cause, True)


def test_every_row_has_a_sample() -> None:
    assert {row.cause for row in FURTHER_FAILURES} <= {cause for cause, _ in LINES}


@pytest.mark.parametrize(
    "line",
    [
        "INFO no CUDA error: everything is fine",
        "checked: Permission denied is handled",
        "Killed 3 stale workers before start",
        "loss is nan-safe",
        '{"text": "Segmentation fault (core dumped)"}',
        "assert block: [0] Assertion is documented",
    ],
)
def test_text_that_only_speaks_of_a_failure_states_none(line: str) -> None:
    assert statement_of(line) is None
    assert signal_in_text(line) is None


@pytest.mark.parametrize(
    ("cause", "line"),
    [
        ("segmentation_fault", "Fatal Python error: Segmentation fault"),
        ("segmentation_fault", "Segmentation fault (core dumped)"),
        ("illegal_instruction", "Illegal instruction (core dumped)"),
        ("killed", "Killed"),
        ("killed", "train.sh: line 3:  4242 Killed                  python train.py"),
        ("killed", "srun: error: node1: task 3: Killed"),
        ("killed", "subprocess.CalledProcessError: Command '['python']' died with <Signals.SIGKILL: 9>."),
        ("killed", "  exitcode  : -9 (pid: 4242)"),
        ("killed", "  traceback : Signal 9 (SIGKILL) received by PID 4242"),
        ("node_failed", "slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-12-01 DUE TO NODE FAILURE ***"),
        ("cancelled_by_scheduler", "slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-12-01T00:00:00 ***"),
        ("preempted", "slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-12-01T00:00:00 DUE TO TIME LIMIT ***"),
    ],
)  # fmt: skip
def test_a_signal_is_read_from_the_words_of_shells_and_schedulers(cause: str, line: str) -> None:
    found = signal_in_text(line)
    assert found is not None
    assert found.cause == cause


def test_a_shells_exit_code_names_the_signal_of_its_child() -> None:
    assert [signal_of_exit_code(code) for code in (137, 139, 143, 1, 2, 128, 255)] == [
        9,
        11,
        15,
        None,
        None,
        None,
        None,
    ]
