"""An fp16 overflow on one rank, on one shard: no rank advances anything, under every strategy."""

import pytest

from tests.runtime.conftest import RunRanks

pytestmark = pytest.mark.multiprocess

_SCRIPT = """
accelerator = Accelerator(cpu=True, mixed_precision="fp16"{options})
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
optimizer = torch.optim.{optimizer}
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)

def weights():
    state = accelerator.get_state_dict(model)
    return torch.cat([t.flatten() for t in state.values()]).tolist() if state else None

skipped, seen, scales = [], [weights()], []
for step in range(1, 5):
    out = model(torch.full((2, 4), 1.0 + accelerator.process_index))
    loss = out.mean()
    if step == 2 and accelerator.process_index == 1:
        loss = loss * {huge}
    optimizer.zero_grad()
    accelerator.backward(loss)
    if {clip}:
        accelerator.clip_grad_norm_(model.parameters(), 10.0)
    optimizer.step()
    scheduler.step()
    skipped.append(accelerator.optimizer_step_was_skipped)
    seen.append(weights())
    scales.append(accelerator.scaler.get_scale())
steps = sorted({{int(state["step"]) for state in optimizer.state.values() if "step" in state}})
say(skipped=skipped, seen=seen, scales=scales, counts=[optimizer.num_steps, optimizer.num_skipped],
    lr=scheduler.get_last_lr(), steps=steps)
"""
_OPTIMIZERS = {
    "adamw": "AdamW(model.parameters(), lr=0.1)",
    "fused": "AdamW(model.parameters(), lr=0.1, fused=True)",
}


@pytest.mark.parametrize(
    ("options", "kind", "clip"),
    [
        ("", "adamw", True),
        ("", "fused", False),
        (", fsdp_plugin={'reshard_after_forward': True}", "adamw", True),
        (", fsdp_plugin={'reshard_after_forward': True}", "fused", False),
    ],
)
def test_one_ranks_overflow_advances_no_rank(run_ranks: RunRanks, options: str, kind: str, clip: bool) -> None:
    script = _SCRIPT.format(options=options, optimizer=_OPTIMIZERS[kind], clip=clip, huge="1e35")
    for said in run_ranks(script).said:
        assert said["skipped"] == [False, True, False, False]
        assert said["scales"] == [65536.0, 32768.0, 32768.0, 32768.0]
        assert said["counts"] == [3, 1]
        assert said["lr"] == pytest.approx([0.1 * 0.5**3])
        assert said["steps"] == [3]
        if said["seen"][0] is not None:
            assert said["seen"][2] == said["seen"][1]
            assert said["seen"][1] != said["seen"][0]
            assert said["seen"][3] != said["seen"][2]


def test_an_overflow_in_one_shard_alone_stops_the_other_ranks_too(run_ranks: RunRanks) -> None:
    script = _SCRIPT.replace("loss = out.mean()", "loss = out.mean() if step != 2 else 0 * out.sum()")
    script = script.replace(
        "    optimizer.zero_grad()\n    accelerator.backward(loss)\n",
        "    optimizer.zero_grad()\n    accelerator.backward(loss)\n"
        "    if step == 2 and accelerator.process_index == 1:\n"
        "        list(model.parameters())[0].grad.to_local()[-1, -1] = float('inf')\n",
    )
    options = ", fsdp_plugin={'reshard_after_forward': True}"
    script = script.format(options=options, optimizer=_OPTIMIZERS["adamw"], clip=False, huge="1.0")
    for said in run_ranks(script).said:
        assert said["skipped"] == [False, True, False, False]
        assert said["counts"] == [3, 1]
        assert said["steps"] == [3]
