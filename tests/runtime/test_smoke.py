"""The smoke run inside a worker: what it records, and that it ends the loaders."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from runtime.accelerator import Accelerator
from runtime.layout import RunLayout
from runtime.records import read_events, read_metrics

pytestmark = pytest.mark.usefixtures("fresh_process")


def _data(count: int) -> TensorDataset:
    features = torch.linspace(-1, 1, count).unsqueeze(1)
    return TensorDataset(features, 3 * features)


def test_a_smoke_run_shows_its_evidence_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("FORERUN_SMOKE_STEPS", "3")
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    train, test = DataLoader(_data(64), batch_size=2), DataLoader(_data(64), batch_size=1)
    model, optimizer, train, test = accelerator.prepare(model, optimizer, train, test)
    seen, evaluated, losses = [], [], []
    for _epoch in range(3):
        count = 0
        for x, y in train:
            count += 1
            with accelerator.accumulate(model):
                optimizer.zero_grad()
                loss = (model(x) - y).square().mean()
                accelerator.backward(loss)
                losses.append(loss.item())
                optimizer.step()
        seen.append(count)
        evaluated.append(sum(1 for _ in test))
    assert seen == [6, 0, 0]
    assert evaluated == [6, 6, 6]

    layout = RunLayout(tmp_path)
    events = {event.event: event.details for event in read_events(layout.events)}
    assert events["run_started"]["world_size"] == 1
    assert events["run_started"]["strategy"] == "single"
    assert (
        events["batch_arithmetic"] | {"per_device": 2, "data_parallel": 1, "accumulation": 2, "effective": 4}
        == (events["batch_arithmetic"])
    )
    assert events["checkpoint_saved"]["size_bytes"] > 0
    assert events["checkpoint_loaded"] == {"path": str(tmp_path / "checkpoints" / "smoke"), "equal": True}
    assert events["smoke_steps_done"] == {"steps": 3}
    recorded = [(r.step, r.name, r.value) for _, r in read_metrics(layout.metrics(0))]
    expected = [(step, "backward_loss", (losses[2 * step - 2] + losses[2 * step - 1]) / 2) for step in (1, 2, 3)]
    assert [entry[:2] for entry in recorded] == [entry[:2] for entry in expected]
    assert [entry[2] for entry in recorded] == pytest.approx([entry[2] for entry in expected])


def test_a_loop_that_never_ends_by_itself_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("FORERUN_SMOKE_STEPS", "1")
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, train = accelerator.prepare(model, optimizer, DataLoader(_data(8), batch_size=2))
    steps = []

    def loop() -> None:
        while len(steps) < 100:
            for x, y in train:
                steps.append(len(x))
                optimizer.zero_grad()
                accelerator.backward((model(x) - y).square().mean())
                optimizer.step()

    with pytest.raises(SystemExit) as stopped:
        loop()
    assert stopped.value.code == 0
    assert steps == [2]


def test_log_records_numbers_and_refuses_what_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_RUN_DIR", str(tmp_path))
    accelerator = Accelerator(cpu=True)
    accelerator.log({"loss": torch.tensor(float("nan")), "rate": 0.5}, step=7)
    with pytest.raises(Exception, match="log\\(\\) of note='fine'"):
        accelerator.log({"note": "fine"})
    records = [record for _, record in read_metrics(RunLayout(tmp_path).metrics(0))]
    assert [(r.name, r.step) for r in records] == [("loss", 7), ("rate", 7)]
    assert records[0].value != records[0].value


@pytest.mark.multiprocess
def test_two_ranks_save_and_load_together(tmp_path: Path, run_ranks) -> None:
    script = """
    set_seed(1)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = nn.Sequential(nn.Linear(1, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters())
    loader = DataLoader(torch.linspace(-1, 1, 64).unsqueeze(1), batch_size=2, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    batches = 0
    for epoch in range(3):
        for x in loader:
            batches += 1
            with accelerator.accumulate(model):
                optimizer.zero_grad()
                accelerator.backward((model(x) - x).square().mean())
                optimizer.step()
    say(batches=batches)
    """
    ended = run_ranks(script, environment={"FORERUN_RUN_DIR": str(tmp_path), "FORERUN_SMOKE_STEPS": "4"})
    assert [said["batches"] for said in ended.said] == [8, 8]
    layout = RunLayout(tmp_path)
    events = {event.event: event.details for event in read_events(layout.events)}
    assert events["checkpoint_loaded"]["equal"] is True
    assert events["batch_arithmetic"]["effective"] == 8
    assert events["run_started"]["strategy"] == "ddp"
    for rank in (0, 1):
        steps = [record.step for _, record in read_metrics(layout.metrics(rank)) if record.name == "backward_loss"]
        assert steps == [1, 2, 3, 4]
    assert (layout.checkpoints / "smoke" / "own.rank1.manifest.json").is_file()
