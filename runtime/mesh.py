"""Degrees of parallelism: all their arithmetic, validated in one place before any process group starts."""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from .errors import ConfigurationError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True)
class ParallelDims:
    """How many ranks each axis of the mesh has; -1 for data_replicate means all that remain.

    Attributes:
        data_replicate: replicas that each hold the whole model (DDP).
        data_shard: ranks over which one replica's state is sharded.
        context, tensor, pipeline: the model-parallel axes.
    """

    data_replicate: int = -1
    data_shard: int = 1
    context: int = 1
    tensor: int = 1
    pipeline: int = 1

    def resolve(self, world_size: int) -> "ParallelDims":
        """The same dims with -1 replaced.

        Raises:
            ConfigurationError: a degree is no positive number, or their product is not the world size.
        """
        wrong = [f"{f.name}={getattr(self, f.name)}" for f in fields(self) if not self._legal(f.name)]
        if wrong:
            raise ConfigurationError(
                f"degrees of parallelism: {', '.join(wrong)}",
                allowed="integers of at least 1 (data_replicate also -1)",
                next_step="correct these degrees",
            )
        model = self.data_shard * self.context * self.tensor * self.pipeline
        replicate = world_size // model if self.data_replicate == -1 else self.data_replicate
        if replicate * model != world_size:
            raise ConfigurationError(
                f"{self._formula(replicate)} is not the world size {world_size}",
                allowed="degrees whose product is the number of processes",
                next_step="change the degrees or the number of processes",
            )
        return ParallelDims(replicate, self.data_shard, self.context, self.tensor, self.pipeline)

    @property
    def data_parallel(self) -> int:
        """Ranks that see different data: the factor of the effective batch."""
        return self.data_replicate * self.data_shard

    def beyond_data(self) -> list[str]:
        """The axes in use that are not data-parallel replication."""
        return [f.name for f in fields(self) if f.name != "data_replicate" and getattr(self, f.name) > 1]

    def _legal(self, name: str) -> bool:
        value = getattr(self, name)
        return isinstance(value, int) and (value >= 1 or (name == "data_replicate" and value == -1))

    def _formula(self, replicate: int) -> str:
        parts = [("data_replicate", replicate)]
        parts += [(f.name, getattr(self, f.name)) for f in fields(self) if f.name != "data_replicate"]
        return " x ".join(f"{name} {value}" for name, value in parts)


@dataclass(frozen=True)
class ParallelismConfig:
    """Degrees of parallelism in the words of the Accelerate API; ParallelDims says the same.

    Attributes:
        dp_replicate_size: replicas; None means 1, or all processes where dp_shard_size is None too.
        dp_shard_size: ranks over which one replica's state is sharded; None means 1.
        tp_size, cp_size, sp_size: tensor, context and sequence parallelism; this version has none of them.
        cp_backend, sp_backend, tp_handler, cp_handler, sp_handler: their settings, refused unless None.
    """

    dp_replicate_size: int | None = None
    dp_shard_size: int | None = None
    tp_size: int | None = None
    cp_size: int | None = None
    cp_backend: str | None = None
    sp_size: int | None = None
    sp_backend: str | None = None
    tp_handler: Any = None
    cp_handler: Any = None
    sp_handler: Any = None

    def __post_init__(self) -> None:
        asked = [
            f"{n}={getattr(self, n)}" for n in ("tp_size", "cp_size", "sp_size") if getattr(self, n) not in (None, 1)
        ]
        settings = ("cp_backend", "sp_backend", "tp_handler", "cp_handler", "sp_handler")
        asked += [name for name in settings if getattr(self, name) is not None]
        if asked:
            raise ConfigurationError(
                f"ParallelismConfig with {', '.join(asked)}: this version has no tensor, context or sequence axis",
                allowed="dp_replicate_size and dp_shard_size",
                next_step="leave it out, and shard with fsdp_plugin",
            )

    def dims(self) -> ParallelDims:
        """The same as ParallelDims."""
        replicate = self.dp_replicate_size
        if replicate is None:
            replicate = -1 if self.dp_shard_size is None else 1
        return ParallelDims(data_replicate=replicate, data_shard=self.dp_shard_size or 1)


def parallel_dims(given: ParallelismConfig | ParallelDims | None) -> ParallelDims | None:
    """Degrees in either form.

    Raises:
        ConfigurationError: it is neither.
    """
    if given is None or isinstance(given, ParallelDims):
        return given
    if isinstance(given, ParallelismConfig):
        return given.dims()
    raise ConfigurationError(
        f"parallelism_config={given!r}",
        allowed="ParallelismConfig or ParallelDims",
        next_step="ParallelismConfig(dp_replicate_size=..., dp_shard_size=...)",
    )


def data_parallel_mesh(dims: ParallelDims, device_type: str) -> "DeviceMesh":
    """The mesh of resolved dims: one axis of shards, or replicas of shards. All ranks make it together."""
    from torch.distributed.device_mesh import init_device_mesh  # here, because a launcher does without torch

    if dims.data_replicate == 1:
        return init_device_mesh(device_type, (dims.data_shard,), mesh_dim_names=("data_shard",))
    shape = (dims.data_replicate, dims.data_shard)
    return init_device_mesh(device_type, shape, mesh_dim_names=("data_replicate", "data_shard"))


def effective_batch(per_device: int, *, data_parallel: int, accumulation: int) -> int:
    """Samples for one optimizer step: only data-parallel ranks count. The last window of an epoch may be shorter."""
    return per_device * data_parallel * accumulation
