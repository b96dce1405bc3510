"""Real folders of Accelerate and DeepSpeed, made once by small jobs of the installed libraries."""

import importlib.util
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from tests.fakes.rank_server import RankServer

_NET = Path(__file__).with_name("net.py.txt")
STEPS = 3

_ACCELERATE = """
import sys, warnings
warnings.simplefilter("ignore")
from pathlib import Path
import torch
from accelerate import Accelerator
from accelerate.utils import FullyShardedDataParallelPlugin, set_seed
from accelerate.utils.fsdp_utils import save_fsdp_model, save_fsdp_optimizer
from torch.distributed.fsdp import fully_shard
from net import build, loss_of, optimizer_of
torch.set_num_threads(1)
HERE = Path(sys.argv[1])

class Counter:
    n = 7
    def state_dict(self):
        return {"n": self.n}

accelerator = Accelerator(cpu=True)
net, optimizer, scheduler = build()
ddp, prepared, schedule = accelerator.prepare(net, optimizer, scheduler)
counter = Counter()
counter.load_state_dict = lambda state: None
accelerator.register_for_checkpointing(counter)
set_seed(5, device_specific=True)
for step in range(3):
    accelerator.backward(loss_of(ddp, step))
    prepared.step()
    schedule.step()
    prepared.zero_grad()
accelerator.save_state(str(HERE / "ddp"))
accelerator.save_state(str(HERE / "bin"), safe_serialization=False)
(HERE / f"drawn{accelerator.process_index}").write_text(repr(float(torch.rand(()))))

for name in ("SHARDED_STATE_DICT", "FULL_STATE_DICT"):
    net, _, _ = build()
    fully_shard(net)
    optimizer = optimizer_of(net)
    for step in range(3):
        loss_of(net, step).backward()
        optimizer.step()
        optimizer.zero_grad()
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type=name)
    out = HERE / name.split("_")[0].lower()
    save_fsdp_model(plugin, accelerator, net, str(out), 0)
    save_fsdp_optimizer(plugin, accelerator, optimizer, net, str(out), 0)
accelerator.end_training()
"""

_DEEPSPEED = """
import sys
from pathlib import Path
import warnings
warnings.simplefilter("ignore")
import torch
import deepspeed
import deepspeed.ops
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled, and serves inference alone
from net import build, loss_of
torch.set_num_threads(1)
HERE = Path(sys.argv[1])
deepspeed.init_distributed("gloo")
for stage in (0, 1, 2, 3):
    net, optimizer, scheduler = build(torch.bfloat16 if stage else torch.float32)
    config = {
        "train_micro_batch_size_per_gpu": 6,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,
        "zero_force_ds_cpu_optimizer": False,
    }
    engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, lr_scheduler=scheduler, config=config)
    for step in range(3):
        engine.backward(loss_of(engine, step))
        engine.step()
    engine.save_checkpoint(str(HERE / f"stage{stage}"))
if torch.distributed.get_rank() == 0:
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint as consolidate
    for stage in (1, 2, 3):
        torch.save(consolidate(str(HERE / f"stage{stage}")), HERE / f"stage{stage}.pt")
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""


def _job(server: RankServer, directory: Path, script: str, *, ranks: int) -> Path:
    shutil.copy(_NET, directory / "net.py")
    path = directory / "job.py"
    path.write_text(script)
    output = directory / "output.txt"
    job = server.run(path, str(directory), ranks=ranks, deadline_s=110, environment={}, output=output)
    assert job.returncode == 0, job.output
    return directory


@pytest.fixture(scope="session")
def accelerate_folders(rank_server: RankServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ddp, bin, sharded and full: what two processes of Accelerate saved after three steps."""
    return _job(rank_server, tmp_path_factory.mktemp("accelerate"), _ACCELERATE, ranks=2)


@pytest.fixture(scope="session")
def deepspeed_folders(rank_server: RankServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """stage0 to stage3 of three processes after three steps; stage1.pt and so on: what DeepSpeed itself makes whole."""
    return _job(rank_server, tmp_path_factory.mktemp("deepspeed"), _DEEPSPEED, ranks=3)


@pytest.fixture(scope="session")
def net() -> Iterator[ModuleType]:
    """The module that the jobs used."""
    loader = SourceFileLoader("foreign_net", str(_NET))
    spec = importlib.util.spec_from_loader("foreign_net", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    yield module
    sys.modules.pop("foreign_net", None)


@pytest.fixture
def trained(net: ModuleType) -> Callable[..., tuple[nn.Module, torch.optim.Optimizer, list[float]]]:
    """The same training by torch alone."""

    def train(steps: int, frozen: torch.dtype = torch.float32) -> tuple[nn.Module, torch.optim.Optimizer, list[float]]:
        model, optimizer, schedule = net.build(frozen)
        losses = []
        for step in range(steps):
            loss = net.loss_of(model, step)
            loss.backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
        return model, optimizer, losses

    return train
