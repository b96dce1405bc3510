"""What is observed while training: trackers, profiles, and how fast it goes."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from ..options import ProfileKwargs
from ..profiling import profiled
from ..throughput import ThroughputMeter
from ..tracking.base import GeneralTracker
from ..tracking.trackers import checked_values, flat_numbers
from .base import Duty


class ObservingDuty(Duty):
    """Logged values and where they go, torch.profiler, the throughput meter."""

    @property
    def logging_dir(self) -> Path | None:
        """Where trackers write: logging_dir of project_config, the project_dir, or a folder of the run directory."""
        return self._logging_dir

    @property
    def log_with(self) -> list[str | GeneralTracker]:
        """The trackers asked for, by name or as they are."""
        return self._trackers.choices

    @property
    def trackers(self) -> list[GeneralTracker]:
        """Those that init_trackers() has opened."""
        return self._trackers.all

    def init_trackers(
        self,
        project_name: str,
        config: dict[str, Any] | None = None,
        init_kwargs: dict[str, dict[str, Any]] | None = None,
    ) -> None:
        """Open what log_with names, on the main process. A tracker that cannot be opened is an error here.

        Args:
            project_name: the folder below logging_dir.
            config: hyperparameters, handed to every tracker and recorded in the run.
            init_kwargs: tracker's name -> keyword arguments for its start, as in {"tensorboard": {"flush_secs": 60}}.
        """
        self._trackers.start(project_name, config, init_kwargs or {})

    def get_tracker(self, name: str, unwrap: bool = False) -> Any:
        """The tracker of this name, or what it wraps (`unwrap`). On other ranks, one whose methods do nothing."""
        return self._trackers.get(name, unwrap=unwrap)

    def log(
        self,
        values: dict[str, Any],
        step: int | None = None,
        log_kwargs: dict[str, dict[str, Any]] | None = None,
        *,
        all_ranks: bool = False,
    ) -> None:
        """Record numbers in the run directory and hand values to the trackers; nothing is printed.

        The main process speaks for all: what other ranks log is not averaged in, whatever its name. No rank waits for
        another here. For a mean over ranks, accelerator.reduce(values, "mean") first, which refuses different names.
        A tracker that fails is dropped with an error in the log and an event; training and its records go on.

        Args:
            values: numbers, tensors of one element, mappings of names to these; texts too where there are trackers.
            log_kwargs: tracker's name -> keyword arguments for its log().
            all_ranks: record every rank's own numbers, each under its rank.

        Raises:
            UsageError: a value is of another kind, on any rank.
        """
        checked = checked_values(values, texts=self._trackers.started)
        if self.state.is_main_process or all_ranks:
            for name, value in flat_numbers(checked).items():
                self._reporter.metric(name, value, step=step)
        self._trackers.log(checked, step, log_kwargs or {})

    def profile(self, profile_handler: ProfileKwargs | None = None) -> AbstractContextManager[torch.profiler.profile]:
        """Profile the block with torch.profiler; every rank writes a trace of its own.

        Args:
            profile_handler: instead of the one in kwargs_handlers.
        """
        options = profile_handler or self._profile
        own = None if self._reporter.layout is None else self._reporter.layout.profiles
        directory = own if options.output_trace_dir is None else Path(options.output_trace_dir)
        return profiled(options, directory=directory, rank=self.state.process_index)

    def throughput_meter(
        self, *, peak_flops_per_device: float | None = None, count_flops: bool = True
    ) -> ThroughputMeter:
        """A meter for this session's speed and MFU; a second call begins a new one.

        Args:
            peak_flops_per_device: FLOP/s in this precision, for devices whose peak is not known here.
        """
        self._meter = ThroughputMeter(
            self.state.device,
            precision=self.mixed_precision,
            peak_flops_per_device=peak_flops_per_device,
            count_flops=count_flops,
        )
        return self._meter
