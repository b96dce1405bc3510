"""Accumulation on several ranks, number by number against one process: GANs, epochs' ends, evaluations, tokens."""

from typing import Any

import pytest

pytestmark = pytest.mark.multiprocess

SCRIPT = """
import copy, math
torch.set_default_dtype(torch.float64)

class Net(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(inputs, 4), nn.Tanh(), nn.Linear(4, outputs))
    def forward(self, x):
        return self.layers(x)

def apart(models, twins):
    pairs = [(p, q) for m, t in zip(models, twins) for p, q in zip(m.parameters(), t.parameters())]
    return max((p - q).abs().max().item() for p, q in pairs)

def prepare(accumulation, count, size=2, **options):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation, **options)
    set_seed(5)
    data = torch.randn(count, 3)
    world = accelerator.num_processes
    return accelerator, data, DataLoader(data, batch_size=size), list(data.split(size * world))

def windows(batches, size):
    return [batches[first:first + size] for first in range(0, len(batches), size)]

got = {}

# A GAN: two models, two optimizers, a window each; three epochs whose last window is short.
accelerator, data, loader, batches = prepare(3, 32)
generator, critic = Net(3, 3), Net(3, 1)
twins = copy.deepcopy([generator, critic])
def optimizers(models):
    return [torch.optim.Adam(model.parameters(), lr=0.05) for model in models]
one, two = optimizers([generator, critic])
generator, critic, one, two, loader = accelerator.prepare(generator, critic, one, two, loader)
schedule = accelerator.prepare(torch.optim.lr_scheduler.ExponentialLR(two, 0.5))
def critic_loss(generator, critic, x):
    return (critic(x) - 1).square().mean() + critic(generator(x).detach()).square().mean()
def generator_loss(generator, critic, x):
    return (critic(generator(x)) - 1).square().mean()
for epoch in range(3):
    for x in loader:
        with accelerator.accumulate(critic):
            two.zero_grad()
            accelerator.backward(critic_loss(generator, critic, x))
            accelerator.clip_grad_norm_(critic.parameters(), 0.5)
            two.step()
            schedule.step()
        with accelerator.accumulate(generator):
            accelerator.backward(generator_loss(generator, critic, x))
            one.step()
            one.zero_grad()
            two.zero_grad(discard=True) if accelerator.sync_gradients else None
got["steps"] = [one.num_steps, two.num_steps]
got["rate"] = schedule.get_last_lr()[0]
got["finite"] = all(p.isfinite().all().item() for p in [*generator.parameters(), *critic.parameters()])

# One model over three epochs with a short last window, an uneven evaluation inside of windows, and clipping.
accelerator, data, loader, batches = prepare(3, 32)
model = Net(3, 1)
twin = copy.deepcopy(model)
evaluation = DataLoader(torch.randn(7, 3), batch_size=2)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
model, optimizer, loader, evaluation = accelerator.prepare(model, optimizer, loader, evaluation)
flags, norms, kept = [], [], set()
for epoch in range(3):
    for index, x in enumerate(loader):
        with accelerator.accumulate(model):
            accelerator.backward(model(x).square().mean())
            if accelerator.sync_gradients:
                norms.append(accelerator.clip_grad_norm_(model.parameters(), 0.1).item())
            optimizer.step()
            optimizer.zero_grad()
        flags.append(accelerator.sync_gradients)
        if index in (1, 3):
            for y in evaluation:
                with torch.no_grad():
                    accelerator.gather_for_metrics(model(y))
                if index == 3:
                    break
        kept.add(len(accelerator.gather_for_metrics(x)))
reference, expected_norms = torch.optim.AdamW(twin.parameters(), lr=0.05), []
for epoch in range(3):
    for window in windows(batches, 3):
        reference.zero_grad()
        (sum(twin(x).square().mean() for x in window) / len(window)).backward()
        expected_norms.append(nn.utils.clip_grad_norm_(twin.parameters(), 0.1).item())
        reference.step()
got["flags"], got["kept"] = flags, sorted(kept)
got["norms"] = max(abs(a - b) for a, b in zip(norms, expected_norms, strict=True))
got["apart"] = apart([model], [twin])

# Tokens: ranks and micro-batches with different numbers of them, one of them without any.
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
rank = accelerator.process_index
model = Net(3, 1)
twin = copy.deepcopy(model)
model = accelerator.prepare(model)
parts = [[(0, 1), (1, 7)], [(7, 7), (7, 9)]][rank]
logged = []
for start, end in parts:
    with accelerator.accumulate(model):
        loss = model(data[start:end]).square().sum()
        accelerator.backward(loss, num_items=end - start)
    logged.append(loss.detach())
twin(data[:9]).square().mean().backward()
got["tokens"] = max((p.grad - q.grad).abs().max().item() for p, q in zip(model.parameters(), twin.parameters()))
tokens = torch.tensor(float(sum(end - start for start, end in parts)))
total = accelerator.reduce(sum(logged), "sum") / accelerator.reduce(tokens, "sum")
got["logged"] = abs(total.item() - twin(data[:9]).square().mean().item())

# The mean loss of an evaluation is the mean over samples, whatever the batch size.
losses = [1.0] * 8 + [5.0, 5.0]
got["means"] = []
for size in (1, 3, 4, 10):
    for even in (True, False):
        accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(even_batches=even))
        seen = []
        for x in accelerator.prepare(DataLoader(torch.tensor(losses), batch_size=size)):
            seen += accelerator.gather_for_metrics(x).tolist()
        seen = max(accelerator.gather_for_metrics([seen], use_gather_object=True), key=len)
        got["means"].append([len(seen), sum(seen) / len(seen), math.exp(sum(seen) / len(seen))])
say(**got)
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_windows_on_ranks_are_those_of_one_process(run_ranks: Any, ranks: int) -> None:
    script = SCRIPT if ranks == 2 else SCRIPT.replace("[(7, 7), (7, 9)]][rank]", "[]][0] + [(7, 7), (7, 9)]")
    script = (
        script
        if ranks == 2
        else script.replace("gradient_accumulation_steps=2)\nrank", "gradient_accumulation_steps=4)\nrank")
    )
    for said in run_ranks(script, ranks=ranks).said:
        batches = 32 // (2 * ranks)
        of_an_epoch = -(-batches // 3)
        assert said["steps"] == [3 * of_an_epoch] * 2
        assert said["rate"] == pytest.approx(0.05 * 0.5 ** (3 * of_an_epoch))
        assert said["finite"]
        assert said["flags"] == [(i + 1) % 3 == 0 or i + 1 == batches for i in range(batches)] * 3
        assert said["kept"] == [2 * ranks]
        for figure in ("norms", "apart", "tokens", "logged"):
            assert said[figure] < 1e-12, figure
        for count, mean, perplexity in said["means"]:
            assert count == 10
            assert mean == pytest.approx(1.8)
            assert perplexity == pytest.approx(6.0496, abs=1e-4)
