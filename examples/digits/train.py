"""Train a small convolutional network on handwritten digits, on any number of processes, with forerun's runtime.

    forerun launch --num_processes 2 train.py --train train.csv --validation validation.csv --holdout holdout.csv \
        --output out
"""

import argparse
import csv
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from runtime import Accelerator, set_seed

PIXELS = [f"p{i:02d}" for i in range(64)]


def main() -> None:
    options = parse_options()
    torch.set_num_threads(1)  # the processes share the cores; more threads would only contend
    accelerator = Accelerator()
    set_seed(options.seed)

    train = DataLoader(read_labelled(options.train), batch_size=options.batch_size, shuffle=True)
    validation = DataLoader(read_labelled(options.validation), batch_size=256)
    holdout = DataLoader(read_unlabelled(options.holdout), batch_size=256)
    model = small_network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    model, optimizer, train, validation, holdout = accelerator.prepare(model, optimizer, train, validation, holdout)
    accelerator.plan_steps(options.max_steps if options.max_steps > 0 else options.epochs * len(train))

    step = 0
    for epoch in range(options.epochs):
        model.train()
        for images, labels in train:
            loss = nn.functional.cross_entropy(model(images), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            accelerator.log({"loss": accelerator.gather(loss.detach()).mean().item()}, step=step)
            if step == options.max_steps:
                break
        right = accuracy(accelerator, model, validation)
        accelerator.log({"validation_accuracy": right}, step=step)
        accelerator.print(f"epoch {epoch + 1}: validation accuracy {right:.4f}")
        if step == options.max_steps:
            break

    accelerator.save_state(str(options.output / "checkpoints" / "final"))
    ids, digits = predict(accelerator, model, holdout)
    if accelerator.is_main_process:
        write_predictions(options.output / "predictions.csv", ids, digits)
    accelerator.end_training()


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, required=True, help="CSV with id, p00 to p63, label")
    parser.add_argument("--validation", type=Path, required=True, help="the same, for the accuracy after each epoch")
    parser.add_argument("--holdout", type=Path, required=True, help="the same; its labels are not read here")
    parser.add_argument("--output", type=Path, required=True, help="directory for checkpoints and predictions.csv")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch_size", type=int, default=32, help="images per process and step")
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max_steps", type=int, default=-1, help="stop after this many steps; -1: after the epochs")
    return parser.parse_args()


def small_network() -> nn.Module:
    """Two convolutions and a linear layer, about 20,000 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 24, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(24, 48, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.2),
        nn.Flatten(),
        nn.Linear(48 * 4 * 4, 10),
    )


def read_labelled(path: Path) -> TensorDataset:
    rows = read_columns(path, [*PIXELS, "label"])
    return TensorDataset(as_images([row[:-1] for row in rows]), torch.tensor([row[-1] for row in rows]))


def read_unlabelled(path: Path) -> TensorDataset:
    """Images and ids; the label column of the hold-out never enters this program."""
    rows = read_columns(path, ["id", *PIXELS])
    return TensorDataset(as_images([row[1:] for row in rows]), torch.tensor([row[0] for row in rows]))


def read_columns(path: Path, names: list[str]) -> list[list[int]]:
    with path.open(newline="") as handle:
        return [[int(row[name]) for name in names] for row in csv.DictReader(handle)]


def as_images(rows: list[list[int]]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16


@torch.no_grad()
def accuracy(accelerator: Accelerator, model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    hits = []
    for images, labels in loader:
        hits.append(accelerator.gather_for_metrics(model(images).argmax(dim=1) == labels))
    return torch.cat(hits).float().mean().item()


@torch.no_grad()
def predict(accelerator: Accelerator, model: nn.Module, loader: DataLoader) -> tuple[list[int], list[int]]:
    """The digit for every row of `loader`, each row once whatever the number of processes."""
    model.eval()
    ids, digits = [], []
    for images, row_ids in loader:
        some_ids, some_digits = accelerator.gather_for_metrics((row_ids, model(images).argmax(dim=1)))
        ids += some_ids.tolist()
        digits += some_digits.tolist()
    return ids, digits


def write_predictions(path: Path, ids: list[int], digits: list[int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(["id", "prediction"])
        writer.writerows(sorted(zip(ids, digits, strict=True)))


if __name__ == "__main__":
    main()
