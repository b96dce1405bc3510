"""The document's launch commands, as written, with `forerun` for `accelerate` (S4, S7); S3 is in the wizard's tests."""

import json
from pathlib import Path

import pytest

from tests.fakes.author import Author
from tests.fakes.nodes import Node, Start

pytestmark = pytest.mark.multiprocess
TRAIN = """
import sys
from runtime import Accelerator
import torch
accelerator = Accelerator()
model = accelerator.prepare(torch.nn.Linear(2, 1))
ranks = accelerator.gather(torch.tensor([accelerator.process_index])).tolist()
local = accelerator.local_process_index
sys.stdout.write(f"rank {accelerator.process_index} local {local} of {accelerator.num_processes} {ranks}\\n")
accelerator.end_training()
"""


def test_launch_without_an_option_trains_on_one_process(author: Author) -> None:
    author.write(TRAIN)
    code, stdout, stderr = author.launch("train.py")
    assert (code, stdout) == (0, "rank 0 local 0 of 1 [0]\n"), stderr


@pytest.mark.parametrize(
    ("options", "ranks"),
    [
        ("--multi_gpu --num_processes 8", range(8)),
        ("--multi_gpu --num_processes 16 --num_machines 2 --machine_rank 0 --main_process_ip 127.0.0.1", range(8)),
    ],
)
def test_gpus_that_are_not_here_are_refused_and_the_dry_run_shows_the_launch(
    author: Author, options: str, ranks: range
) -> None:
    author.write(TRAIN)
    code, stdout, stderr = author.launch(*options.split(), "train.py", CUDA_VISIBLE_DEVICES="")
    assert (code, stdout) == (2, "")
    assert "there is no GPU" in stderr
    code, stdout, stderr = author.launch(*options.split(), "--dry-run", "train.py", CUDA_VISIBLE_DEVICES="")
    assert code == 0, stderr
    shown = [line for line in stdout.splitlines() if line.startswith("  rank ")]
    assert shown == [f"  rank {rank}: local rank {rank}, device cuda:{rank}" for rank in ranks]
    assert "refused here: --multi-gpu, but there is no GPU" in stdout


def test_a_deepspeed_json_as_the_configuration_file_decides_strategy_precision_and_window(author: Author) -> None:
    """S7"""
    config = {
        "zero_optimization": {"stage": 1},
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": 2,
        "bf16": {"enabled": True},
    }
    author.write(json.dumps(config), "deepspeed_config.json")
    author.write(
        "from runtime import Accelerator\nimport torch\naccelerator = Accelerator()\nmodel = torch.nn.Linear(1, 1)\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "loader = torch.utils.data.DataLoader(torch.ones(8, 1), batch_size=2)\n"
        "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)\n"
        "for x in loader:\n    with accelerator.accumulate(model):\n"
        "        accelerator.backward(model(x).square().mean()); optimizer.step(); optimizer.zero_grad()\n"
        "print(accelerator.distributed_type, accelerator.mixed_precision, accelerator.gradient_accumulation_steps)\n"
        "accelerator.end_training()\n"
    )
    code, stdout, stderr = author.launch("--config_file", "deepspeed_config.json", "train.py")
    assert (code, stdout.splitlines()[-1:]) == (0, ["DEEPSPEED bf16 2"]), stderr


@pytest.mark.alone
def test_the_command_of_several_machines_on_two_hosts(start: Start, hosts: list[list[str]], tmp_path: Path) -> None:
    """Without GPUs --cpu stands for --multi_gpu; then the same machines from a DeepSpeed hostfile."""
    words = ("--num_processes", "4", "--num_machines", "2", "--main_process_ip", "10.77.0.1")
    _all_met([start(r, *words, "--machine_rank", str(r), script=TRAIN, prefix=hosts[r], as_written=1) for r in (0, 1)])
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("10.77.0.1 slots=2\n10.77.0.2 slots=2\n10.77.0.3 slots=8  # not today\n")
    words = ("--deepspeed_hostfile", str(hostfile), "--deepspeed_exclusion_filter", "10.77.0.3")
    _all_met([start(r, *words, script=TRAIN, prefix=hosts[r], as_written=1) for r in (0, 1)])


def _all_met(nodes: list[Node]) -> None:
    for node, ranks in zip(nodes, ((0, 1), (2, 3)), strict=True):
        code, output = node.end()
        assert code == 0, output
        for local, rank in enumerate(ranks):
            assert f"[rank{rank}] rank {rank} local {local} of 4 [0, 1, 2, 3]" in output
