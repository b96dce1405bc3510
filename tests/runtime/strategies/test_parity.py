"""One script, one seed, one set of data: every strategy ends with the same losses."""

import pytest

pytestmark = pytest.mark.multiprocess

TRAINING = """
from runtime import FullyShardedDataParallelPlugin
from torch.nn import functional

class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(13, 16)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.last = nn.Linear(16, 13)
    def forward(self, x):
        x = self.words(x)
        for layer in self.layers:
            x = layer(x)
        return self.last(x)

losses = {}
for strategy in STRATEGIES:
    for kind, rate in (("SGD", 0.1), ("AdamW", 0.003)):
        set_seed(42)
        plugin = FullyShardedDataParallelPlugin(
            sharding_strategy="FULL_SHARD", auto_wrap_policy="TRANSFORMER_AUTO_WRAP", cpu_offload=False
        )
        accelerator = Accelerator(
            cpu=True,
            split_batches=True,
            gradient_accumulation_steps=2,
            fsdp_plugin=plugin if strategy == "fsdp2" else None,
            deepspeed_plugin={"zero_stage": int(strategy[-1])} if strategy.startswith("zero") else None,
        )
        model = Reader()
        optimizer = getattr(torch.optim, kind)(model.parameters(), lr=rate)
        text = torch.randint(0, 13, (44, 7))
        model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(text, batch_size=4, shuffle=True))
        seen = []
        while len(seen) < 40:
            for batch in loader:
                with accelerator.accumulate(model):
                    logits = model(batch[:, :-1])
                    loss = functional.cross_entropy(logits.reshape(-1, 13), batch[:, 1:].reshape(-1))
                    accelerator.backward(loss)
                    accelerator.clip_grad_norm_(model.parameters(), 0.5)
                    optimizer.step()
                    optimizer.zero_grad()
                seen.append(float(accelerator.gather(loss).mean()))
        losses[f"{strategy} {kind}"] = seen
say(**losses)
"""


def test_same_seed_same_losses_under_every_strategy(run_ranks) -> None:
    """float32, no dropout, 24 steps with accumulation, clipping and short last windows."""
    one = run_ranks("STRATEGIES = ['single', 'fsdp2', 'zero2']\n" + TRAINING, ranks=1).said[0]
    spread = ("ddp", "fsdp2", "zero1", "zero2", "zero3")
    two = run_ranks(f"STRATEGIES = {list(spread)}\n" + TRAINING).said
    for kind, tolerance in (("SGD", 1e-5), ("AdamW", 1e-4)):
        expected = one[f"single {kind}"]
        assert len(expected) >= 40
        assert expected[-1] < expected[0]
        alike = [(one, "fsdp2"), (one, "zero2"), *((rank, strategy) for rank in two for strategy in spread)]
        for said, strategy in alike:
            assert said[f"{strategy} {kind}"] == pytest.approx(expected, rel=tolerance), strategy
