"""Backwards that DDP does not count on: several to a forward, and losses that came round it. Against one process."""

import pytest

pytestmark = pytest.mark.multiprocess

SETUP = """
torch.set_default_dtype(torch.float64)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 1)
    def forward(self, x):
        out = self.head(self.body(x).tanh())
        return out, out.square()
    def loss(self, x, y):
        left, right = self(x)
        return (left - y).square().mean() + (right + y).abs().mean()

set_seed(5)
DATA = torch.randn(24, 3)
TARGET = DATA.sum(1, keepdim=True)

def one_after_the_other(model, backward, x, y):
    left, right = model(x)
    backward((left - y).square().mean(), retain_graph=True)
    backward((right + y).abs().mean())

def two_forwards_first(model, backward, x, y):
    first, second = (model(x)[0] - y).square().mean(), (model(x)[1] + y).abs().mean()
    backward(first)
    backward(second)

def round_the_wrapper(model, backward, x, y):
    backward(getattr(model, "module", model).loss(x, y))

WAYS = {way.__name__: way for way in (one_after_the_other, two_forwards_first, round_the_wrapper)}
"""


@pytest.mark.parametrize("ranks", [2, 4])
def test_gradients_equal_one_processs_in_and_out_of_windows(run_ranks, ranks: int) -> None:
    script = """
said = {}
for name, way in WAYS.items():
    for steps in (1, 3):
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=steps)
        world = accelerator.num_processes
        torch.manual_seed(7)
        plain = Net()
        model = Net()
        model.load_state_dict(plain.state_dict())
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        reference = torch.optim.SGD(plain.parameters(), lr=0.1)
        for first in range(0, 24, 4 * steps):
            for micro in range(steps):
                rows = range(first + 4 * micro, first + 4 * micro + 4)
                own = [row for row in rows if row % world == accelerator.process_index]
                with accelerator.accumulate(model):
                    way(model, accelerator.backward, DATA[own], TARGET[own])
                    optimizer.step()
                    optimizer.zero_grad()
                backward = lambda loss, **options: (loss / steps).backward(**options)
                way(plain, backward, DATA[list(rows)], TARGET[list(rows)])
            reference.step()
            reference.zero_grad()
        got = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
        want = torch.cat([p.detach().reshape(-1) for p in plain.parameters()])
        said[f"{name} {steps}"] = float((got - want).abs().max())
say(**said)
"""
    for said in run_ranks(SETUP + script, ranks=ranks).said:
        assert len(said) == 6
        assert max(said.values()) < 1e-12, said


def test_a_second_backward_among_ranks_of_uneven_length_is_refused(run_ranks) -> None:
    script = """
from runtime.errors import UsageError
accelerator = Accelerator(cpu=True)
model = accelerator.prepare(Net())
error = ""
with accelerator.join_uneven_inputs([model]):
    try:
        one_after_the_other(model, accelerator.backward, DATA[:4], TARGET[:4])
    except UsageError as caught:
        error = str(caught)
say(error=error)
"""
    for said in run_ranks(SETUP + script).said:
        assert "a second backward() after one forward, inside join_uneven_inputs" in said["error"]
        assert "add the losses and call backward() once" in said["error"]


def test_a_prepared_model_is_copied_and_pickled_as_before(run_ranks) -> None:
    script = """
import copy, io
accelerator = Accelerator(cpu=True)
model = accelerator.prepare(Net())
one_after_the_other(model, accelerator.backward, DATA[:4], TARGET[:4])
twin = copy.deepcopy(model)
file = io.BytesIO()
torch.save(accelerator.unwrap_model(model), file)
say(equal=all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters())))
"""
    assert [said["equal"] for said in run_ranks(SETUP + script).said] == [True, True]
