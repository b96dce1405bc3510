"""The scripts with which accelerate 1.15 tests itself, on our names: each assertion holds or is listed.

docs/better-on-purpose.md holds the same list in words.
"""

import re
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.multiprocess

HELPERS = {"copy_tensor_to_devices", "is_datasets_available", "is_pytest_available"} | {
    f"is_{kind}_available" for kind in ("bf16", "cuda", "fp16", "hpu", "mps")
}
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "better-on-purpose.md"

ORDER = "order: the samples' order depends on seed and epoch alone, so that a resumed epoch is the same one"
WINDOW = "window: gradients are divided by the window's real length"
SCHEDULER = "scheduler: schedulers count optimizer steps, not steps times processes"
JOIN = "join: what cannot be joined is an error, not a warning before a hang"
STREAMS = "streams: even_batches=False holds for iterable data sets too"
STATE = "state: where a process is cannot be assigned"
ONE_PLACE = "one place: a checkpoint is one directory that all ranks see"
TWO_PROCESSES = "two processes: the script says itself that it is for two; one process fails on the peer alike"

Deviations = dict[tuple[str, str], str]

TRAINING: Deviations = {
    ("training_check", "torch.testing.assert_close(old_model.a, model.a)"): ORDER,
    ("training_check", "torch.testing.assert_close(old_model.b, model.b)"): ORDER,
}
SYNC: Deviations = {
    ("test_gradient_accumulation", "torch.allclose(param.grad, ddp_param.grad) is True"): WINDOW,
    ("check_model_parameters", "torch.allclose(param.grad, grad_param.grad, **kwargs) is True"): WINDOW,
    (
        "test_gradient_accumulation_with_opt_and_scheduler",
        "opt.param_groups[0]['lr'] == ddp_opt.param_groups[0]['lr']",
    ): SCHEDULER,
}
_ITERABLE = "test_join_raises_warning_for_iterable_when_overriding_even_batches"
_NON_DDP = "test_join_raises_warning_for_non_ddp_distributed"
LOOP: Deviations = {
    (_ITERABLE, "issubclass(w[-1].category, UserWarning)"): STREAMS,
    (_ITERABLE, "'only supported for map-style datasets' in str(w[-1].message)"): STREAMS,
    ("main", "accelerator.state.distributed_type = DistributedType.FSDP"): STATE,
    ("main", "accelerator.state.distributed_type = original_state"): STATE,
}
LOOP_OF_TWO: Deviations = {
    ("main", f"{_NON_DDP}(accelerator)"): JOIN,
    ("main", "test_stateful_dataloader_save_state(accelerator)"): ONE_PLACE,
}
LOOP_OF_ONE: Deviations = {
    ("create_accelerator", "accelerator.num_processes == 2"): TWO_PROCESSES,
    ("verify_dataloader_batch_sizes", "batch_sizes == process_0_expected_batch_sizes"): TWO_PROCESSES,
    ("test_can_join_uneven_inputs", "batch_idxs == [0, 1]"): TWO_PROCESSES,
    (_NON_DDP, "issubclass(w[-1].category, UserWarning)"): JOIN,
    (_NON_DDP, "'only supported for multi-GPU' in str(w[-1].message)"): JOIN,
}

EXPECTED: dict[tuple[str, int], Deviations] = {
    ("test_ops", 1): {},
    ("test_ops", 2): {},
    ("test_script", 1): TRAINING,
    ("test_script", 2): TRAINING,
    ("test_sync", 1): {},
    ("test_sync", 2): SYNC,
    ("test_distributed_data_loop", 1): LOOP | LOOP_OF_ONE,
    ("test_distributed_data_loop", 2): LOOP | LOOP_OF_TWO,
}
# Functions that look at something on every rank; on one process the scripts leave some out.
LOOKED_AT = {
    "test_ops": {"test_gather", "test_gather_object", "test_broadcast", "test_pad_across_processes"},
    "test_script": {
        "process_execution_check",
        "test_split_between_processes_list",
        "test_split_between_processes_nested_dict",
        "test_split_between_processes_tensor",
        "test_split_between_processes_evenly",
        "test_split_between_processes_dataset",
        "rng_sync_check",
        "dl_preparation_check",
        "central_dl_preparation_check",
        "custom_sampler_check",
        "check_seedable_sampler",
        "check_seedable_sampler_with_data_seed",
        "training_check",
        "test_trigger",
        "test_reinstantiated_state",
    },
    "test_sync": {"test_dataloader_break", "test_gradient_accumulation_with_opt_and_scheduler"},
    "test_distributed_data_loop": {
        "test_join_can_override_even_batches",
        "test_join_can_override_for_mixed_type_dataloaders",
        "test_pickle_accelerator",
        "test_data_loader",
        "_test_stateful_dataloader_resume",
    },
}
# main() calls these with accelerators of its own device kinds alone; they are about every kind.
EVERY_WAY_TO_ACCUMULATE = """
if world_size > 1:
    for split in (True, False):
        for dispatch in (True, False):
            for each in (True, False):
                peer_script.attempt(notes, module.test_gradient_accumulation, split, dispatch, each)
                peer_script.attempt(
                    notes, module.test_gradient_accumulation_with_opt_and_scheduler, split, dispatch, each
                )
"""


@pytest.mark.parametrize(("script", "ranks"), EXPECTED)
def test_every_assertion_holds_but_for_the_listed_ones(script: str, ranks: int, run_peer: Any) -> None:
    outcomes = run_peer(script, ranks, before=EVERY_WAY_TO_ACCUMULATE if script == "test_sync" else "")
    expected = set(EXPECTED[script, ranks])
    for outcome in outcomes:
        unexpected = {where: error for where, error in outcome.failed.items() if where not in expected}
        assert not unexpected
        assert set(outcome.failed) == expected
        assert set(outcome.left) <= HELPERS
        assert set(outcome.held) >= LOOKED_AT[script]
        if expected == set(SYNC):
            _look_closer(outcome.failed)


def _look_closer(failed: dict[tuple[str, str], list[tuple[str, str]]]) -> None:
    """The listed places of test_sync differ at the listed moment alone: the end of a short last window."""
    for (_, text), said in failed.items():
        for case, error in said:
            split = "False" if case == "main" else case.split()[0]
            if "lr" in text:
                assert split == "False", "where batches are split, the peer counts optimizer steps too"
                continue
            (iteration,) = map(int, re.findall(r"iteration (\d+)", error))
            assert iteration == (4 if split == "True" else 2), (case, error)


def test_each_deviation_is_in_the_document_with_its_reason() -> None:
    text = DOCUMENT.read_text()
    for deviations in EXPECTED.values():
        for (function, _), reason in deviations.items():
            assert f"`{function}`" in text
            assert f"**{reason.partition(':')[0]}**" in text
