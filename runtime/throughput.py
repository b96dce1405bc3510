"""How fast this session trains: samples, tokens and steps a second, and the share of the device's peak (MFU).

Work of before a resume is no work of this session, and evaluation and checkpoints are no training: neither counts.
"""

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from .devices import peak_flops, synchronize


class ThroughputMeter:
    """Measures the blocks of step(), with the waiting for data between them, without what lies in paused().

    FLOPs are counted once, in the first block: what torch's FlopCounterMode sees in its forward and backward, which
    recomputed activations are a part of. That block is slower for it and is left out of the speed.

    Args:
        precision: no, bf16 or fp16: what the peak is of.
        peak_flops_per_device: FLOP/s; None takes the one known for the device, if any.
        count_flops: False leaves FLOPs and MFU unknown.
        clock: seconds that only ever grow.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        precision: str = "no",
        peak_flops_per_device: float | None = None,
        count_flops: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.peak_flops_per_device = peak_flops_per_device or peak_flops(device, precision)
        self.flops_per_sample: float | None = None
        self.num_steps = 0
        self.num_samples = 0.0
        self.num_tokens: float | None = 0.0
        self._device = device
        self._clock = clock
        self._counts = count_flops
        self._trained_s = 0.0
        self._mark: float | None = None  # until when time is counted; None before the first block and in a pause
        self._num_pauses = 0

    @contextmanager
    def step(self, samples: float, tokens: float | None = None) -> Iterator[None]:
        """One micro-batch: forward, backward, and the optimizer's step if it takes one.

        Args:
            samples, tokens: in this rank's micro-batch; without tokens in every block, their speed is unknown.
        """
        if self._counts:
            self._counts = False
            from torch.utils.flop_counter import FlopCounterMode

            with FlopCounterMode(display=False) as counter:
                yield
            self.flops_per_sample = counter.get_total_flops() / samples or None
            synchronize(self._device)
            self._mark = self._clock()
            return
        if self._mark is None:
            self._mark = self._clock()
        yield
        self._count_time()
        self.num_steps += 1
        self.num_samples += samples
        self.num_tokens = None if tokens is None or self.num_tokens is None else self.num_tokens + tokens

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time in here (evaluation, a checkpoint) does not count; save_state() and load_state() are in here anyway."""
        if not self._num_pauses and self._mark is not None:
            synchronize(self._device)
            self._count_time()
        self._num_pauses += 1
        try:
            yield
        finally:
            self._num_pauses -= 1
            if not self._num_pauses and self._mark is not None:
                synchronize(self._device)
                self._mark = self._clock()

    @property
    def trained_s(self) -> float:
        """Seconds of training in this session, up to the end of the last block on the device."""
        if self._mark is not None and not self._num_pauses:
            before = self._clock()
            synchronize(self._device)
            waited_s = self._clock() - before
            self._trained_s += waited_s
            self._mark += waited_s
        return self._trained_s

    def _count_time(self) -> None:
        now = self._clock()
        assert self._mark is not None, "step() sets it"
        self._trained_s += now - self._mark
        self._mark = now

    def figures(self) -> dict[str, float | None]:
        """This rank's speed; what is not known is None.

        Returns:
            steps_per_s (micro-batches), samples_per_s, tokens_per_s, flops_per_s, mfu (0 to 1).
        """
        seconds = self.trained_s
        if not seconds or not self.num_steps:
            return dict.fromkeys(("steps_per_s", "samples_per_s", "tokens_per_s", "flops_per_s", "mfu"))
        samples_per_s = self.num_samples / seconds
        flops_per_s = None if self.flops_per_sample is None else self.flops_per_sample * samples_per_s
        peak = self.peak_flops_per_device
        return {
            "steps_per_s": self.num_steps / seconds,
            "samples_per_s": samples_per_s,
            "tokens_per_s": None if self.num_tokens is None else self.num_tokens / seconds,
            "flops_per_s": flops_per_s,
            "mfu": None if flops_per_s is None or peak is None else flops_per_s / peak,
        }

    def known_figures(self) -> dict[str, float]:
        """figures() without what is not known, as accelerator.log() takes it."""
        return {name: value for name, value in self.figures().items() if value is not None}

    def remaining_s(self, num_steps_left: int) -> float | None:
        """Time for so many more micro-batches at this session's speed; None while no speed is known.

        A number below zero (the total was reduced) is 0 s, with a warning.
        """
        if num_steps_left < 0:
            warnings.warn(f"{-num_steps_left} steps beyond the total: nothing remains", stacklevel=2)
            return 0.0
        speed = self.figures()["steps_per_s"]
        return None if speed is None else num_steps_left / speed
