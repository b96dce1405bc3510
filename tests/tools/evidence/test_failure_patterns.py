"""The table of failures: every row is found by the message it is for, and by no look-alike."""

from pathlib import Path

import pytest

from tools.evidence.failure_lines import statement_of
from tools.evidence.failure_patterns import FAILURE_PATTERNS, match_failure
from tools.evidence.further_failures import FURTHER_FAILURES

ROWS = {
    "dataloader_worker_killed": "RuntimeError: DataLoader worker (pid 5) is killed by signal: Killed.",
    "loss_scale_at_minimum": "Exception: Current loss scale already at minimum - cannot decrease scale anymore.",
    "duplicate_gpu": "torch.distributed.DistBackendError: Duplicate GPU detected : rank 1 and rank 0",
    "address_in_use": "torch.distributed.DistNetworkError: failed to listen (errno: 98 - Address already in use).",
    "rendezvous_incomplete": "torch.distributed.DistStoreError: Timed out waiting for clients. 1/2 clients joined.",
    "nccl_system_error": "torch.distributed.DistBackendError: NCCL error: ncclSystemError: System call failed",
    "too_many_open_files": "RuntimeError: received 0 items of ancdata",
    "quota_exceeded": "OSError: [Errno 122] Disk quota exceeded",
    "access_denied": "huggingface_hub.errors.GatedRepoError: 403 Client Error.",
    "too_many_requests": "requests.exceptions.HTTPError: 429 Client Error: Too Many Requests for url",
    "index_out_of_range": "RuntimeError: CUDA error: device-side assert triggered",
    "state_dict_mismatch": "RuntimeError: Error(s) in loading state_dict for Net: size mismatch for fc.weight",
    "fsdp_mixed_dtypes": "ValueError: Must flatten tensors with uniform dtype but got torch.bfloat16 and torch.float32",
    "dtype_mismatch": "RuntimeError: mat1 and mat2 must have the same dtype, but got Float and Half",
    "device_mismatch": "RuntimeError: Expected all tensors to be on the same device, but found at least two devices",
    "unused_parameters": "RuntimeError: Expected to have finished reduction in the prior iteration before",
    "wrap_class_not_found": "ValueError: Could not find the transformer layer class LlamaLayer in the model.",
    "batch_arithmetic": "AssertionError: Check batch related parameters. train_batch_size is not equal",
    "deepspeed_values": "ValueError: Please correct the following DeepSpeed config values that mismatch",
    "driver_too_old": "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
    "no_kernel_image": "RuntimeError: CUDA error: no kernel image is available",
    "torch_without_cuda": "AssertionError: Torch not compiled with CUDA enabled",
    "compile_toolchain": "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:",
    "mps_operator_missing": "NotImplementedError: 'aten::x' is not currently implemented for the MPS device.",
    "undefined_symbol": "ImportError: flash_attn.so: undefined symbol: _ZN3c105ErrorC2E",
    "api_mismatch": "TypeError: f() got an unexpected keyword argument 'tokenizer'",
    "weights_only_refused": "_pickle.UnpicklingError: Weights only load failed.",
    "gpu_hardware": "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    "ragged_batch": "ValueError: Unable to create tensor, activate truncation",
    "argument_refused": "train.py: error: unrecognized arguments: --lrr 3",
    "checkpoint_damaged": "RuntimeError: PytorchStreamReader failed: failed finding central directory",
    "missing_module": "ModuleNotFoundError: No module named 'peft'",
    "missing_file": "FileNotFoundError: [Errno 2] No such file or directory: 'a.csv'",
    "keyboard_interrupt": "KeyboardInterrupt",
}  # fmt: skip


@pytest.mark.parametrize(("cause", "line"), ROWS.items())
def test_every_row_is_found_by_its_message(cause: str, line: str) -> None:
    for prefix in ("", "[rank3]: ", "2026-01-01 10:00:05 "):
        statement = statement_of(prefix + line)
        assert statement is not None
        row = match_failure(statement)
        assert row is not None
        assert row.cause == cause


@pytest.mark.parametrize(("cause", "line"), ROWS.items())
def test_a_line_that_quotes_a_failure_states_none(cause: str, line: str) -> None:
    for prefix in ("# ", "INFO retry after ", '{"text": "', "tests::test_x "):
        assert statement_of(prefix + line) is None or cause == "argument_refused"


def test_no_row_of_the_table_is_without_a_sample() -> None:
    samples = {*ROWS, "out_of_memory_gpu", "out_of_memory_cublas", "out_of_memory_nccl", "out_of_memory_host"}
    samples |= {"out_of_memory_fork", "shared_memory", "half_parameters_with_fp16_scaling", "disk_full"}
    assert {row.cause for row in FAILURE_PATTERNS if row not in FURTHER_FAILURES} == samples


@pytest.mark.parametrize(
    "line", ["ValueError: expected 512 tokens", "train.py: loss is fine", "ZeroDivisionError: division by zero"]
)
def test_ordinary_errors_fit_no_row(line: str) -> None:
    assert match_failure(line) is None


def test_the_guide_lists_every_cause_under_its_row() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "failures.md").read_text()
    rows = [line for line in guide.splitlines() if line.startswith("| ") and "`" in line]
    for pattern in FAILURE_PATTERNS:
        number = str(pattern.row or "")
        assert any(f"`{pattern.cause}`" in row and row.split("|")[1].strip() == number for row in rows), pattern.cause
    assert {row.split("|")[1].strip() for row in rows} >= {str(n) for n in range(1, 41)}
