"""TrainingPlan: all that decides what a run does. `plan_digest` covers exactly this."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from .digest import digest_json

MOST_SWEEP_RUNS = 64
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


def _relative(path: str) -> str:
    if path.startswith("/") or ".." in path.split("/") or not path:
        raise ValueError(f"{path!r} is not a relative path inside the tree")
    return path


RelativePath = Annotated[str, AfterValidator(_relative)]


class Frozen(BaseModel):
    """The base of every model that crosses a door or lies in a file."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class CodeFile(Frozen):
    path: RelativePath
    sha256: Digest
    size_bytes: int = Field(ge=0)
    executable: bool = False


class CodeSnapshot(Frozen):
    """The content-addressed copy of the user's code; `entry` is the script, relative to the tree."""

    origin: str = Field(description="absolute path of the directory that was copied")
    entry: RelativePath
    sha256: Digest
    files: tuple[CodeFile, ...]


DataRole = Literal["train", "validation", "holdout", "other"]


class DataFile(Frozen):
    """One declared data file or directory. `mode` says whether the digest covers every byte.

    A directory's digest covers the manifest of its files (runtime.snapshots.data_manifest).
    """

    role: DataRole
    path: str = Field(description="absolute path")
    size_bytes: int = Field(ge=0)
    sha256: Digest
    mode: Literal["full", "sampled"] = "full"
    num_files: int = Field(default=0, ge=0, description="in a directory, whose manifest names them; 0: one file")


class Interpreter(Frozen):
    """The Python that trains, asked in a process of its own."""

    executable: str
    version: str
    packages: dict[str, str] = Field(description="installed distribution -> version")


class ProcessLayout(Frozen):
    """How many processes on how many nodes, on which kind of device, started by which launcher."""

    num_processes: int = Field(ge=1, le=4096, description="total over all nodes")
    num_nodes: int = Field(default=1, ge=1)
    device: str = Field(default="cpu", description="device kind: cpu, cuda, mps or xla")
    launcher: str = "local"


class SmokeSettings(Frozen):
    """The small run: the arguments that make it small, and the evidence it must show."""

    args: tuple[str, ...] = Field(description="arguments of the smoke run, in place of the plan's")
    num_steps: int = Field(default=12, ge=6, le=10_000)
    loss: str = Field(default="loss", description="name of the metric that must be finite and fall")
    wall_time_s: float = Field(default=300.0, gt=0)


class Evaluation(Frozen):
    """How the server scores predictions on held-out rows. All paths but `predictions` are declared data files."""

    predictions: str = Field(description="predictions file; relative paths are inside the run directory")
    holdout: str = Field(description="absolute path of the hold-out file with ids and labels")
    train: str | None = Field(default=None, description="absolute path of the training file, for the baselines")
    id_column: str = "id"
    label_column: str = "label"
    prediction_column: str = "prediction"
    group_column: str | None = Field(default=None, description="rows that belong together (a patient), for leakage")
    task: Literal["classification", "regression"] = "classification"
    metrics: tuple[str, ...] = ("accuracy",)
    baselines: tuple[Literal["majority", "mean", "linear"], ...] = ()


class Ceilings(Frozen):
    """What the run may use at most; the supervisor enforces them."""

    wall_time_s: float = Field(gt=0)
    max_retries: int = Field(default=0, ge=0, le=10)
    disk_bytes: int = Field(default=20 * 2**30, gt=0)
    cost: float | None = Field(default=None, ge=0, description="None: no price is known")
    currency: str = ""


Origin = Literal["argument", "user", "assumption", "file", "default"]


class Setting(Frozen):
    """One resolved value that affects the result, and who said so."""

    name: str
    value: str
    origin: Origin


class TrainingPlan(Frozen):
    """What runs, and nothing else. Two equal plans have equal digests on every machine."""

    schema_version: Literal[1] = 1
    argv: tuple[str, ...] = Field(description="arguments of the script in the full run; {run_dir} expands")
    sweep: tuple[tuple[str, ...], ...] = Field(
        default=(),
        max_length=MOST_SWEEP_RUNS,
        description="argument sets, one full run each, of which argv is the first; empty: one run with argv",
    )
    environment: dict[str, str] = Field(description="the job's whole environment, less what the launcher sets")
    inherited: tuple[str, ...] = Field(default=(), description="secret variables passed by name, values never stored")
    inherited_hashes: dict[str, str] = Field(
        default_factory=dict,
        description="variable of `inherited` -> keyed hash of its value (runtime.snapshots.secret_values)",
    )
    code: CodeSnapshot
    data: tuple[DataFile, ...]
    interpreter: Interpreter
    layout: ProcessLayout
    seed: int | None
    smoke: SmokeSettings
    evaluation: Evaluation | None
    ceilings: Ceilings
    settings: tuple[Setting, ...] = ()

    @model_validator(mode="after")
    def _sweep_fits(self) -> Self:
        if self.sweep and (len(self.sweep) < 2 or len(set(self.sweep)) < len(self.sweep) or self.sweep[0] != self.argv):
            raise ValueError("a sweep has at least two argument sets, all different, and argv is the first of them")
        return self

    @property
    def digest(self) -> str:
        """plan_digest: SHA-256 over RFC 8785 JSON of the whole plan."""
        later = {name for name in ("inherited_hashes", "sweep") if not getattr(self, name)}
        content = self.model_dump(mode="json", exclude=later or None)  # older plans keep their digest
        for file in content["data"]:
            if file["num_files"] == 0:
                del file["num_files"]
        return digest_json(content)

    @property
    def num_runs(self) -> int:
        """How many full runs one approval of this plan covers."""
        return len(self.sweep) or 1

    def of_member(self, member: int | None) -> "TrainingPlan":
        """What one run of a sweep carries out, the first being 1; the plan itself for None. Its digest is its own.

        Raises:
            ValueError: the sweep has no such member.
        """
        if member is None:
            return self
        if not 1 <= member <= len(self.sweep):
            raise ValueError(f"member {member} of a sweep of {len(self.sweep)}")
        return self.model_copy(update={"argv": self.sweep[member - 1], "sweep": ()})
