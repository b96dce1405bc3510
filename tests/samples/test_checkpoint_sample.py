"""S10 of the source document: save_state on the main process alone, load_state on all.

Supplied: a model, an optimizer and a loader with dropout and shuffling, and some training around the two calls.
"""

from typing import Any

import pytest

pytestmark = pytest.mark.multiprocess

S10 = """
# Save only on main process
if accelerator.is_main_process:
    accelerator.save_state('checkpoint/')

# Load on all processes
accelerator.load_state('checkpoint/')
"""

SUPPLIED = """
set_seed(42)
accelerator = Accelerator({options})
model = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.Linear(4, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
dataloader = DataLoader(torch.randn(24, 2), batch_size=2, shuffle=True)
model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)

def train(epoch):
    losses = []
    dataloader.set_epoch(epoch)
    for batch in dataloader:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses

def weights():
    held = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return torch.cat([p.detach().reshape(-1) for p in held]).tolist()

train(0)
at_save = weights()
"""

CHECKED = """
def same():
    return weights() == at_save
after_load = same()
further = train(1)
changed = not same()
accelerator.load_state('checkpoint/')
again = same() and train(1) == further
say(after_load=after_load, changed=changed, again=again, path=[p.name for p in HERE.glob("checkpoint*")])
"""


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    "options",
    [
        "",
        "project_config=ProjectConfiguration('.', automatic_checkpoint_naming=True)",
    ],
)
def test_s10_the_main_process_saves_alone_and_all_load(run_sample: Any, ranks: int, options: str) -> None:
    said = run_sample(
        S10 if not options else S10.replace("save_state('checkpoint/')", "save_state()").replace("'checkpoint/'", ""),
        ranks=ranks,
        supplied="from runtime import ProjectConfiguration\n" + SUPPLIED.replace("{options}", options),
        checked=CHECKED if not options else CHECKED.replace("'checkpoint/'", "").replace("checkpoint*", "checkpoints"),
    )
    for rank in said:
        assert rank["after_load"]
        assert rank["changed"]
        assert rank["again"]
        assert rank["path"] == ["checkpoints" if options else "checkpoint"]


def test_s10_with_sharded_state_says_in_seconds_what_to_do(run_ranks: Any) -> None:
    script = (
        "from runtime import FullyShardedDataParallelPlugin\n"
        + SUPPLIED.replace("{options}", "fsdp_plugin=FullyShardedDataParallelPlugin()")
        + S10
    )
    ended = run_ranks(script, ok=False)
    assert ended.returncode != 0
    assert "save_state" in ended.output
    assert "call save_state outside of `if accelerator.is_main_process`" in ended.output
