"""transformers: the Trainer."""

import sys

import torch
from transformers import Trainer, TrainingArguments


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x, labels=None):
        return {"loss": (self.layer(x).squeeze(-1) - labels).square().mean()}


torch.set_num_threads(1)
generator = torch.Generator().manual_seed(1)
data = [{"x": torch.randn(4, generator=generator), "labels": torch.tensor(1.0)} for _ in range(32)]
arguments = TrainingArguments(
    output_dir="out",
    use_cpu=True,
    max_steps=3,
    per_device_train_batch_size=4,
    save_strategy="no",
    report_to=[],
    logging_steps=1,
    seed=0,
    disable_tqdm=True,
    log_level="error",
)
torch.manual_seed(0)
trainer = Trainer(model=Net(), args=arguments, train_dataset=data)
trainer.train()
losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
sys.stdout.write(f"rank {arguments.process_index} of {arguments.world_size} {losses} {sys.argv[1:]}\n")
