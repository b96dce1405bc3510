"""The cause of a failure, told from logs, signals, error files and curves; and what only looks like a failure."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from runtime.config.order import RankFailure, RunResult
from runtime.launchers.process import run as run_process
from runtime.layout import RunLayout
from tools.diagnose_failure import diagnose
from tools.domain.reports import Diagnosis
from tools.domain.run_state import RunRecord, RunState
from tools.evidence.failure_lines import statement_of
from tools.evidence.memory_failures import out_of_memory

TIMEOUT = (
    "[rank{r}]:[E ProcessGroupNCCL.cpp:616] [Rank {r}] Watchdog caught collective operation timeout: WorkNCCL("
    "SeqNum={n}, OpType=ALLREDUCE, NumelIn=64, Timeout(ms)=600000) ran for 600010 milliseconds before timing out."
)


@pytest.fixture
def run_dir(tmp_path: Path) -> RunLayout:
    layout = RunLayout(tmp_path)
    layout.logs.mkdir()
    return layout


def record(
    layout: RunLayout, *failures: RankFailure, state: RunState = RunState.FAILED, reason: str = "", exit_code: int = 1
) -> RunRecord:
    ended = state if state in ("succeeded", "failed", "cancelled", "stopped_at_limit") else None
    result = ended and RunResult.model_validate(
        {
            "run_id": "run-0000000000",
            "state": ended.value,
            "reason": reason,
            "exit_code": exit_code,
            "started_at_s": 0,
            "ended_at_s": 9,
            "elapsed_s": 9,
            "disk_bytes": 0,
            "failures": failures,
        }
    )
    return RunRecord.model_validate(
        {
            "run_id": "run-0000000000",
            "plan_id": "plan-0000000000",
            "plan_digest": "0" * 64,
            "kind": "full",
            "state": state,
            "run_dir": str(layout.root),
            "created_at_s": 0,
            "result": result or None,
        }
    )


def of_log(layout: RunLayout, text: str, *failures: RankFailure, rank: int = 0) -> Diagnosis:
    layout.stdout(rank).touch()
    layout.stderr(rank).write_text(text)
    return diagnose(record(layout, *failures), layout)


def failure(rank: int, *, signal: int | None = None, lines: Sequence[str] = ()) -> RankFailure:
    return RankFailure(rank=rank, exit_code=None if signal else 1, signal=signal, last_lines=tuple(lines))


# C52


def test_an_ordinary_exception_is_the_cause_of_timeouts_that_come_later(run_dir: RunLayout) -> None:
    stamp = "2026-01-01 10:10:05 "
    log = [
        "2026-01-01 10:00:05 [rank3]: Traceback (most recent call last):",
        '2026-01-01 10:00:05 [rank3]:   File "train.py", line 77, in collate',
        "2026-01-01 10:00:05 [rank3]: ValueError: expected 512 tokens, got 0 (sample 90211)",
        *(stamp + TIMEOUT.format(r=r, n=9141) for r in (0, 1, 2, 4, 5, 6, 7)),
        "2026-01-01 10:10:06 [rank0]: torch.OutOfMemoryError: CUDA out of memory. "
        "Tried to allocate more than 1EB memory.",
    ]
    run_dir.engine_log.write_text("\n".join(log) + "\n")
    found = diagnose(record(run_dir), run_dir)
    assert (found.cause, found.rank) == ("uncaught_exception", 3)
    assert "ValueError: expected 512 tokens, got 0 (sample 90211) on rank 3 at 2026-01-01 10:00:05" in found.explanation
    assert found.evidence[0].startswith("logs/engine.log:3:")
    assert "7 ranks (0, 1, 2, 4, 5, 6, 7) timed out in collective 9141 (ALLREDUCE)" in found.consequences
    assert any("1EB" in c and "no real need" in c for c in found.consequences)


def test_the_earliest_time_decides_whatever_the_order_of_the_lines(run_dir: RunLayout) -> None:
    late = "2026-01-01 10:10:06 [rank0]: torch.OutOfMemoryError: CUDA out of memory.\n"
    trace = "2026-01-01 10:00:05 [rank3]: Traceback (most recent call last):\n"
    run_dir.engine_log.write_text(late + trace + "2026-01-01 10:00:05 [rank3]: KeyError: 'x'\n")
    assert diagnose(record(run_dir), run_dir).rank == 3


def test_the_silent_rank_is_suspected_and_not_the_network(run_dir: RunLayout) -> None:
    found = of_log(run_dir, "world size 4\n" + "\n".join(TIMEOUT.format(r=r, n=88) for r in range(3)))
    assert (found.cause, found.rank) == ("collective_timeout", 3)
    assert "rank 3 did not reach collective 88 (ALLREDUCE)" in found.explanation
    assert "user code or uneven data" in found.explanation
    assert "network fault is possible" in found.explanation


def test_without_a_world_size_no_rank_is_accused(run_dir: RunLayout) -> None:
    found = of_log(run_dir, "\n".join(TIMEOUT.format(r=r, n=88) for r in range(3)))
    assert (found.cause, found.rank) == ("collective_timeout", None)
    assert "names no silent rank" in found.explanation


# C53

OOM = [
    ("gpu", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 132.00 MiB. GPU 3 has a total capacity of "
            "79.10 GiB of which 98.00 MiB is free."),
    ("gpu", "RuntimeError: CUDA error: out of memory"),
    ("gpu", "torch.cuda.OutOfMemoryError: CUDA out of memory."),
    ("gpu", "[rank1]: RuntimeError: HIP out of memory. Tried to allocate 2.00 GiB"),
    ("cublas", "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ("nccl", "node:1:2 [0] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'"),
    ("host", "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: "
             "you tried to allocate 68719476736 bytes. Error code 12 (Cannot allocate memory)"),
    ("host", "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 64.0 GiB for an array with shape (8589,)"),
    ("host", "MemoryError"),
    ("fork", "OSError: [Errno 12] Cannot allocate memory"),
    ("shared_memory", "RuntimeError: unable to write to file </torch_1_2>: No space left on device (28). ERROR: "
                      "Unexpected bus error encountered in worker. Perhaps insufficient shared memory."),
    ("none", "INFO oom_handler enabled: will retry on CUDA out of memory"),
    ("none", "tests/test_out_of_memory.py::test_retry PASSED"),
    ("none", '{"text": "I asked my laptop and it said CUDA out of memory, lol", "label": 1}'),
    ("none", "epoch 1 room zoom OOMPH 0.93"),
    ("none", "DeprecationWarning: torch.cuda.OutOfMemoryError will move to torch.OutOfMemoryError"),
    ("none", "# RuntimeError: CUDA out of memory"),
    ("none", "caught torch.OutOfMemoryError: CUDA out of memory, batch 8 -> 4"),
]  # fmt: skip


@pytest.mark.parametrize(("place", "line"), OOM)
def test_true_forms_of_out_of_memory_and_look_alikes(run_dir: RunLayout, place: str, line: str) -> None:
    statement = statement_of(line)
    row = out_of_memory(statement) if statement else None
    assert (row.cause.removeprefix("out_of_memory_") if row else "none") == place
    cause = of_log(run_dir, "step 1 loss 0.5\n" + line + "\n").cause
    assert cause == (row.cause if row else "unknown")


def test_sizes_are_quoted_from_the_message(run_dir: RunLayout) -> None:
    assert "(asked for 132.00 MiB, capacity 79.10 GiB, free 98.00 MiB)" in of_log(run_dir, OOM[0][1] + "\n").explanation
    host = of_log(run_dir, OOM[6][1] + "\n").explanation
    assert "68719476736 bytes" in host


def test_fragmentation_and_another_process_are_told_apart(run_dir: RunLayout) -> None:
    base = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. "
    found = of_log(run_dir, base + "5.00 GiB is reserved by PyTorch but unallocated.\n")
    assert found.cause == "out_of_memory_fragmentation"
    assert found.remedies[0].settings == {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert of_log(run_dir, base + "0.50 GiB is reserved by PyTorch but unallocated.\n").cause == "out_of_memory_gpu"
    other = of_log(run_dir, base + "Process 4711 has 70.00 GiB memory in use.\n")
    assert other.cause == "out_of_memory_other_process"
    assert "process 4711 holds 70.00 GiB" in other.explanation


# C55


def test_out_of_memory_in_evaluation_leaves_the_training_batch_alone(run_dir: RunLayout) -> None:
    log = """config: per_device_train_batch_size 8 per_device_eval_batch_size 64 seq 4096 vocab 32000 fp32 logits
step 499 loss 1.812
step 500 loss 1.809
Traceback (most recent call last):
  File "train.py", line 120, in <module>
  File "trainer.py", line 300, in evaluation_loop
    all_logits = torch.cat(all_logits)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 31.25 GiB. GPU 0 has a total capacity of 79.10 GiB.
"""
    found = of_log(run_dir, log)
    assert found.cause == "out_of_memory_evaluation"
    assert "trainer.py:evaluation_loop" in found.explanation
    assert "after training step 500" in found.explanation
    assert "64 x 4096 x 32000 x 4 bytes = 31.25 GiB" in found.explanation
    assert {key for remedy in found.remedies for key in remedy.settings} == {
        "per_device_eval_batch_size", "eval_accumulation_steps", "preprocess_logits_for_metrics",
    }  # fmt: skip
    assert not any(remedy.changes_results for remedy in found.remedies)
    training = of_log(run_dir, log.replace("evaluation_loop", "training_step"))
    assert training.cause == "out_of_memory_gpu"
    assert "GiB, the logits" not in of_log(run_dir, log.replace("seq 4096", "seq 2048")).explanation


# C40, C49, C13


def test_half_parameters_are_named_by_the_bare_message(run_dir: RunLayout) -> None:
    log = 'Traceback (most recent call last):\n  File "train.py", line 40, in <module>\n    accelerator.clip()\n'
    found = of_log(run_dir, log + "ValueError: Attempting to unscale FP16 gradients.\n")
    assert found.cause == "half_parameters_with_fp16_scaling"
    assert [remedy.changes_results for remedy in found.remedies] == [False, True]


def test_a_full_disk_is_no_corrupt_model(run_dir: RunLayout) -> None:
    log = """step 200 saving checkpoint
RuntimeError: [enforce fail at inline.cc:778] . PytorchStreamWriter failed writing file data/12: file write failed
OSError: [Errno 28] No space left on device
(restart)
RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory
"""
    found = of_log(run_dir, log)
    assert found.cause == "disk_full"
    assert "output directory" in found.explanation
    assert any("central directory" in c for c in found.consequences)
    assert "corrupt" not in found.explanation


def test_a_closed_session_is_no_training_error(run_dir: RunLayout) -> None:
    log = """step 900/5000 loss 1.9123
W0101 09:10:41.194000 100 torch/distributed/elastic/agent/api.py:719] Received 1 death signal, shutting down workers
W0101 09:10:41.195000 100 torch/distributed/multiprocessing/api.py:900] Sending process 101 closing signal SIGHUP
torch.distributed.elastic.multiprocessing.api.SignalException: Process 100 got signal: 1
"""
    found = of_log(run_dir, log)
    assert found.cause == "session_closed"
    assert found.explanation.startswith("signal 1 (SIGHUP): terminal/session closed; not a training error")
    assert "setsid" in found.remedies[0].action
    assert of_log(
        run_dir, log.replace("got signal: 1", "got signal: 15").replace("Received 1 ", "Received 15 ")
    ).cause == ("preempted")


# C50


def write_metrics(layout: RunLayout, lines: str) -> None:
    layout.stdout(0).write_text(lines)


def test_nan_is_dated_by_its_first_sign_and_not_by_the_loss(run_dir: RunLayout) -> None:
    rows = [f'{{"step": {i}, "loss": {2 - i / 20}, "grad_norm": {"1.25" if i < 4 else "NaN"}}}' for i in range(1, 10)]
    write_metrics(run_dir, "\n".join([*rows, '{"step": 10, "eval_loss": NaN}']) + "\n")
    found = diagnose(record(run_dir), run_dir)
    assert found.cause == "non_finite_values"
    assert found.explanation == "grad_norm is NaN since step 4 on rank 0"
    assert found.evidence == ("logs/rank0.stdout.log:4: grad_norm nan",)


def test_a_loss_of_exactly_zero_is_a_symptom(run_dir: RunLayout) -> None:
    rows = [(10, 1.5, 0.9), (20, 1.5, 0.9), (30, 0.0, "nan"), (40, 0.0, "nan")]
    write_metrics(run_dir, "".join(f"{{'loss': {a}, 'grad_norm': {g}, 'step': {s}}}\n" for s, a, g in rows))
    found = diagnose(record(run_dir), run_dir)
    assert found.cause == "zero_loss_nan_gradient"
    assert "since step 30" in found.explanation
    assert "loss exactly 0.0" in found.explanation
    assert found.remedies[-1].changes_results


def test_the_letters_nan_in_a_path_are_no_alarm(run_dir: RunLayout) -> None:
    write_metrics(
        run_dir, "loading /data/nan_project/finance.csv\nstep 1 loss 0.9\nstep 2 loss 0.8\nimported channel banana\n"
    )
    assert diagnose(record(run_dir, state=RunState.SUCCEEDED, exit_code=0), run_dir).cause == "no_failure"
    assert diagnose(record(run_dir), run_dir).cause == "unknown"


# signals and error files


def test_a_killed_worker_is_named_with_signal_and_last_lines(run_dir: RunLayout) -> None:
    layout = run_dir
    layout.stdout(0).touch()
    layout.stderr(0).write_text(
        'Traceback (most recent call last):\n  File "t.py", line 1, in f\nRuntimeError: Connection closed by peer\n'
    )
    found = diagnose(record(layout, failure(1, signal=9, lines=["step 5", "\x1b[2Jbye"]), failure(0)), layout)
    assert (found.cause, found.rank) == ("killed", 1)
    assert "signal 9 (SIGKILL)" in found.explanation
    assert "does not tell" in found.explanation
    assert "rank 1: \\x1b[2Jbye" in found.evidence
    assert any("Connection closed by peer" in c for c in found.consequences)


def test_the_engines_sigterm_of_other_ranks_is_not_the_cause(run_dir: RunLayout) -> None:
    error = {
        "type": "ValueError",
        "message": "bad row",
        "time_s": 5.0,
        "traceback": 'Traceback (most recent call last):\n  File "t.py", line 3, in collate\nValueError: bad row\n',
    }
    run_dir.error(1).write_text(json.dumps(error))
    run_dir.stdout(1).touch()
    found = diagnose(record(run_dir, failure(0, signal=15), failure(1)), run_dir)
    assert (found.cause, found.rank) == ("uncaught_exception", 1)
    assert found.explanation == "ValueError: bad row on rank 1 (t.py:collate)"


def test_the_error_file_of_a_lost_peer_is_secondary(run_dir: RunLayout) -> None:
    peer = {
        "type": "RuntimeError",
        "message": "Connection closed by peer",
        "time_s": 4.0,
        "traceback": "",
    }
    own = {"type": "IndexError", "message": "index out of range in self", "time_s": 5.0, "traceback": ""}
    run_dir.error(0).write_text(json.dumps(peer))
    run_dir.error(1).write_text(json.dumps(own))
    found = diagnose(record(run_dir, failure(0), failure(1)), run_dir)
    assert (found.cause, found.rank) == ("index_out_of_range", 1)


def test_a_cancelled_or_limited_run_is_not_called_a_failure(run_dir: RunLayout) -> None:
    assert diagnose(record(run_dir, state=RunState.CANCELLED), run_dir).cause == "cancelled"
    found = diagnose(record(run_dir, state=RunState.STOPPED_AT_LIMIT, reason="wall time 60 s"), run_dir)
    assert (found.cause, "wall time 60 s" in found.explanation) == ("stopped_at_limit", True)


def test_what_fits_nothing_is_unknown(run_dir: RunLayout) -> None:
    found = diagnose(record(run_dir, failure(0, lines=["hello"]), reason="rank 0: exit 3"), run_dir)
    assert (found.cause, found.remedies, found.evidence) == ("unknown", (), ("rank 0: hello",))


def test_what_a_gpu_kernel_asserted_tells_more_than_the_exception_after_it(run_dir: RunLayout) -> None:
    flood = "".join(
        f"../aten/Loss.cu:90: operator(): block: [{n},0,0], thread: [4,0,0] Assertion `input_val >= zero` failed.\n"
        for n in range(6000)
    )
    trace = 'Traceback (most recent call last):\n  File "t.py", line 1, in f\n'
    found = of_log(run_dir, flood + trace + "RuntimeError: CUDA error: device-side assert triggered\n")
    assert found.cause == "kernel_input_invalid"
    assert "device-side assert" in found.explanation
    assert "Assertion `input_val >= zero`" in found.evidence[1]


def test_a_shell_that_reports_its_childs_signal_is_a_signal(run_dir: RunLayout) -> None:
    killed = failure(0).model_copy(update={"exit_code": 137, "signal": None})
    found = diagnose(record(run_dir, killed), run_dir)
    assert (found.cause, found.evidence[0]) == ("killed", "result.json: rank 0 exit code 137")


def test_logs_that_hold_consequences_alone_point_at_the_others(run_dir: RunLayout) -> None:
    found = of_log(
        run_dir, "RuntimeError: [1] is setting up NCCL, store->get('0') got error: Connection reset by peer\n"
    )
    assert (found.cause, bool(found.remedies)) == ("peer_lost", True)


def test_a_script_that_stops_at_nan_is_told_what_helps(run_dir: RunLayout) -> None:
    found = of_log(run_dir, "ValueError: Loss is nan, stopping training\n")
    assert (found.cause, len(found.remedies)) == ("non_finite_values", 3)


def test_hostile_text_is_made_visible_and_secrets_are_masked(run_dir: RunLayout) -> None:
    trace = 'Traceback (most recent call last):\n  File "t.py", line 1, in f\n'
    found = of_log(run_dir, trace + "ValueError: \x1b]0;x\x07 --hub_token SECRET-1 \u202e\n")
    text = found.model_dump_json()
    assert "SECRET" not in text
    assert not set(found.explanation + "".join(found.evidence)) & set("\x1b\x07\u202e")


def test_a_real_worker_that_crashes_is_diagnosed(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    layout.logs.mkdir()
    script = tmp_path / "crash.py"
    script.write_text(
        "print('step 1 loss 0.5')\ndef step():\n    raise ValueError('Attempting to unscale FP16 gradients.')\nstep()\n"
    )
    worker = Path(__file__).parents[2] / "runtime" / "worker.py"
    done = run_process(
        [sys.executable, str(worker), str(script)],
        timeout_s=50,
        environment={"FORERUN_RUN": "run-0000000000", "FORERUN_RUN_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 1
    found = diagnose(record(layout, failure(0)), layout)
    assert found.cause == "half_parameters_with_fp16_scaling"
    assert "crash.py:step" in found.explanation
    assert found.evidence[0].startswith("logs/rank0.error.json:1:")
    assert found.consequences == ()
