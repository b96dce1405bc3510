"""Predict the progression of diabetes with a small network: plain PyTorch that knows nothing of forerun.

It prints what transformers' Trainer prints and writes checkpoint-N directories with a trainer_state.json, as most
training scripts of the field do. Under torchrun it trains on several processes.

    torchrun --nproc-per-node 2 train.py --train train.csv --validation validation.csv --holdout holdout.csv
"""

import argparse
import csv
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

FEATURES = ["age", "sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6"]


def main() -> None:
    options = parse_options()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world_size > 1:
        dist.init_process_group("gloo")

    features, targets = read_columns(options.train, [*FEATURES, "label"]).split([len(FEATURES), 1], dim=1)
    scale = Scale(features, targets)
    train = TensorDataset(scale.features(features), scale.targets(targets))
    sampler = DistributedSampler(train, world_size, rank, seed=options.seed)
    loader = DataLoader(train, batch_size=options.batch_size, sampler=sampler)
    model = nn.Sequential(nn.Linear(len(FEATURES), 16), nn.Tanh(), nn.Linear(16, 1))
    trained: nn.Module = DistributedDataParallel(model) if world_size > 1 else model
    optimizer = torch.optim.AdamW(trained.parameters(), lr=options.lr, weight_decay=0.1)

    total = options.max_steps if options.max_steps > 0 else options.epochs * len(loader)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=total)
    history: list[dict[str, float]] = []
    step, window = 0, []
    while step < total:
        sampler.set_epoch(step // len(loader))
        for inputs, wanted in loader:
            loss = nn.functional.mse_loss(trained(inputs), wanted)
            loss.backward()
            grad_norm = nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            step += 1
            window.append(mean_over_processes(loss.detach()))
            if step % options.logging_steps == 0:
                entry = {
                    "loss": round(sum(window) / len(window), 4),
                    "grad_norm": round(grad_norm.item(), 4),
                    "learning_rate": scheduler.get_last_lr()[0],
                    "epoch": round(step / len(loader), 2),
                }
                window = []
                log(history, entry, step=step, rank=rank)
            if step == total:
                break

    evaluation = validate(trained, scale, options.validation)
    log(history, {"eval_loss": round(evaluation, 4), "epoch": round(step / len(loader), 2)}, step=step, rank=rank)
    if rank == 0:
        directory = options.output_dir / f"checkpoint-{step}"
        save_checkpoint(directory, model, optimizer, history=history, step=step, total=total)
        write_predictions(options.output_dir / "predictions.csv", model, scale, options.holdout)
    if world_size > 1:
        dist.barrier()
        dist.destroy_process_group()


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, required=True, help="CSV with id, ten measurements, label")
    parser.add_argument("--validation", type=Path, required=True)
    parser.add_argument("--holdout", type=Path, required=True, help="the same; its labels are not read here")
    parser.add_argument("--output_dir", type=Path, default=Path("output"))
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch_size", type=int, default=16, help="patients per process and step")
    parser.add_argument("--lr", type=float, default=0.005)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max_steps", type=int, default=-1, help="overrides --epochs")
    parser.add_argument("--logging_steps", type=int, default=10)
    return parser.parse_args()


class Scale:
    """Zero mean and unit deviation, measured on the training rows alone."""

    def __init__(self, features: torch.Tensor, targets: torch.Tensor) -> None:
        self.feature_mean, self.feature_deviation = features.mean(dim=0), features.std(dim=0)
        self.target_mean, self.target_deviation = targets.mean(dim=0), targets.std(dim=0)

    def features(self, values: torch.Tensor) -> torch.Tensor:
        return (values - self.feature_mean) / self.feature_deviation

    def targets(self, values: torch.Tensor) -> torch.Tensor:
        return (values - self.target_mean) / self.target_deviation

    def predictions(self, outputs: torch.Tensor) -> torch.Tensor:
        return outputs * self.target_deviation + self.target_mean


def read_columns(path: Path, names: list[str]) -> torch.Tensor:
    with path.open(newline="") as handle:
        return torch.tensor([[float(row[name]) for name in names] for row in csv.DictReader(handle)])


def log(history: list[dict[str, float]], entry: dict[str, float], *, step: int, rank: int) -> None:
    if rank == 0:
        print(entry, flush=True)
    history.append(entry | {"step": step})


def mean_over_processes(loss: torch.Tensor) -> float:
    if dist.is_initialized():
        dist.all_reduce(loss)
        loss /= dist.get_world_size()
    return loss.item()


@torch.no_grad()
def validate(model: nn.Module, scale: Scale, path: Path) -> float:
    features, targets = read_columns(path, [*FEATURES, "label"]).split([len(FEATURES), 1], dim=1)
    return nn.functional.mse_loss(model(scale.features(features)), scale.targets(targets)).item()


def save_checkpoint(
    directory: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    history: list[dict[str, float]],
    step: int,
    total: int,
) -> None:
    directory.mkdir(parents=True)
    torch.save(model.state_dict(), directory / "pytorch_model.bin")
    torch.save(optimizer.state_dict(), directory / "optimizer.pt")
    state = {"epoch": history[-1]["epoch"], "global_step": step, "max_steps": total, "log_history": history}
    (directory / "trainer_state.json").write_text(json.dumps(state, indent=2) + "\n")


@torch.no_grad()
def write_predictions(path: Path, model: nn.Module, scale: Scale, holdout: Path) -> None:
    rows = read_columns(holdout, ["id", *FEATURES])
    predicted = scale.predictions(model(scale.features(rows[:, 1:]))).flatten()
    with path.open("w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(["id", "prediction"])
        writer.writerows(
            [int(row_id), round(value, 3)] for row_id, value in zip(rows[:, 0], predicted.tolist(), strict=True)
        )


if __name__ == "__main__":
    main()
