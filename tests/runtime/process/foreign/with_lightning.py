"""Lightning: its own environment detection has to find torchrun's variables."""

import logging
import sys
import warnings

warnings.filterwarnings("ignore")

import lightning  # noqa: E402  # after the filter
import torch  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        loss = self.layer(batch[0]).square().mean()
        sys.stdout.write(f"rank {self.global_rank} of {self.trainer.world_size} step {index} {loss.item():.6f}\n")
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


torch.set_num_threads(1)
lightning.seed_everything(0, verbose=False)
data = TensorDataset(torch.randn(32, 4, generator=torch.Generator().manual_seed(1)))
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    max_epochs=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Net(), DataLoader(data, batch_size=4))
sys.stdout.write(f"rank {trainer.global_rank} {sys.argv[1:]}\n")
