"""Checking a DeepSpeed configuration: each key known, each value of its kind, what this version lacks named."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from ..deepspeed_keys import HALF, OFFLOAD, TOP, ZERO
from ..errors import ConfigurationError

AUTO = "auto"
DEVICES = ("none", "cpu", "nvme")
_FIELDS = (
    "zero_stage",
    "offload_optimizer",
    "offload_param",
    "offload_optimizer_device",
    "offload_param_device",
    "offload_optimizer_nvme_path",
    "offload_param_nvme_path",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "hf_ds_config",
)
# Fields of the Accelerate API that ask for nothing, or for what is so anyway: the values that may be given.
_ONLY: dict[str, tuple[tuple[Any, ...], str]] = {
    "zero3_init_flag": ((False,), "building a model sharded is not in this version"),
    "zero3_save_16bit_model": ((True, False), ""),
    "is_train_batch_min": ((True,), "the micro-batch is the training loader's"),
    "transformer_moe_cls_names": ((), "mixture-of-experts layers are not in this version"),
    "deepspeed_moe_layer_cls_names": ((), "mixture-of-experts layers are not in this version"),
    "enable_msamp": ((False,), "MS-AMP is not in this version"),
    "msamp_opt_level": ((), "MS-AMP is not in this version"),
    "deepspeed_hostfile": ((), "forerun launch starts the other machines"),
    "deepspeed_inclusion_filter": ((), "forerun launch starts the other machines"),
    "deepspeed_exclusion_filter": ((), "forerun launch starts the other machines"),
    "deepspeed_multinode_launcher": (("standard",), "forerun launch starts the other machines"),
}
# Sections of DeepSpeed that change what training means, and that this version does not carry through.
_ABSENT = {
    "optimizer": "build the optimizer in the script",
    "scheduler": "build the scheduler in the script",
    "amp": "set mixed_precision",
    "torch_autocast": "set mixed_precision",
    "elasticity": "the batch must be a given number",
    "autotuning": "run DeepSpeed's own launcher for it",
    "curriculum_learning": "the script's loader gives the batches",
    "data_efficiency": "the script's loader gives the batches",
    "compression_training": "it changes the model",
    "sparse_attention": "it changes the model",
    "progressive_layer_drop": "it changes the model",
    "tensor_parallel": "all processes are data-parallel",
    "pipeline": "all processes are data-parallel",
    "hybrid_engine": "it is for generation",
    "expert_parallel": "mixture-of-experts layers are not in this version",
    "eigenvalue": "it belongs to compression",
    "weight_quantization": "it changes the model",
    "load_universal": "load_state reads forerun's own format",
    "zero_optimization.zenflow": "it delays updates",
    "zero_optimization.mics_shard_size": "MiCS is not in this version",
    "zero_optimization.zero_hpz_partition_size": "ZeRO++ is not in this version",
    "zero_optimization.zero_quantized_weights": "ZeRO++ is not in this version",
    "zero_optimization.zero_quantized_gradients": "ZeRO++ is not in this version",
    "zero_optimization.offload_optimizer.super_offload": "SuperOffload is not in this version",
    "zero_quantized_weights": "ZeRO++ is not in this version",
}
_SECTIONS = {
    "zero_optimization": ZERO,
    "zero_optimization.offload_optimizer": OFFLOAD,
    "zero_optimization.offload_param": OFFLOAD,
    "bf16": HALF,
    "fp16": HALF,
}
_WHOLE = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_SIZES = ("zero_optimization.reduce_bucket_size", "zero_optimization.allgather_bucket_size")
_BOOLEANS = (
    "bf16.enabled",
    "fp16.enabled",
    "zero_optimization.overlap_comm",
    "zero_optimization.contiguous_gradients",
    "zero_optimization.reduce_scatter",
    "zero_optimization.offload_optimizer.pin_memory",
    "zero_optimization.offload_param.pin_memory",
)


def checked_config(
    theirs: Mapping[str, Any], settings: Mapping[str, Any], fields: Mapping[str, Any], *, place: str, has_config: bool
) -> dict[str, Any]:
    """One DeepSpeed configuration from a file's, the script's keys and the plugin's fields; it has a whole stage.

    Raises:
        ConfigurationError: with everything that is wrong.
    """
    findings: list[str] = []
    config = {name: dict(value) if isinstance(value, Mapping) else value for name, value in theirs.items()}
    for name, value in settings.items():
        if name in _ONLY:
            allowed, reason = _ONLY[name]
            if value is not None and value not in allowed:
                findings.append(f"{name}={value!r} ({reason})")
        elif name in config and config[name] != value:
            findings.append(f"{name} is {value!r} in the script and {config[name]!r} in {place}")
        else:
            config[name] = dict(value) if isinstance(value, Mapping) else value
    _rename(config)
    _merge_fields(config, fields, findings, place=place, has_config=has_config)
    _check_tree(config, "", TOP, findings)
    _check_together(config, findings)
    if findings:
        raise ConfigurationError(
            f"{place}: {'; '.join(findings)}",
            allowed="the settings of DeepSpeedPlugin, and DeepSpeed's own keys",
            next_step="correct or remove what is named",
        )
    return config


def _rename(config: dict[str, Any]) -> None:
    if "bfloat16" in config:
        config.setdefault("bf16", config.pop("bfloat16"))
    zero = config.get("zero_optimization")
    if isinstance(zero, bool):  # DeepSpeed's oldest spelling
        config["zero_optimization"] = {"stage": 1 if zero else 0}
    elif isinstance(zero, dict):
        for name in ("offload_optimizer", "offload_param"):
            if name in zero and not isinstance(zero[name], Mapping):
                zero[name] = {"device": zero[name]}
            elif name in zero:
                zero[name] = dict(zero[name])


def _merge_fields(
    config: dict[str, Any], fields: Mapping[str, Any], findings: list[str], *, place: str, has_config: bool
) -> None:
    zero = config.setdefault("zero_optimization", {})
    if not isinstance(zero, dict):
        return
    _put(zero, "stage", fields["zero_stage"], "zero_stage", findings, place)
    zero.setdefault("stage", 0 if has_config else 2)
    for name in ("offload_optimizer", "offload_param"):
        devices = {_device(fields[key]) for key in (name, f"{name}_device") if fields[key] is not None}
        path = fields[f"{name}_nvme_path"]
        path = None if path in (None, "none") else path
        if len(devices) > 1:
            findings.append(f"{name}={fields[name]!r} with {name}_device={fields[f'{name}_device']!r}")
        elif devices or path is not None:
            section = zero.setdefault(name, {})
            _put(section, "device", devices.pop() if devices else None, name, findings, place)
            _put(section, "nvme_path", path, f"{name}_nvme_path", findings, place)
        if isinstance(zero.get(name), dict):
            zero[name]["device"] = _device(zero[name].get("device", "none"))
    for name in ("gradient_accumulation_steps", "gradient_clipping"):
        _put(config, name, fields[name], name, findings, place)


def _put(section: dict[str, Any], key: str, value: Any, name: str, findings: list[str], place: str) -> None:
    """A field of the plugin goes into the configuration; "auto" and absent values give way."""
    if value is None or value == AUTO:
        return
    if section.get(key, AUTO) not in (AUTO, value):
        findings.append(f"{name}={value!r} in the script, but {section[key]!r} in {place}")
    section[key] = value


def _device(value: Any) -> Any:
    if value in (None, False, AUTO):
        return "none"
    return "cpu" if value is True else value.lower() if isinstance(value, str) else value


def _check_tree(branch: Mapping[str, Any], prefix: str, known: frozenset[str], findings: list[str]) -> None:
    for key, value in branch.items():
        name = f"{prefix}{key}"
        if name in _ABSENT:
            if _asks(value):
                findings.append(f"{name} is not in this version ({_ABSENT[name]})")
        elif key not in known:
            candidates = [*known, *(() if prefix else _FIELDS)]
            near = get_close_matches(str(key), candidates, n=1, cutoff=0.6)
            findings.append(f"unknown key {name!r}" + (f" (did you mean {prefix}{near[0]}?)" if near else ""))
        elif name in _SECTIONS:
            if isinstance(value, Mapping):
                _check_tree(value, f"{name}.", _SECTIONS[name], findings)
            elif value not in (None, False):
                findings.append(f"{name} is no mapping")
        else:
            problem = _wrong(name, value)
            if problem:
                findings.append(f"{name}={value!r} (allowed: {problem})")


def _asks(value: Any) -> bool:
    if isinstance(value, Mapping):
        return value.get("enabled", True) not in (False, AUTO) and bool(value)
    return value not in (None, False, 0, 1)


def _wrong(name: str, value: Any) -> str:
    """What would be right; empty if it is."""
    if value is None or (value == AUTO and name != "zero_optimization.stage"):
        return ""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if name == "zero_optimization.stage":
        return "" if value in (0, 1, 2, 3) and is_number else "0, 1, 2, 3"
    if name in _WHOLE or name in _SIZES:
        return "" if is_number and value == int(value) and value >= 1 else "a whole number of at least 1, or auto"
    if name == "gradient_clipping":
        return "" if is_number and 0 <= value < float("inf") else "a number of at least 0, or auto"
    if name in _BOOLEANS:
        return "" if isinstance(value, bool) else "true, false, or auto"
    if name.endswith(".device"):
        return "" if value in DEVICES else "False, True, " + ", ".join(DEVICES)
    return ""


def _check_together(config: Mapping[str, Any], findings: list[str]) -> None:
    zero = config["zero_optimization"]
    if not isinstance(zero, dict) or _wrong("zero_optimization.stage", zero.get("stage")):
        return
    stage = zero["stage"]
    for name, stages in (("offload_optimizer", (1, 2, 3)), ("offload_param", (3,))):
        section = zero.get(name) or {}
        device = section.get("device", "none")
        if device != "none" and stage not in stages:
            findings.append(
                f"{name}={device!r} with zero_stage {stage} (it needs stage {' or '.join(map(str, stages))})"
            )
        if device == "nvme" and not section.get("nvme_path"):
            findings.append(f"{name}='nvme' without {name}_nvme_path")
    enabled = [name for name in ("bf16", "fp16") if (config.get(name) or {}).get("enabled") is True]
    if len(enabled) > 1:
        findings.append("bf16 and fp16 are both enabled")
    if config.get("managed_gradient_accumulation") is False:
        findings.append("managed_gradient_accumulation=False (the accumulation window is the runtime's)")
    accumulation = (config.get("data_types") or {}).get("grad_accum_dtype")
    if stage == 1 and accumulation == "fp32":
        findings.append("data_types.grad_accum_dtype=fp32 with zero_stage 1 (use stage 2 or 3)")
