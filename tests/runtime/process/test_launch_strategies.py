"""What a launch decides reaches the script: the window and the strategy; a whole smoke run under FSDP2."""

import pytest

from runtime.records import read_events, read_metrics
from tests.fakes.author import Author

pytestmark = pytest.mark.multiprocess

WINDOW = """
from runtime import Accelerator
import sys
given = {"gradient_accumulation_steps": int(sys.argv[1])} if sys.argv[1:] else {}
print(Accelerator(**given).gradient_accumulation_steps)
"""
TRAIN = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from runtime import Accelerator, set_seed
torch.set_num_threads(1)
set_seed(3)
accelerator = Accelerator()
x = torch.linspace(-1, 1, 128).unsqueeze(1)
model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
loader = DataLoader(TensorDataset(x, 3 * x), batch_size=4, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for epoch in range(50):
    for features, labels in loader:
        with accelerator.accumulate(model):
            optimizer.zero_grad()
            accelerator.backward((model(features) - labels).square().mean())
            optimizer.step()
print(accelerator.distributed_type, type(next(model.parameters()).data).__name__)
accelerator.end_training()
"""


@pytest.mark.parametrize(("arguments", "window"), [((), "3"), (("2",), "2")])
def test_the_window_of_the_launch_is_the_scripts_unless_it_says_otherwise(
    author: Author, arguments: tuple[str, ...], window: str
) -> None:
    author.write(WINDOW)
    code, stdout, stderr = author.launch("--cpu", "--gradient_accumulation_steps", "3", "train.py", *arguments)
    assert (code, stdout) == (0, f"{window}\n"), stderr


def test_a_smoke_run_under_fsdp_shows_all_its_evidence(author: Author) -> None:
    author.write(TRAIN)
    options = ("--cpu", "--num_processes", "2", "--use_fsdp", "--gradient_accumulation_steps", "2")
    _, by_flag, _ = author.launch(*options, "--dry-run", "train.py")
    other = [option.replace("--use_fsdp", "--strategy=fsdp") for option in options]
    _, by_word, _ = author.launch(*other, "--dry-run", "train.py")
    assert "FORERUN_STRATEGY=fsdp" in by_flag
    assert "FORERUN_STRATEGY=fsdp" in by_word
    code, stdout, stderr = author.launch(*options, "train.py", FORERUN_SMOKE_STEPS="12", OMP_NUM_THREADS="1")
    assert code == 0, stderr
    assert sorted(stdout.splitlines()) == [f"[rank{rank}] FSDP DTensor" for rank in (0, 1)]
    (layout,) = author.runs()
    events = {event.event: event.details for event in read_events(layout.events)}
    assert events["run_started"]["strategy"] == "fsdp2"
    assert events["batch_arithmetic"]["effective"] == 4 * 2 * 2
    assert events["checkpoint_loaded"] == {"path": str(layout.checkpoints / "smoke"), "equal": True}
    assert events["smoke_steps_done"] == {"steps": 12}
    losses = [record.value for _, record in read_metrics(layout.metrics(0)) if record.name == "backward_loss"]
    assert len(losses) == 12
    assert sum(losses[-4:]) < 0.5 * sum(losses[:4])
