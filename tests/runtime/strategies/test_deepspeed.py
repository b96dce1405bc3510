"""DeepSpeed against one process: the accumulation window, norms, clipping and several models, stage by stage."""

import pytest

pytestmark = pytest.mark.multiprocess

WINDOWS = """
from runtime.errors import ForerunError
set_seed(11)
DATA = torch.randn(56, 3)
TARGET = DATA.sum(1, keepdim=True)
STAGES = {
    "0": dict(zero_stage=0),
    "1": dict(zero_stage=1),
    "2": dict(zero_stage=2),
    "3": dict(zero_stage=3),
    "2 offload": dict(zero_stage=2, offload_optimizer=True),
    "3 offload": dict(zero_stage=3, offload_optimizer="cpu", offload_param="cpu"),
    "3 sharded": dict(hf_ds_config={"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}}),
}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.unused, self.last = nn.Linear(3, 5), nn.Linear(2, 2), nn.Linear(5, 1)
    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))

def build():
    set_seed(5)
    return Net()

def whole(model):
    state = accelerator.get_state_dict(model)
    return torch.cat([state[name].reshape(-1) for name in sorted(state)]) if state else None

def plain(model):
    state = model.state_dict()
    return torch.cat([state[name].reshape(-1) for name in sorted(state)])

def distance(model, reference):
    mine = whole(model)
    return 0.0 if mine is None else float((mine - plain(reference)).abs().max())

def mean_loss(model, rows):
    return (model(DATA[rows]) - TARGET[rows]).square().mean()
"""


def test_a_window_is_the_runtimes_under_every_stage(run_ranks) -> None:
    script = (
        WINDOWS
        + """
world, results = 2, {}
for name, settings in STAGES.items():
    for order in ("first", "last"):
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3, deepspeed_plugin=settings)
        reference, model = build(), build()
        expected = torch.optim.SGD(reference.parameters(), lr=0.05)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))
        samples = list(zip(DATA, TARGET))[: 7 * 2 * world]  # of seven batches, the last window has one
        model, optimizer, loader, scheduler = accelerator.prepare(
            model, optimizer, DataLoader(samples, batch_size=2), scheduler
        )
        norms, window, when, rates = [], [], [], []
        for step, (x, y) in enumerate(loader):
            with accelerator.accumulate(model):
                if order == "first":
                    optimizer.zero_grad()
                if step != 4:  # a batch without a backward
                    accelerator.backward((model(x) - y).square().mean())
                    window.append(slice(step * 2 * world, (step + 1) * 2 * world))
                with torch.no_grad():
                    model(DATA[:1])  # an evaluation inside the window leaves it alone
                when.append(accelerator.sync_gradients)
                norm = accelerator.clip_grad_norm_(model.parameters(), 0.3)
                if accelerator.sync_gradients:
                    for group in expected.param_groups:
                        group["lr"] = 0.05 / (1 + len(rates))
                    expected.zero_grad()
                    (sum(mean_loss(reference, rows) for rows in window) / len(window)).backward()
                    true_norm = nn.utils.clip_grad_norm_(reference.parameters(), 0.3)
                    norms.append(abs(float(norm) / float(true_norm) - 1))
                    expected.step()
                    rates.append(scheduler.get_last_lr()[0])
                    window = []
                optimizer.step()
                scheduler.step()
                if order == "last":
                    optimizer.zero_grad()
        results[f"{name} {order}"] = dict(norm=max(norms), off=distance(model, reference), when=when, rates=rates)
say(**results)
"""
    )
    said = run_ranks(script).said
    assert len(said[0]) == 14
    for rank in said:
        for name, result in rank.items():
            assert result["norm"] < 1e-5, name
            assert result["off"] < 1e-6, name
            assert result["when"] == [False, False, True, False, False, True, True], name
            assert result["rates"] == pytest.approx([0.05, 0.025, 0.05 / 3]), name


def test_tokens_skips_discards_and_infinite_gradients(run_ranks) -> None:
    script = (
        WINDOWS
        + """
results = {}
for name in ("1", "2", "3 sharded", "2 offload"):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, deepspeed_plugin=STAGES[name])
    rank = accelerator.process_index
    reference, model = build(), build()
    expected = torch.optim.AdamW(reference.parameters(), lr=0.01, weight_decay=0.0)
    model, optimizer = accelerator.prepare(
        model, torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0)
    )

    # Token-weighted: ranks and micro-batches with different numbers of items.
    counts = [[1, 4], [3, 2]]  # micro-batch, rank
    starts = [[0, 1], [5, 8]]
    rows = [slice(starts[m][r], starts[m][r] + counts[m][r]) for m in range(2) for r in range(2)]
    for micro in range(2):
        own = slice(starts[micro][rank], starts[micro][rank] + counts[micro][rank])
        with accelerator.accumulate(model):
            loss = (model(DATA[own]) - TARGET[own]).square().sum()
            accelerator.backward(loss, num_items=counts[micro][rank])
            optimizer.step()
            optimizer.zero_grad()
    (sum((reference(DATA[r]) - TARGET[r]).square().sum() for r in rows) / 10).backward()
    expected.step()
    expected.zero_grad()
    tokens = distance(model, reference)

    # What is discarded leaves no trace.
    with accelerator.accumulate(model):
        accelerator.backward(mean_loss(model, slice(0, 4)) * 100)
        optimizer.zero_grad(discard=True)
    with accelerator.accumulate(model):
        optimizer.zero_grad(discard=True)
    accelerator._prepared.windows.reset()
    before = distance(model, reference)

    # no_sync, then two forwards before one backward, outside accumulate(): the means are halved.
    own = slice(rank * 4, rank * 4 + 4)
    with accelerator.no_sync(model):
        accelerator.backward(mean_loss(model, own))
    accelerator.backward(mean_loss(model, own) + mean_loss(model, slice(8, 12)))
    optimizer.step()
    optimizer.zero_grad()
    ((2 * mean_loss(reference, slice(0, 8)) + mean_loss(reference, slice(8, 12))) / 2).backward()
    expected.step()
    expected.zero_grad()
    twice = distance(model, reference)

    # A gradient that is not finite changes nothing, and is said.
    accelerator.backward(mean_loss(model, own) * (float("inf") if rank else 1.0))
    norm = float(accelerator.clip_grad_norm_(model.parameters(), 1.0))
    optimizer.step()
    skipped = accelerator.optimizer_step_was_skipped
    optimizer.zero_grad()
    after = distance(model, reference)
    accelerator.backward(mean_loss(model, own) * 2)
    optimizer.step()
    mean_loss(reference, slice(0, 8)).backward()
    expected.step()
    results[name] = dict(
        tokens=tokens, before=before, twice=twice, skipped=skipped, after=after, last=distance(model, reference),
        again=accelerator.optimizer_step_was_skipped, norm=norm,
    )
say(**results)
"""
    )
    for rank in run_ranks(script).said:
        for name, result in rank.items():
            assert result["norm"] == float("inf"), name
            assert (result["skipped"], result["again"]) == (True, False), name
            for what in ("tokens", "before", "twice", "after", "last"):
                assert result[what] < 1e-6, (name, what)


def test_several_models_have_an_engine_each_and_bf16_trains(run_ranks) -> None:
    script = (
        WINDOWS
        + """
from runtime import DeepSpeedPlugin
results = {}
plugins = {"a": DeepSpeedPlugin(zero_stage=2), "b": DeepSpeedPlugin(zero_stage=3)}
accelerator = Accelerator(cpu=True, deepspeed_plugin=plugins)
set_seed(2)
parts = [nn.Linear(3, 3) for _ in range(4)]
generator, critic, plain_generator, plain_critic = parts
plain_generator.load_state_dict(generator.state_dict())
plain_critic.load_state_dict(critic.state_dict())
optimizers = [torch.optim.SGD(part.parameters(), lr=lr) for part, lr in zip(parts, (0.1, 0.2, 0.1, 0.2))]
schedulers = [torch.optim.lr_scheduler.ExponentialLR(one, 0.5) for one in optimizers]
generator, step_g, schedule_g = accelerator.prepare(generator, optimizers[0], schedulers[0])
accelerator.select_deepspeed_plugin("b")
critic, step_c, schedule_c = accelerator.prepare(critic, optimizers[1], schedulers[1])
stages = [one.zero_optimization_stage() for one in (generator, critic)]
own = slice(accelerator.process_index * 4, accelerator.process_index * 4 + 4)
for _ in range(3):
    x = DATA[own]
    accelerator.backward((critic(generator(x).detach()) - critic(x)).square().mean())
    accelerator.clip_grad_norm_(critic.parameters(), 0.5)
    step_c.step(); schedule_c.step(); step_c.zero_grad()
    accelerator.backward(critic(generator(x)).square().mean())
    step_g.step(); schedule_g.step(); step_g.zero_grad()
    step_c.zero_grad(discard=True)
    x = DATA[:8]
    (plain_critic(plain_generator(x).detach()) - plain_critic(x)).square().mean().backward()
    nn.utils.clip_grad_norm_(plain_critic.parameters(), 0.5)
    optimizers[3].step(); schedulers[3].step(); optimizers[3].zero_grad()
    plain_critic(plain_generator(x)).square().mean().backward()
    optimizers[2].step(); schedulers[2].step(); optimizers[2].zero_grad(); optimizers[3].zero_grad()
off = [distance(generator, plain_generator), distance(critic, plain_critic)]
rates = [schedule_g.get_last_lr()[0], schedule_c.get_last_lr()[0]]
inner = type(accelerator.unwrap_model(critic)).__name__

half = {}
for name in ("0", "1", "2", "3"):
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", deepspeed_plugin=STAGES[name])
    model = build()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.02))
    losses = []
    for _ in range(12):
        loss = mean_loss(model, own)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    state = accelerator.get_state_dict(model)
    half[name] = dict(
        fell=losses[-1] < losses[0], out=str(model(DATA[:1]).dtype), inside=str(next(model.parameters()).dtype),
        saved=sorted({str(value.dtype) for value in state.values()}),
    )
say(off=off, rates=rates, stages=stages, inner=inner, half=half)
"""
    )
    said = run_ranks(script).said
    assert max(said[0]["off"]) < 1e-6
    assert said[0]["stages"] == [2, 3]
    assert said[0]["inner"] == "Linear"
    assert said[0]["rates"] == pytest.approx([0.1 / 8, 0.2 / 8])
    for name, result in said[0]["half"].items():
        assert result["fell"], name
        assert result["out"] == "torch.float32", name
        assert result["inside"] == ("torch.float32" if name == "0" else "torch.bfloat16"), name
        assert result["saved"] == ["torch.float32"], name
