"""DeepSpeed's settings: each key and value known or refused by name, whoever gives them."""

import json
from pathlib import Path
from typing import Any

import pytest

from runtime import DeepSpeedPlugin
from runtime.env import read_environment
from runtime.errors import ConfigurationError
from runtime.mesh import ParallelDims
from runtime.options import GradientAccumulationPlugin, accumulation_settings, settle_precision
from runtime.strategies import deepspeed_loading
from runtime.strategies.deepspeed_options import as_plugins, plugin_from_words, settle
from runtime.strategies.registry import choose_strategy

DOCUMENT = {"zero_stage": 2, "offload_optimizer": False, "gradient_accumulation_steps": 4}
FILE = {
    "fp16": {"enabled": False},
    "bf16": {"enabled": True},
    "zero_optimization": {
        "stage": 2,
        "offload_optimizer": {"device": "cpu"},
        "allgather_bucket_size": 5e8,
        "reduce_bucket_size": 5e8,
    },
}


def _environment(world_size: int = 2, **words: str) -> Any:
    ranks = {"WORLD_SIZE": str(world_size), "RANK": "0"}
    return read_environment({**ranks, **{f"FORERUN_{name.upper()}": word for name, word in words.items()}})


def test_the_documents_dict_is_accepted() -> None:
    plugin = as_plugins(DOCUMENT)["default"]
    assert (plugin.stage, plugin.offload_optimizer, plugin.offload_param) == (2, "none", "none")
    assert settle(DOCUMENT, _environment(), None).said.accumulation == 4


@pytest.mark.parametrize(
    ("word", "device"), [(False, "none"), (True, "cpu"), ("cpu", "cpu"), ("none", "none"), ("CPU", "cpu")]
)
def test_offloading_has_several_spellings(word: Any, device: str) -> None:
    assert DeepSpeedPlugin(zero_stage=3, offload_param=word).offload_param == device
    assert DeepSpeedPlugin(offload_optimizer_device=str(device), offload_optimizer=word).offload_optimizer == device
    nvme = DeepSpeedPlugin(zero_stage=3, offload_optimizer="nvme", offload_optimizer_nvme_path="/fast")
    assert nvme.config["zero_optimization"]["offload_optimizer"] == {"device": "nvme", "nvme_path": "/fast"}


def test_the_documents_file_is_read_and_auto_is_left_to_the_script(tmp_path: Path) -> None:
    path = tmp_path / "deepspeed_config.json"
    path.write_text(json.dumps(FILE))
    plugin = DeepSpeedPlugin(path)
    assert (plugin.stage, plugin.offload_optimizer, plugin.precision) == (2, "cpu", "bf16")
    auto = DeepSpeedPlugin(dict.fromkeys(("train_batch_size", "gradient_accumulation_steps"), "auto"))
    assert (auto.stage, auto.precision, auto.number("train").value, auto.number("accumulation").value) == (0,) + (
        None,
    ) * 3
    filled = DeepSpeedPlugin({"gradient_accumulation_steps": "auto"}, gradient_accumulation_steps=3)
    assert filled.number("accumulation").value == 3


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"zero_stge": 2}, ["unknown key 'zero_stge' (did you mean zero_stage?)"]),
        ({"zero_stage": 4}, ["zero_optimization.stage=4 (allowed: 0, 1, 2, 3)"]),
        ({"zero_stage": "2"}, ["zero_optimization.stage='2'"]),
        ({"offload_optimizer": "disk"}, ["device='disk' (allowed: False, True, none, cpu, nvme)"]),
        ({"zero_stage": 2, "offload_param": True}, ["offload_param='cpu' with zero_stage 2 (it needs stage 3)"]),
        ({"zero_stage": 0, "offload_optimizer": True}, ["with zero_stage 0 (it needs stage 1 or 2 or 3)"]),
        ({"offload_optimizer": "nvme"}, ["offload_optimizer='nvme' without offload_optimizer_nvme_path"]),
        ({"offload_optimizer": True, "offload_optimizer_device": "none"}, ["offload_optimizer_device='none'"]),
        ({"gradient_accumulation_steps": 0}, ["gradient_accumulation_steps=0 (allowed: a whole number"]),
        ({"gradient_clipping": -1.0}, ["gradient_clipping=-1.0"]),
        ({"zero_optimization": {"stge": 1}}, ["unknown key 'zero_optimization.stge' (did you mean"]),
        ({"hf_ds_config": {"zero_optimization": {"stage": 3}}, "zero_stage": 2}, ["zero_stage=2 in the script, but 3"]),
        ({"bf16": {"enabled": True}, "fp16": {"enabled": True}}, ["bf16 and fp16 are both enabled"]),
        ({"optimizer": {"type": "Adam"}}, ["optimizer is not in this version (build the optimizer in the script)"]),
        ({"tensor_parallel": {"autotp_size": 2}}, ["tensor_parallel is not in this version"]),
        ({"zero3_init_flag": True, "zero_stge": 1}, ["zero3_init_flag=True", "zero_stge"]),
        ({"hf_ds_config": "/nowhere/ds.json"}, ["/nowhere/ds.json is no DeepSpeed configuration"]),
    ],
)
def test_wrong_settings_are_all_named_with_what_is_right(settings: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigurationError) as refused:
        DeepSpeedPlugin(**settings)
    assert all(word in str(refused.value) for word in words), str(refused.value)


def test_other_things_are_refused_and_several_plugins_have_names() -> None:
    for wrong in (3, ["zero_stage"], {"a": DeepSpeedPlugin(), "zero_stage": 2}):
        with pytest.raises(ConfigurationError, match="DeepSpeedPlugin"):
            as_plugins(wrong)
    several = settle({"a": DeepSpeedPlugin(zero_stage=2), "b": DeepSpeedPlugin(zero_stage=3)}, _environment(), None)
    assert {name: plugin.stage for name, plugin in several.plugins.items()} == {"a": 2, "b": 3}
    differ = {"a": DeepSpeedPlugin(gradient_accumulation_steps=2), "b": DeepSpeedPlugin(gradient_accumulation_steps=3)}
    with pytest.raises(ConfigurationError, match=r"differ \(a: 2, b: 3\)"):
        settle(differ, _environment(), None)
    with pytest.raises(ConfigurationError, match="parallelism_config with data_shard"):
        settle({}, _environment(), ParallelDims(data_shard=2))


def test_the_launch_chooses_by_its_variables_and_the_script_wins(tmp_path: Path) -> None:
    words = {"strategy": "deepspeed", "zero_stage": "3", "offload_param_device": "cpu", "gradient_clipping": "0.5"}
    plugin = choose_strategy(_environment(**words), {"deepspeed_plugin": None}).options.plugins["default"]
    assert (plugin.stage, plugin.offload_param, plugin.gradient_clipping) == (3, "cpu", 0.5)
    chosen = choose_strategy(_environment(**words), {"deepspeed_plugin": DOCUMENT})
    assert (chosen.name, chosen.options.plugins["default"].stage, chosen.said.accumulation) == ("deepspeed", 2, 4)
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(FILE))
    assert plugin_from_words({"deepspeed_config_file": str(path), "zero_stage": "2"}).precision == "bf16"
    with pytest.raises(ConfigurationError, match="fsdp_plugin"):
        choose_strategy(_environment(), {"fsdp_plugin": {}, "deepspeed_plugin": DOCUMENT})


def test_batch_numbers_that_contradict_each_other_are_found_before_the_start() -> None:
    bad = {"train_batch_size": 16, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}
    with pytest.raises(ConfigurationError, match="16 != 2 x 2 x 2 = 8"):
        settle({"hf_ds_config": bad}, _environment(2), None)
    part = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2}
    assert settle({"hf_ds_config": part}, _environment(2), None).said.accumulation == 2


def test_accumulation_and_precision_have_one_source() -> None:
    assert accumulation_settings(None, None, launched=2, said=4, place="p").num_steps == 4
    assert accumulation_settings(4, None, said=4, place="p").num_steps == 4
    assert accumulation_settings(None, GradientAccumulationPlugin(sync_each_batch=True), said=4).num_steps == 4
    with pytest.raises(ConfigurationError, match="gradient_accumulation_steps=2, but 4 in p"):
        accumulation_settings(2, None, said=4, place="p")
    assert settle_precision(None, said="bf16", place="p", launched="no") == "bf16"
    with pytest.raises(ConfigurationError, match="mixed_precision='no', but 'bf16' in p"):
        settle_precision("no", said="bf16", place="p", launched="")


def test_what_is_missing_is_said_before_the_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(**needs: bool) -> str:
        return "; ".join(
            deepspeed_loading.missing_for("cpu", **{"offloads_to_nvme": False, "wants_fp16": False} | needs)
        )

    assert missing() == ""
    assert "mixed_precision='fp16' under strategy deepspeed" in missing(wants_fp16=True)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(deepspeed_loading.sys, "executable", str(tmp_path / "python"))
    assert missing() == ""  # training needs no compiled part
    assert "no C++ compiler is on PATH" in missing(offloads_to_nvme=True)
    assert "ninja is not on PATH" in missing(offloads_to_nvme=True)
    monkeypatch.setattr(deepspeed_loading, "find_spec", lambda name: None)
    assert 'pip install "forerun[train]"' in missing()
    assert "not on mps" in "; ".join(deepspeed_loading.missing_for("mps", offloads_to_nvme=False, wants_fp16=False))
