"""The throughput meter: what counts as training time, FLOPs counted once, and what is unknown."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from runtime import devices
from runtime.accelerator import Accelerator
from runtime.throughput import ThroughputMeter
from tests.runtime.conftest import RunRanks

CPU = torch.device("cpu")


class Clock:
    """Moves when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def _train(meter: ThroughputMeter, clock: Clock, *, steps: int, seconds: float, tokens: float | None = None) -> None:
    for _ in range(steps):
        with meter.step(samples=8, tokens=tokens):
            clock.now += seconds


def test_pauses_and_the_time_before_training_do_not_count_but_waiting_for_data_does() -> None:
    clock = Clock()
    meter = ThroughputMeter(CPU, count_flops=False, clock=clock)
    assert set(meter.figures().values()) == {None}
    with meter.paused():
        clock.now += 1000
    clock.now += 1000
    _train(meter, clock, steps=1, seconds=1.0)
    clock.now += 1.0  # the loader
    with meter.step(samples=8):
        clock.now += 1.0
    with meter.paused():
        clock.now += 1000
        with meter.paused():
            clock.now += 1000
    _train(meter, clock, steps=1, seconds=1.0)
    clock.now += 1000  # after the last block
    assert meter.trained_s == 4.0
    figures = meter.figures()
    assert figures["samples_per_s"] == 6.0
    assert figures["steps_per_s"] == 0.75
    assert figures["tokens_per_s"] is None
    assert figures["mfu"] is None
    assert meter.known_figures() == {"samples_per_s": 6.0, "steps_per_s": 0.75}


def test_tokens_are_known_if_every_block_says_them() -> None:
    clock = Clock()
    meter = ThroughputMeter(CPU, count_flops=False, clock=clock)
    _train(meter, clock, steps=2, seconds=0.5, tokens=100)
    assert meter.figures()["tokens_per_s"] == 200.0
    _train(meter, clock, steps=1, seconds=0.5)
    assert meter.figures()["tokens_per_s"] is None


def test_after_a_resume_only_this_sessions_work_counts() -> None:
    clock = Clock()
    meter = ThroughputMeter(CPU, count_flops=False, clock=clock)
    step, total = 900, 1000
    assert meter.remaining_s(total - step) is None
    _train(meter, clock, steps=10, seconds=6.0)
    step += 10
    assert meter.figures()["steps_per_s"] == pytest.approx(1 / 6)
    assert meter.remaining_s(total - step) == pytest.approx(540.0)
    with pytest.warns(UserWarning, match="5 steps beyond the total"):
        assert meter.remaining_s(905 - step) == 0.0


def test_flops_are_counted_once_over_forward_and_backward() -> None:
    model = nn.Sequential(nn.Linear(16, 32, bias=False), nn.ReLU(), nn.Linear(32, 4, bias=False))
    clock = Clock()
    meter = ThroughputMeter(CPU, peak_flops_per_device=1e6, clock=clock)
    for _ in range(3):
        with meter.step(samples=8):
            model(torch.ones(8, 16)).sum().backward()
            clock.now += 1.0
    weights = 16 * 32 + 32 * 4
    # forward and the weights' gradients of both layers, the inputs' gradient of the second alone
    assert meter.flops_per_sample == 2 * (2 * weights + 32 * 4)
    assert meter.num_steps == 2, "the counted block is slower, and is left out"
    figures = meter.figures()
    assert figures["samples_per_s"] == 8.0
    assert figures["flops_per_s"] == meter.flops_per_sample * 8.0
    assert figures["mfu"] == meter.flops_per_sample * 8.0 / 1e6


def test_a_model_without_countable_work_leaves_flops_unknown() -> None:
    clock = Clock()
    meter = ThroughputMeter(CPU, peak_flops_per_device=1e6, clock=clock)
    weight = nn.Parameter(torch.ones(4))
    for _ in range(2):
        with meter.step(samples=1):
            (weight * 2).sum().backward()
            clock.now += 1.0
    assert meter.flops_per_sample is None
    assert meter.figures()["mfu"] is None


def test_peaks_are_known_for_known_devices_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    names = iter(["NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "Tesla T4", "Tesla T4"])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: next(names))
    cuda = torch.device("cuda", 0)
    assert devices.peak_flops(cuda, "bf16") == 989.4e12
    assert devices.peak_flops(cuda, "bf16") is None
    assert devices.peak_flops(cuda, "fp16") == 65e12
    assert devices.peak_flops(cuda, "bf16") is None
    assert devices.peak_flops(cuda, "no") is None
    assert devices.peak_flops(CPU, "bf16") is None


@pytest.mark.usefixtures("fresh_process")
def test_checkpoints_are_no_training(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    accelerator = Accelerator(cpu=True, project_dir=str(tmp_path))
    model = accelerator.prepare(nn.Linear(2, 2))
    meter = accelerator.throughput_meter(count_flops=False)
    clock = Clock()
    meter._clock = clock
    inner: Callable[..., object] = accelerator._saver.save

    def slow(*args: object, **options: object) -> object:
        clock.now += 1000
        return inner(*args, **options)

    monkeypatch.setattr(accelerator._saver, "save", slow)
    _train(meter, clock, steps=1, seconds=1.0)
    accelerator.save_state(f"{tmp_path}/one")
    accelerator.load_state(f"{tmp_path}/one")
    _train(meter, clock, steps=1, seconds=1.0)
    assert meter.trained_s == 2.0
    assert model is not None


@pytest.mark.multiprocess
def test_flops_of_a_rank_are_those_of_its_own_micro_batch(run_ranks: RunRanks) -> None:
    script = """
    accelerator = Accelerator(cpu=True, fsdp_plugin={'reshard_after_forward': True})
    model = nn.Sequential(nn.Linear(16, 32, bias=False), nn.Linear(32, 4, bias=False))
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    meter = accelerator.throughput_meter(peak_flops_per_device=1e12)
    for _ in range(3):
        with meter.step(samples=8):
            accelerator.backward(model(torch.ones(8, 16)).sum())
            optimizer.step()
            optimizer.zero_grad()
    say(flops=meter.flops_per_sample, known=sorted(meter.known_figures()))
    """
    ended = run_ranks(script)
    for said in ended.said:
        assert said["flops"] == 2 * (2 * (16 * 32 + 32 * 4) + 32 * 4)
        assert said["known"] == ["flops_per_s", "mfu", "samples_per_s", "steps_per_s"]
