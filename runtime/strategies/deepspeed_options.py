"""DeepSpeedPlugin: the settings of ZeRO from a script, a DeepSpeed JSON or the launch, each known or refused."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..batch_arithmetic import OPEN, BatchNumber, BatchSettings, settle_batches
from ..env import WorkerEnvironment
from ..errors import ConfigurationError
from ..mesh import ParallelDims
from .base import Said
from .deepspeed_config import checked_config

PLUGIN = "deepspeed_plugin"
_DEFAULT = "default"
_FILE_NUMBERS = {
    "train": "train_batch_size",
    "micro": "train_micro_batch_size_per_gpu",
    "accumulation": "gradient_accumulation_steps",
}
_FLAGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class DeepSpeedPlugin:
    """How DeepSpeed spreads a model.

    Args:
        hf_ds_config: a DeepSpeed configuration: a dict, or the path of its JSON. "auto" is filled in from the script.
        zero_stage: 0 nothing is sharded, 1 optimizer states, 2 gradients too, 3 parameters too. Default 2, or what
            hf_ds_config says.
        offload_optimizer, offload_optimizer_device: where optimizer states lie: False or "none", True or "cpu", "nvme".
        offload_param, offload_param_device: the same for parameters, with stage 3.
        offload_optimizer_nvme_path, offload_param_nvme_path: folders for "nvme".
        gradient_accumulation_steps: micro-batches of an optimizer step.
        gradient_clipping: norm that every step clips to; None and 0 leave clipping to the script.
        settings: DeepSpeed's own top-level keys, such as zero_optimization.

    Raises:
        ConfigurationError: a key or value is unknown or not in this version, or two contradict each other. All are
            named.
    """

    def __init__(
        self,
        hf_ds_config: Mapping[str, Any] | str | Path | None = None,
        *,
        zero_stage: int | None = None,
        offload_optimizer: bool | str | None = None,
        offload_param: bool | str | None = None,
        offload_optimizer_device: str | None = None,
        offload_param_device: str | None = None,
        offload_optimizer_nvme_path: str | None = None,
        offload_param_nvme_path: str | None = None,
        gradient_accumulation_steps: int | str | None = None,
        gradient_clipping: float | str | None = None,
        **settings: Any,
    ) -> None:
        theirs, self.place = _read(hf_ds_config)
        given: dict[str, Any] = {
            "zero_stage": zero_stage,
            "offload_optimizer": offload_optimizer,
            "offload_param": offload_param,
            "offload_optimizer_device": offload_optimizer_device,
            "offload_param_device": offload_param_device,
            "offload_optimizer_nvme_path": offload_optimizer_nvme_path,
            "offload_param_nvme_path": offload_param_nvme_path,
            "gradient_accumulation_steps": gradient_accumulation_steps,
            "gradient_clipping": gradient_clipping,
        }
        has_config = hf_ds_config is not None or "zero_optimization" in settings
        self.config = checked_config(theirs, settings, given, place=self.place, has_config=has_config)
        zero = self.config["zero_optimization"]
        self.stage: int = zero["stage"]
        self.offload_optimizer: str = zero.get("offload_optimizer", {}).get("device", "none")
        self.offload_param: str = zero.get("offload_param", {}).get("device", "none")
        self.gradient_clipping = float(_number(self.config.get("gradient_clipping")) or 0.0)
        self.precision = _precision(self.config)

    def number(self, name: str) -> BatchNumber:
        """One of the batch numbers: train, micro or accumulation; open where it is left to the script."""
        value = _number(self.config.get(_FILE_NUMBERS[name]))
        return OPEN if value is None else BatchNumber(int(value), f"{_FILE_NUMBERS[name]} of {self.place}")


@dataclass(frozen=True)
class DeepSpeedOptions:
    """Settled settings. Several plugins have names; `said` is what they say of Accelerator's own arguments."""

    plugins: Mapping[str, DeepSpeedPlugin]
    said: Said


def settle(value: Any, environment: WorkerEnvironment, dims: ParallelDims | None) -> DeepSpeedOptions:
    """The options of the strategy, from the argument of Accelerator (None: from the launch).

    Raises:
        ConfigurationError: a setting is wrong, or plugins disagree where there is one accumulation and one precision.
    """
    plugins = {_DEFAULT: plugin_from_words(environment.deepspeed)} if value is None else as_plugins(value)
    if dims is not None and dims.resolve(environment.world_size).beyond_data():
        raise ConfigurationError(
            f"parallelism_config with {', '.join(dims.beyond_data())} under strategy deepspeed",
            allowed="data-parallel ranks alone: the stage says what is sharded",
            next_step="remove parallelism_config",
        )
    ranks = BatchNumber(environment.world_size, "the number of processes")
    accumulation = _agreed(plugins, "gradient_accumulation_steps", lambda plugin: _accumulation(plugin, ranks))
    precision = _agreed(plugins, "precision", lambda plugin: plugin.precision)
    place = next(iter(plugins.values())).place if len(plugins) == 1 else PLUGIN
    return DeepSpeedOptions(plugins, Said(accumulation=accumulation, precision=precision, place=place))


def as_plugins(value: Any) -> dict[str, DeepSpeedPlugin]:
    """Plugins by name, from one plugin, a dict of settings, or a mapping name -> plugin.

    Raises:
        ConfigurationError: it is none of these.
    """
    if isinstance(value, DeepSpeedPlugin):
        return {_DEFAULT: value}
    if isinstance(value, Mapping):
        if value and any(isinstance(item, DeepSpeedPlugin) for item in value.values()):
            wrong = [str(name) for name, item in value.items() if not isinstance(item, DeepSpeedPlugin)]
            if wrong:
                raise ConfigurationError(
                    f"{PLUGIN} holds plugins by name, and beside them {', '.join(wrong)}",
                    allowed="name -> DeepSpeedPlugin, or a dict of settings",
                    next_step="from runtime import DeepSpeedPlugin",
                )
            return dict(value)
        return {_DEFAULT: DeepSpeedPlugin(**value)}
    if isinstance(value, (str, Path)):
        return {_DEFAULT: DeepSpeedPlugin(value)}
    raise ConfigurationError(
        f"{PLUGIN} is a {type(value).__name__}",
        allowed="a DeepSpeedPlugin, a dict of its settings, or a mapping name -> DeepSpeedPlugin",
        next_step="from runtime import DeepSpeedPlugin",
    )


def plugin_from_words(words: Mapping[str, str]) -> DeepSpeedPlugin:
    """The plugin from options of the launch, such as zero_stage: "2"."""
    settings: dict[str, Any] = {}
    for option, word in words.items():
        if option == "deepspeed_config_file":
            settings["hf_ds_config"] = word
        elif option in ("zero_stage", "gradient_accumulation_steps") and word.isdecimal():
            settings[option] = int(word)
        elif option == "gradient_clipping":
            settings[option] = _as_float(word)
        else:
            settings[option] = _FLAGS.get(word.lower(), word)
    return DeepSpeedPlugin(**settings)


def _as_float(word: str) -> float | str:
    try:
        return float(word)
    except ValueError:
        return word


def _accumulation(plugin: DeepSpeedPlugin, ranks: BatchNumber) -> int | None:
    """What the plugin says, or what follows from its other numbers; None where it leaves it to the script."""
    given = plugin.number("accumulation")
    if given.value is None and plugin.number("train").value is None:
        return None
    settings = BatchSettings(plugin.number("train"), plugin.number("micro"), given, ranks=ranks)
    return settle_batches(settings).accumulation


def _read(config: Mapping[str, Any] | str | Path | None) -> tuple[dict[str, Any], str]:
    if config is None:
        return {}, PLUGIN
    if isinstance(config, Mapping):
        return dict(config), f"{PLUGIN}'s configuration"
    path = Path(config)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{path} is no DeepSpeed configuration: {error}",
            allowed="a JSON file with keys such as zero_optimization",
            next_step="correct the path or the file",
        ) from error
    if not isinstance(data, dict):
        raise ConfigurationError(f"{path} is no DeepSpeed configuration: it holds no mapping", allowed="a JSON object")
    return data, str(path)


def _precision(config: Mapping[str, Any]) -> str | None:
    """What the configuration says; None where it leaves it to the script."""
    enabled = {name: config.get(name, {}).get("enabled", "auto") for name in ("bf16", "fp16")}
    for name, value in enabled.items():
        if value is True:
            return name
    return "no" if all(value is False for value in enabled.values()) else None


def _number(value: Any) -> float | None:
    return None if value in (None, "auto") else value


def _agreed(plugins: Mapping[str, DeepSpeedPlugin], what: str, read: Any) -> Any:
    said = {name: read(plugin) for name, plugin in plugins.items()}
    values = {value for value in said.values() if value is not None}
    if len(values) > 1:
        listed = ", ".join(f"{name}: {value}" for name, value in said.items() if value is not None)
        raise ConfigurationError(
            f"the plugins' {what} differ ({listed})",
            allowed=f"one {what} for all models of an Accelerator",
            next_step="make them equal",
        )
    return values.pop() if values else None
