"""Every path in a run directory. Nothing else in the project spells one of these names."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunLayout:
    """The files of one run below `root`; constructing it touches nothing."""

    root: Path

    @property
    def plan(self) -> Path:
        """The TrainingPlan, canonical JSON."""
        return self.root / "plan.json"

    @property
    def launch(self) -> Path:
        """The LaunchOrder: what the supervisor is to start, and its limits."""
        return self.root / "launch.json"

    @property
    def batch_script(self) -> Path:
        """What was submitted to a batch system; absent where none is used."""
        return self.root / "batch.sh"

    @property
    def batch_job(self) -> Path:
        """The job's number there."""
        return self.root / "batch_job"

    @property
    def environment(self) -> Path:
        """What the machine was when the run began, written by the server; absent if nobody looked."""
        return self.root / "environment.json"

    @property
    def claim(self) -> Path:
        """Created with O_EXCL by the supervisor that owns the run, or by the server as a tombstone."""
        return self.root / "claim.json"

    @property
    def heartbeat(self) -> Path:
        """Replaced about once a second by the supervisor while the job lives."""
        return self.root / "heartbeat.json"

    @property
    def cancel(self) -> Path:
        """Written by whoever wants the run stopped; the supervisor obeys it."""
        return self.root / "cancel.json"

    @property
    def result(self) -> Path:
        """The RunResult; its presence means that the run is over."""
        return self.root / "result.json"

    @property
    def failures(self) -> Path:
        """What the engine says of each failed rank (exit code or signal), written by the engine's wrapper."""
        return self.root / "failures.json"

    def other_failures(self) -> list[Path]:
        """The same of the other nodes, where one launcher serves several."""
        return sorted(self.root.glob("failures.node*.json"))

    @property
    def events(self) -> Path:
        """Event records of the supervisor and of rank 0, JSON lines."""
        return self.root / "events.jsonl"

    @property
    def code(self) -> Path:
        """The read-only snapshot that runs."""
        return self.root / "code"

    @property
    def manifests(self) -> Path:
        """The files of declared data directories, by the manifest's digest; absent where none is declared."""
        return self.root / "manifests"

    @property
    def python_path(self) -> Path:
        """Holds a link to our `runtime` alone: what workers and their spawned children import it from."""
        return self.root / "python"

    @property
    def work(self) -> Path:
        """The working directory of every rank."""
        return self.root / "work"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def supervisor_log(self) -> Path:
        return self.logs / "supervisor.log"

    @property
    def engine_log(self) -> Path:
        """What the launcher's engine (torchrun, srun) itself printed."""
        return self.logs / "engine.log"

    @property
    def engine_scratch(self) -> Path:
        """Where torchrun makes its own folders, which would else stay behind in the temporary directory."""
        return self.logs / "torchrun"

    def attempt(self, number: int) -> Path:
        """What the engine and the ranks said of the failures of a job that was then restarted; from 1."""
        return self.logs / f"attempt{number}"

    @property
    def profiles(self) -> Path:
        """Traces of the profiler, one or more of each rank."""
        return self.root / "profiles"

    @property
    def tracking(self) -> Path:
        """What trackers write where the script names no other directory."""
        return self.root / "tracking"

    @property
    def report(self) -> Path:
        return self.root / "report"

    def metrics(self, rank: int) -> Path:
        """Metric records of one rank, JSON lines."""
        return self.root / f"metrics.rank{rank}.jsonl"

    def modules(self, rank: int) -> Path:
        """The modules that this rank loaded from outside the snapshot and its installed packages, JSON."""
        return self.root / f"modules.rank{rank}.json"

    def stdout(self, rank: int) -> Path:
        return self.logs / f"rank{rank}.stdout.log"

    def stderr(self, rank: int) -> Path:
        return self.logs / f"rank{rank}.stderr.log"

    def ranks_with_output(self) -> list[int]:
        numbers = [path.name.removeprefix("rank").partition(".")[0] for path in self.logs.glob("rank*.stdout.log")]
        return sorted(int(number) for number in numbers if number.isdecimal())

    def error(self, rank: int) -> Path:
        """The exception that ended this rank, as JSON; absent if none did."""
        return self.logs / f"rank{rank}.error.json"
