"""Every kind of machine with every precision gives a file that loads and is written the same again (C22)."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.cli.checks import check
from runtime.cli.foreground import HandLaunch, preview
from runtime.cli.report import dry_run
from runtime.config.choices import choose
from runtime.config.launch_options import PRECISIONS
from runtime.config.loader import dump, load, save
from runtime.config.resolve import resolve
from runtime.config.wizard import Interview, Machine, default_values

GPUS = Machine(num_cpus=8, memory_bytes=2**36, gpus=("H200",) * 4, has_bf16=True)
BARE = Machine(num_cpus=2)
TYPES = ("No distributed training", "multi-CPU", "multi-GPU", "TPU", "DeepSpeed", "FSDP", "Megatron-LM")


class Scripted:
    """Somebody who answers each question by a part of its text, and by Return where nothing is said of it."""

    def __init__(self, answers: dict[str, str | list[str]]) -> None:
        self.answers = {key: list(value) if isinstance(value, list) else [value] for key, value in answers.items()}
        self.told: list[str] = []
        self.asked: list[str] = []

    def ask(self, prompt: str) -> str:
        question = prompt if "?" in prompt else next(line for line in reversed(self.told) if line.endswith("?"))
        self.asked.append(question)
        assert len(self.asked) < 100, self.told[-5:]
        for key, lines in self.answers.items():
            if key in question and lines:
                return lines.pop(0)
        return ""

    def interview(self, machine: Machine, **earlier: object) -> dict[str, object]:
        return Interview(ask=self.ask, tell=self.told.append, machine=machine, earlier=earlier).hold()


def _answers(kind: str, precision: str) -> dict[str, str | list[str]]:
    answers: dict[str, str | list[str]] = {"mixed precision": precision, "type of machine": kind}
    if kind in ("DeepSpeed", "FSDP", "Megatron-LM"):
        answers["type of machine"] = "multi-GPU"
        answers[{"DeepSpeed": "DeepSpeed?", "FSDP": "FullySharded", "Megatron-LM": "Megatron"}[kind]] = "yes"
    return answers


def _check(values: dict[str, object], path: Path) -> None:
    save(path, values)
    text = path.read_text()
    read = load(path)
    again = {name: given.value for name, given in read.values.items()}
    assert again == values
    assert dump(again) == text
    resolved = resolve([], read)
    choices = choose(resolved)
    launch = HandLaunch(python=sys.executable, target=__file__, arguments=("--x",), num_processes=1)
    checked = check(launch, choices, gpu_ids="")
    lines = list(dry_run(resolved, choices, checked, preview(checked.launch), mask=str))
    assert lines[-1].endswith(f"-- {__file__} --x")
    assert sum(line.startswith("  rank ") for line in lines) == checked.launch.num_processes


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("machine", [GPUS, BARE], ids=["gpus", "bare"])
def test_every_type_with_every_precision_loads_and_is_written_the_same_again(
    kind: str, precision: str, machine: Machine, tmp_path: Path
) -> None:
    values = Scripted(_answers(kind, precision)).interview(machine)
    assert values["mixed_precision"] == precision
    assert ("fp8_backend" in values) is (precision == "fp8")
    expected = {"DeepSpeed": "DEEPSPEED", "FSDP": "FSDP", "Megatron-LM": "MEGATRON_LM", "TPU": "XLA"}
    assert values["distributed_type"] == expected.get(
        kind, kind.upper().replace("-", "_").replace("NO DISTRIBUTED TRAINING", "NO")
    )
    _check(values, tmp_path / "config.yaml")
    again = Scripted({}).interview(machine, **values)
    assert again == values, "Return at every question keeps an earlier file"


@pytest.mark.parametrize("stage", ["0", "1", "2", "3"])
@pytest.mark.parametrize("offload", ["none", "cpu", "nvme"])
def test_deepspeed_in_every_stage(stage: str, offload: str, tmp_path: Path) -> None:
    scripted = Scripted({**_answers("DeepSpeed", "bf16"), "ZeRO": stage, "offload": [offload, offload]})
    values = scripted.interview(GPUS)
    assert values["zero_stage"] == int(stage)
    assert ("offload_optimizer_device" in values) is (stage in "23")
    assert ("offload_param_device" in values) is (stage == "3")
    _check(values, tmp_path / "config.yaml")


def test_fsdp_and_megatron_ask_for_what_their_answers_open(tmp_path: Path) -> None:
    sized = Scripted({**_answers("FSDP", "no"), "sharded on their own": "SIZE_BASED_WRAP", "Least number": "1e6"})
    values = sized.interview(GPUS)
    assert (values["fsdp_version"], values["fsdp_min_num_params"]) == (2, 1_000_000)
    _check(values, tmp_path / "fsdp.yaml")
    named = Scripted({**_answers("FSDP", "no"), "Classes of": "BertLayer, GPT2Block"}).interview(GPUS)
    assert named["fsdp_transformer_layer_cls_to_wrap"] == ("BertLayer", "GPT2Block")
    _check(named, tmp_path / "named.yaml")
    split = Scripted({**_answers("Megatron-LM", "fp8"), "tensor-parallel": "2", "pipeline stages": "2"}).interview(GPUS)
    assert split["megatron_lm_sequence_parallelism"] is True
    assert split["megatron_lm_num_micro_batches"] == 1
    _check(split, tmp_path / "megatron.yaml")


def test_several_machines(tmp_path: Path) -> None:
    scripted = Scripted(
        {
            "type of machine": "multi-GPU",
            "How many machines": "2",
            "Which rank": ["2", "-1", "1"],
            "Which address": ["", "10.0.0.1"],
            "How many processes": ["3", "8"],
        }
    )
    values = scripted.interview(GPUS)
    assert (values["machine_rank"], values["num_processes"]) == (1, 8)
    assert (values["main_process_ip"], values["main_process_port"]) == ("10.0.0.1", 29500)
    assert any("machine_rank 2 (your answer) does not go with num_machines 2" in line for line in scripted.told)
    assert any("num_processes 3 (your answer) does not go with num_machines 2" in line for line in scripted.told)
    _check(values, tmp_path / "config.yaml")


def test_invalid_answers_are_asked_again_and_never_stored() -> None:
    scripted = Scripted(
        {
            "Where": ["5", "0", "moon", "1"],
            "type of machine": ["DEEPSPEED", "multi-TPU", "2"],
            "How many processes": ["0", "-3", "two", "4097", "1.5", "null", "2"],
            "mixed precision": ["n", "yes", "fp15", "9", "3"],
        }
    )
    values = scripted.interview(BARE)
    assert values == {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "MULTI_CPU",
        "num_machines": 1,
        "num_processes": 2,
        "mixed_precision": "bf16",
    }
    assert sum("is no answer here. Allowed:" in line for line in scripted.told) == 15


def test_it_asks_only_what_is_open_and_proposes_what_it_found() -> None:
    one = Scripted({})
    assert one.interview(BARE)["distributed_type"] == "NO"
    assert len(one.asked) == 3, one.asked
    assert "Found: 2 CPUs; memory unknown; GPUs: none" in one.told
    several = Scripted({})
    values = several.interview(GPUS)
    assert (values["distributed_type"], values["num_processes"], values["mixed_precision"]) == ("MULTI_GPU", 4, "bf16")
    assert not any("GPUs, by id" in question for question in several.asked)
    fewer = Scripted({"How many processes": "2", "by id": "1,3"})
    assert fewer.interview(GPUS)["gpu_ids"] == "1,3"


def test_what_the_questions_do_not_touch_is_kept_from_an_earlier_file() -> None:
    values = Scripted({}).interview(BARE, log_dir="/runs", cpu=True, num_processes=7)
    assert values["log_dir"] == "/runs"
    assert "cpu" not in values


def test_the_end_of_the_answers_is_an_end() -> None:
    lines: Iterator[str] = iter(["This machine", "multi-CPU"])

    def ask(_: str) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    with pytest.raises(EOFError):
        Interview(ask=ask, tell=lambda _: None, machine=BARE).hold()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("machine", [GPUS, BARE], ids=["gpus", "bare"])
def test_the_default_file_loads(machine: Machine, precision: str, tmp_path: Path) -> None:
    values = default_values(machine, mixed_precision=precision)
    assert values["num_processes"] == (4 if machine is GPUS else 1)
    _check(values, tmp_path / "config.yaml")
