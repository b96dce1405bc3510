"""A training that is killed and resumed equals the one that was not: ids, and losses bit for bit."""

from typing import Any

import pytest

pytestmark = pytest.mark.multiprocess

TRAINING = """
import os, random, signal
import numpy as np
from torch.utils.data import Dataset, get_worker_info

COUNT, SIZE, EPOCHS, WINDOW = 29, 2, 3, 3

def noise():
    return random.random() + np.random.rand() + torch.rand(()).item()

class Items(Dataset):
    def __len__(self):
        return COUNT
    def __getitem__(self, index):
        return index, noise()

class Stream(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        order = list(range(first, COUNT, step))
        random.shuffle(order)
        return ((index, noise()) for index in order)

class Training:
    def __init__(self, kind, workers, by_hand=False, accumulation=WINDOW, zero_first=False):
        torch.manual_seed(3)
        config = DataLoaderConfiguration(use_stateful_dataloader=not by_hand)
        self.accelerator = Accelerator(cpu=True, dataloader_config=config, gradient_accumulation_steps=accumulation)
        rank = self.accelerator.process_index
        model = nn.Sequential(nn.Linear(2, 6), nn.Dropout(0.3), nn.Tanh(), nn.Linear(6, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.95**step)
        options = {"multiprocessing_context": "fork"} if workers else {}
        data = DataLoader(Items(), batch_size=SIZE, shuffle=True, num_workers=workers, **options) if kind == "map" \\
            else DataLoader(Stream(), batch_size=SIZE, num_workers=workers, **options)
        self.model, self.optimizer, self.loader, self.scheduler = self.accelerator.prepare(
            model, optimizer, data, scheduler)
        for seed in (random.seed, np.random.seed, torch.manual_seed):
            seed(50 + rank)
        self.by_hand, self.zero_first = by_hand, zero_first

    def run(self, start=(0, 0), save_at=None, end=EPOCHS):
        rows = []
        for epoch in range(start[0], end):
            self.loader.set_epoch(epoch)
            skipped = start[1] if epoch == start[0] else 0
            passes = self.accelerator.skip_first_batches(self.loader, skipped) if self.by_hand else self.loader
            number = skipped
            for ids, noises in passes:
                number += 1
                x = torch.stack([ids / COUNT, noises], 1).float()
                with self.accelerator.accumulate(self.model):
                    if self.zero_first:
                        self.optimizer.zero_grad()
                    loss = (self.model(x) - x.sum(1, keepdim=True) - random.random()).square().mean()
                    self.accelerator.backward(loss)
                    self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
                    self.optimizer.step()
                    self.scheduler.step()
                    if not self.zero_first:
                        self.optimizer.zero_grad()
                rows.append([epoch, ids.tolist(), loss.item().hex()])
                if save_at is not None and (epoch, number) in save_at:
                    self.accelerator.save_state(save_at[epoch, number])
            if save_at is not None and (epoch, "end") in save_at:
                self.accelerator.save_state(save_at[epoch, "end"])
        return rows

POINTS = [(0, 1), (0, 3), (1, 2), (0, 5), (1, 4), (2, 1), (2, 6), (1, "end")]
CASES = [(kind, workers) for kind in ("map", "stream") for workers in (0, 2)]

def place(kind, workers, point):
    return HERE / f"{kind}-{workers}-{point[0]}-{point[1]}"

def points(kind, workers):
    return POINTS[2:6:3] if workers else POINTS if kind == "map" else POINTS[::2]

def resumed(kind, workers, point, end=EPOCHS, **options):
    training = Training(kind, workers, **options)
    training.accelerator.load_state(place(kind, workers, point))
    start = (point[0] + 1, 0) if point[1] == "end" else point
    return training.run(start, end=end)
"""

UNTIL_THE_KILL = (
    TRAINING
    + """
whole = {}
for kind, workers in CASES:
    accelerator = (training := Training(kind, workers)).accelerator
    whole[f"{kind} {workers}"] = training.run(save_at={p: place(kind, workers, p) for p in points(kind, workers)})
    again = Training(kind, workers).run(end=2)
    assert again == [row for row in whole[f"{kind} {workers}"] if row[0] < 2], "saving disturbs"
say(**whole)
accelerator.wait_for_everyone()
os.kill(os.getpid(), signal.SIGKILL)
"""
)

AFTER_IT = (
    TRAINING
    + """
rest = {}
for kind, workers in CASES:
    for point in points(kind, workers):
        for by_hand in ([False, True] if workers == 0 and point[1] != "end" else [False]):
            rows = resumed(kind, workers, point, by_hand=by_hand)
            rest[f"{kind} {workers} {point[0]} {point[1]} {by_hand}"] = rows
accelerator = Accelerator(cpu=True)
say(**rest)
"""
)


ELSEWHERE = (
    TRAINING
    + """
rest = {}
for kind, workers in CASES:
    for point in points(kind, workers)[:4]:
        rest[f"{kind} {workers} {point[0]} {point[1]}"] = resumed(kind, workers, point, end=point[0] + 1)
again = resumed(kind, workers, point, end=point[0] + 1)
assert again == rest[f"{kind} {workers} {point[0]} {point[1]}"], "not deterministic"
accelerator = Accelerator(cpu=True)
say(**rest)
"""
)

Said = list[dict[str, Any]]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_killed_training_goes_on_as_if_it_had_not_been_killed(run_ranks: Any, ranks: int) -> None:
    killed = run_ranks(UNTIL_THE_KILL, ranks=ranks, ok=False)
    assert killed.returncode != 0
    assert len(killed.said) == ranks, killed.output
    for name, rows in killed.said[0].items():
        orders = [[ids for epoch, ids, _ in rows if epoch == wanted] for wanted in range(3)]
        assert orders[0] != orders[1] != orders[2], name
    _ids_and_losses_are_equal(killed.said, run_ranks(AFTER_IT, ranks=ranks).said)
    if ranks == 2:
        for others in (1, 3):
            _the_epochs_rest_comes_exactly_once(killed.said, run_ranks(ELSEWHERE, ranks=others).said)


def _ids_and_losses_are_equal(killed: Said, after: Said) -> None:
    assert len(after[0]) == (8 + 7) + (4 + 4) + 2 + 2
    for whole, rests in zip(killed, after, strict=True):
        for name, rest in rests.items():
            kind, workers, epoch, number, _ = name.split()
            rows = whole[f"{kind} {workers}"]
            before = [row for row in rows if row[0] < int(epoch) + (number == "end")]
            taken = len(before) + (0 if number == "end" else int(number))
            assert rest == rows[taken:], name


def _the_epochs_rest_comes_exactly_once(killed: Said, elsewhere: Said) -> None:
    assert len(elsewhere[0]) == 4 + 4 + 2 + 2
    for name in elsewhere[0]:
        kind, workers, epoch, number = name.split()
        seen = [ids for rank in elsewhere for row in rank[name] for ids in row[1]]
        for rank in killed:
            rows = [row for row in rank[f"{kind} {workers}"] if row[0] == int(epoch)]
            seen += [ids for row in rows[: int(number)] for ids in row[1]]
        assert set(seen) == set(range(29)), name
        # Evening out a last round repeats samples, which no metric counts: once for each process that reads.
        assert len(seen) - 29 <= max(1, int(workers)) * 2 * len(elsewhere), name
