"""Plain torch: a process group, DistributedDataParallel, and what the script sees of itself."""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(10 * step + rank))
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    sys.stdout.write(f"rank {rank} of {dist.get_world_size()} step {step} {loss.item():.6f}\n")
sys.stdout.write(f"rank {rank} {sys.argv} {__name__} {__file__} {__package__} {__spec__} {sys.path[0]} {os.getcwd()}\n")
sys.stdout.write(f"rank {rank} {sorted(name for name in os.environ if name.isupper())}\n")
sys.stderr.write(f"rank {rank} on stderr\n")
dist.barrier()
dist.destroy_process_group()
