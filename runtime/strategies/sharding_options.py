"""FullyShardedDataParallelPlugin: the settings of FSDP2, each value known or refused by name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from torch import nn

from ..env import WorkerEnvironment
from ..errors import ConfigurationError
from ..mesh import ParallelDims

SHARDING_STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
WRAP_POLICIES = ("TRANSFORMER_BASED_WRAP", "TRANSFORMER_AUTO_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")
PRECISIONS = ("no", "bf16", "fp16")
_NUMBERS = {"1": "FULL_SHARD", "2": "SHARD_GRAD_OP", "3": "NO_SHARD", "4": "HYBRID_SHARD", "5": "HYBRID_SHARD_ZERO2"}
_ONLY: dict[str, tuple[tuple[Any, ...], str]] = {
    "fsdp_version": ((2, "2"), "FSDP1 is not in this version"),
    "use_orig_params": ((True,), "FSDP2 always keeps the original parameters"),
    "sync_module_states": ((True,), "rank 0's weights always go to all ranks"),
    "limit_all_gathers": ((True,), "FSDP2 always limits them"),
    "forward_prefetch": ((False,), "FSDP2 prefetches by itself"),
    "backward_prefetch": (("BACKWARD_PRE",), "FSDP2 prefetches before each backward"),
    "cpu_ram_efficient_loading": ((True,), "ranks whose model is on the meta device always take rank 0's weights"),
    "state_dict_type": (("FULL_STATE_DICT",), "checkpoints hold whole tensors, which load on any number of ranks"),
    "state_dict_config": ((), "checkpoints have one form"),
    "optim_state_dict_config": ((), "checkpoints have one form"),
    "ignored_modules": ((), "this version shards all parameters"),
}
_RENAMED = {"offload_params": "cpu_offload", "transformer_layer_cls_to_wrap": "transformer_cls_names_to_wrap"}
_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class FullyShardedDataParallelPlugin:
    """How FSDP2 shards.

    Args:
        sharding_strategy: FULL_SHARD (parameters lie sharded between uses), SHARD_GRAD_OP (they stay whole from forward
            to backward), HYBRID_SHARD and HYBRID_SHARD_ZERO2 (the same within a replica of several).
        reshard_after_forward: the same choice as a bool.
        auto_wrap_policy: which modules are gathered on their own: TRANSFORMER_BASED_WRAP (also spelt
            TRANSFORMER_AUTO_WRAP), SIZE_BASED_WRAP, NO_WRAP, or a function that says so of a module.
        transformer_cls_names_to_wrap: names of the layers' classes; None takes the model's _no_split_modules, else the
            class of the members of its nn.ModuleLists.
        min_num_params: of a module that SIZE_BASED_WRAP wraps.
        cpu_offload: parameters, gradients and optimizer states stay in host memory.
        activation_checkpointing: the wrapped modules' activations are computed again in backward.
        mixed_precision_policy: no, bf16, fp16, or torch's MixedPrecisionPolicy; None follows mixed_precision.
        param_init_fn: initialises a module that was built on the meta device; None calls its reset_parameters().
        unknown: other settings of the Accelerate API, where FSDP2 does what they ask; all else is refused.

    Raises:
        ConfigurationError: a key or a value is unknown, or two values contradict each other. All are named.
    """

    def __init__(
        self,
        *,
        sharding_strategy: Any = None,
        reshard_after_forward: bool | None = None,
        auto_wrap_policy: str | Callable[[nn.Module], bool] | None = "TRANSFORMER_BASED_WRAP",
        transformer_cls_names_to_wrap: str | Sequence[str] | None = None,
        min_num_params: int = 100_000_000,
        cpu_offload: bool = False,
        activation_checkpointing: bool = False,
        mixed_precision_policy: Any = None,
        param_init_fn: Callable[[nn.Module], None] | None = None,
        **unknown: Any,
    ) -> None:
        findings = _unknown_keys(unknown)
        strategy = _strategy_name(sharding_strategy, findings)
        by_name = strategy in ("FULL_SHARD", "HYBRID_SHARD")
        if sharding_strategy is not None and reshard_after_forward not in (None, by_name):
            findings.append(f"sharding_strategy={strategy} with reshard_after_forward={reshard_after_forward}")
        self.sharding_strategy = strategy
        self.reshard_after_forward = by_name if reshard_after_forward is None else reshard_after_forward
        self.auto_wrap_policy = auto_wrap_policy if callable(auto_wrap_policy) else _policy(auto_wrap_policy, findings)
        self.transformer_cls_names_to_wrap = _names(transformer_cls_names_to_wrap)
        self.min_num_params = min_num_params
        self.cpu_offload = cpu_offload
        self.activation_checkpointing = activation_checkpointing
        self.mixed_precision_policy = mixed_precision_policy
        self.param_init_fn = param_init_fn
        for name in ("reshard_after_forward", "cpu_offload", "activation_checkpointing"):
            if not isinstance(getattr(self, name), bool):
                findings.append(f"{name}={getattr(self, name)!r} (allowed: True, False)")
        if not isinstance(min_num_params, int) or isinstance(min_num_params, bool) or min_num_params < 1:
            findings.append(f"min_num_params={min_num_params!r} (allowed: an integer of at least 1)")
        if isinstance(mixed_precision_policy, str) and mixed_precision_policy not in PRECISIONS:
            findings.append(f"mixed_precision_policy={mixed_precision_policy!r} (allowed: {', '.join(PRECISIONS)})")
        if activation_checkpointing is True and self.auto_wrap_policy == "NO_WRAP":
            findings.append("activation_checkpointing=True with auto_wrap_policy NO_WRAP: no module to checkpoint")
        if findings:
            raise ConfigurationError(
                f"FullyShardedDataParallelPlugin: {'; '.join(findings)}",
                allowed=f"the keys {', '.join(_KEYS)}",
                next_step="correct or remove these settings",
            )

    @property
    def is_hybrid(self) -> bool:
        """Whether the model is sharded within each of several replicas."""
        return self.sharding_strategy.startswith("HYBRID")

    def __repr__(self) -> str:
        return f"FullyShardedDataParallelPlugin({', '.join(f'{key}={value!r}' for key, value in vars(self).items())})"


_KEYS = tuple(
    name for name in FullyShardedDataParallelPlugin.__init__.__annotations__ if name not in ("unknown", "return")
)


@dataclass(frozen=True)
class ShardingOptions:
    """The plugin with the degrees that it has in this job."""

    plugin: FullyShardedDataParallelPlugin
    dims: ParallelDims


def settle(value: Any, environment: WorkerEnvironment, dims: ParallelDims | None) -> ShardingOptions:
    """The options of the strategy, from the argument of Accelerator (None: from the launch).

    Raises:
        ConfigurationError: a setting is wrong, or the degrees do not fit the number of processes.
    """
    plugin = plugin_from_words(environment.fsdp) if value is None else as_plugin(value)
    world_size = environment.world_size
    if dims is None:
        shard = environment.local_world_size if plugin.is_hybrid else world_size
        resolved = ParallelDims(-1, shard).resolve(world_size)
    else:
        resolved = dims.resolve(world_size)
    later = [axis for axis in resolved.beyond_data() if axis != "data_shard"]
    if later:
        raise ConfigurationError(
            f"parallelism_config with {', '.join(later)}: this version has no backend for it",
            allowed="data_replicate and data_shard",
            next_step="leave the other degrees at 1",
        )
    if plugin.is_hybrid == (resolved.data_replicate == 1) and world_size > 1:
        raise ConfigurationError(
            f"sharding_strategy={plugin.sharding_strategy} with {resolved.data_replicate} replica(s) over "
            f"{resolved.data_shard} ranks each",
            allowed="HYBRID_SHARD with at least 2 replicas, FULL_SHARD and SHARD_GRAD_OP with one",
            next_step="say parallelism_config=ParallelDims(data_replicate=..., data_shard=...), or change the strategy",
        )
    return ShardingOptions(plugin, resolved)


def as_plugin(value: Any) -> FullyShardedDataParallelPlugin:
    """The plugin, from itself or from a dict of its settings.

    Raises:
        ConfigurationError: it is neither.
    """
    if isinstance(value, FullyShardedDataParallelPlugin):
        return value
    if isinstance(value, Mapping):
        return FullyShardedDataParallelPlugin(**value)
    raise ConfigurationError(
        f"fsdp_plugin is a {type(value).__name__}",
        allowed="a FullyShardedDataParallelPlugin, or a dict of its settings",
        next_step="from runtime import FullyShardedDataParallelPlugin",
    )


def plugin_from_words(words: Mapping[str, str]) -> FullyShardedDataParallelPlugin:
    """The plugin from options of the launch, such as fsdp_offload_params: true."""
    settings: dict[str, Any] = {}
    for option, word in words.items():
        key = option.removeprefix("fsdp_")
        key, value = _RENAMED.get(key, key), word.strip()
        if key == "reshard_after_forward" and value.upper() in (*SHARDING_STRATEGIES, "NO_SHARD"):
            key = "sharding_strategy"
        if key == "min_num_params" and value.isdecimal():
            settings[key] = int(value)
        elif key in ("sharding_strategy", "fsdp_version", "version"):
            settings["fsdp_version" if key == "version" else key] = value
        else:
            settings[key] = _WORDS.get(value.lower(), value)
    return FullyShardedDataParallelPlugin(**settings)


def _unknown_keys(given: Mapping[str, Any]) -> list[str]:
    findings = []
    for name, value in given.items():
        if name in _ONLY:
            allowed, reason = _ONLY[name]
            if value is not None and getattr(value, "name", value) not in allowed:
                only = f", allowed: {', '.join(map(repr, allowed))}" if allowed else ""
                findings.append(f"{name}={value!r} ({reason}{only})")
            continue
        near = get_close_matches(name, [*_KEYS, *_ONLY], n=1, cutoff=0.5)
        findings.append(f"unknown key {name!r}" + (f" (did you mean {near[0]}?)" if near else ""))
    return findings


def _strategy_name(value: Any, findings: list[str]) -> str:
    if value is None:
        return "FULL_SHARD"
    # torch's enum ShardingStrategy names one of its members with an underscore.
    text = str(getattr(value, "name", value)).upper().removeprefix("SHARDINGSTRATEGY.").lstrip("_")
    name = _NUMBERS.get(text, text)
    if name == "NO_SHARD":
        findings.append("sharding_strategy=NO_SHARD (that is DDP: leave fsdp_plugin out)")
    elif name not in SHARDING_STRATEGIES:
        findings.append(f"sharding_strategy={value!r} (allowed: {', '.join(SHARDING_STRATEGIES)})")
    return name


def _policy(value: Any, findings: list[str]) -> str:
    name = "NO_WRAP" if value is None else str(value).upper()
    if name not in WRAP_POLICIES:
        findings.append(f"auto_wrap_policy={value!r} (allowed: {', '.join(WRAP_POLICIES)}, or a function of a module)")
    return "TRANSFORMER_BASED_WRAP" if name == "TRANSFORMER_AUTO_WRAP" else name


def _names(value: str | Sequence[str] | None) -> tuple[str, ...]:
    if value is None:
        return ()
    return tuple(name.strip() for name in value.split(",")) if isinstance(value, str) else tuple(value)
