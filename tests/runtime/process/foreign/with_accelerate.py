"""Accelerate: prepare, accumulate, gather_for_metrics."""

import sys

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
set_seed(0)
data = TensorDataset(torch.randn(32, 4, generator=torch.Generator().manual_seed(1)))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=4, shuffle=True))
place = f"rank {accelerator.process_index} of {accelerator.num_processes} {accelerator.distributed_type.value}"
for (x,) in loader:
    with accelerator.accumulate(model):
        loss = model(x).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    sys.stdout.write(f"{place} {loss.item():.6f}\n")
seen = accelerator.gather_for_metrics(torch.tensor([accelerator.process_index])).tolist()
sys.stdout.write(f"{place} {seen} {sys.argv[1:]}\n")
accelerator.end_training()
