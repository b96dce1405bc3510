"""Several ranks under DDP against one process, number by number."""

import pytest

pytestmark = pytest.mark.multiprocess

SETUP = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    def forward(self, x):
        return self.layers(x)

torch.set_default_dtype(torch.float64)
set_seed(11)
DATA = torch.randn(26, 3)
TARGET = DATA.sum(1, keepdim=True)

def flat(gradients):
    return torch.cat([g.reshape(-1) for g in gradients]).tolist()
"""


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_windows_gradient_equals_one_processs(run_ranks, ranks: int) -> None:
    script = (
        SETUP
        + """
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
plain = Net()
model = Net()
model.load_state_dict(plain.state_dict())
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = list(zip(DATA, TARGET))[:24]
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=2))
communications = []
def hook(state, bucket):
    communications.append(1)
    return torch.distributed.all_reduce(bucket.buffer().div_(accelerator.num_processes), async_op=True).get_future(
        ).then(lambda future: future.value()[0])
model.register_comm_hook(None, hook)

world = accelerator.num_processes
got, sent = [], []
for x, y in loader:
    before = len(communications)
    with accelerator.accumulate(model):
        optimizer.zero_grad()
        accelerator.backward((model(x) - y).square().mean())
        sent.append(len(communications) > before)
        if accelerator.sync_gradients:
            got.append(flat(p.grad for p in model.parameters()))
        optimizer.step()

expected = []
reference = torch.optim.SGD(plain.parameters(), lr=0.05)
per_step = 2 * world
batches = [DATA[i:i + per_step] for i in range(0, 24, per_step)]
targets = [TARGET[i:i + per_step] for i in range(0, 24, per_step)]
for first in range(0, len(batches), 3):
    window = list(zip(batches[first:first + 3], targets[first:first + 3]))
    reference.zero_grad()
    (sum((plain(x) - y).square().mean() for x, y in window) / len(window)).backward()
    expected.append(flat(p.grad for p in plain.parameters()))
    reference.step()
worst = max(abs(a - b) for g, e in zip(got, expected) for a, b in zip(g, e))
say(worst=worst, windows=len(got), expected=len(expected), sent=sent)
"""
    )
    said = run_ranks(script, ranks=ranks).said
    for rank in said:
        assert rank["windows"] == rank["expected"] == 24 // (2 * ranks) // 3 + (24 // (2 * ranks) % 3 > 0)
        assert rank["worst"] < 1e-12
        steps = len(rank["sent"])
        assert rank["sent"] == [(step + 1) % 3 == 0 or step + 1 == steps for step in range(steps)]


def test_a_token_weighted_window_weighs_all_ranks_tokens_alike(run_ranks) -> None:
    script = (
        SETUP
        + """
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
plain = Net()
model = Net()
model.load_state_dict(plain.state_dict())
model = accelerator.prepare(model)
rank = accelerator.process_index
parts = [[(0, 1), (1, 6)], [(6, 9), (9, 9)]][rank]
for start, end in parts:
    with accelerator.accumulate(model):
        loss = (model(DATA[start:end]) - TARGET[start:end]).square().sum()
        accelerator.backward(loss, num_items=end - start)
((plain(DATA[:9]) - TARGET[:9]).square().mean()).backward()
got, expected = flat(p.grad for p in model.parameters()), flat(p.grad for p in plain.parameters())

skipping = accelerator.prepare(Net())
twin = Net()
twin.load_state_dict(accelerator.unwrap_model(skipping).state_dict())
optimizer = accelerator.prepare(torch.optim.SGD(skipping.parameters(), lr=1.0))
for step in range(2):
    with accelerator.accumulate(skipping):
        if step == 0:
            accelerator.backward(skipping(DATA[rank:rank + 1]).sum())
        optimizer.step()
twin(DATA[:2]).mean().backward()
after = [p - p.grad for p in twin.parameters()]
drift = max((a - b).abs().max().item() for a, b in zip(after, skipping.parameters()))
say(worst=max(abs(a - b) for a, b in zip(got, expected)), drift=drift)
"""
    )
    for rank in run_ranks(script).said:
        assert rank["worst"] < 1e-12
        assert rank["drift"] < 1e-12


def test_the_same_script_trains_alike_on_one_and_two_processes(run_ranks) -> None:
    script = (
        SETUP
        + """
accelerator = Accelerator(cpu=True, split_batches=True)
model = Net()
optimizer = torch.optim.Adam(model.parameters())
dataloader = DataLoader(DATA[:24], batch_size=4, shuffle=True)
model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
for epoch in range(2):
    for batch in dataloader:
        optimizer.zero_grad()
        loss = model(batch).mean()
        accelerator.backward(loss)
        optimizer.step()
weights = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
say(weights=weights.tolist())
"""
    )
    one = run_ranks(script, ranks=1).said
    two = run_ranks(script, ranks=2).said
    assert two[0]["weights"] == two[1]["weights"]
    assert two[0]["weights"] == pytest.approx(one[0]["weights"], abs=1e-12)


def test_uneven_training_is_refused_at_once_and_named(run_ranks) -> None:
    script = (
        SETUP
        + """
accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(even_batches=False))
model, loader = accelerator.prepare(Net(), DataLoader(DATA[:18], batch_size=2))
for x in loader:
    accelerator.backward(model(x).mean())
"""
    )
    ended = run_ranks(script, ok=False)
    assert ended.returncode != 0
    assert "even_batches=False gives the ranks [5, 4] batches" in ended.output


def test_uneven_training_inside_join_ends_with_equal_parameters(run_ranks) -> None:
    script = (
        SETUP
        + """
counts, sums = [], []
for accumulation in (1, 2):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(DATA[:18], batch_size=2))
    with accelerator.join_uneven_inputs([model], even_batches=False):
        for index, x in enumerate(loader):
            with accelerator.accumulate(model):
                accelerator.backward(model(x).square().mean())
                optimizer.step()
                optimizer.zero_grad()
    counts.append([index + 1, len(loader)])
    sums.append([p.detach().sum().item() for p in model.parameters()])
say(counts=counts, sums=sums)
"""
    )
    first, second = run_ranks(script).said
    assert first["counts"] == [[5, 5], [5, 5]]
    assert second["counts"] == [[4, 5], [4, 5]]
    assert first["sums"] == second["sums"]
