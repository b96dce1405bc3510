"""Files: ours, Accelerate's and DeepSpeed's; every key known or refused by name, every dump read back."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from runtime.config.choices import choose
from runtime.config.loader import dump, load, save
from runtime.config.resolve import resolve
from runtime.errors import ConfigurationError

Write = Callable[..., Path]

PEER = """
compute_environment: LOCAL_MACHINE
debug: false
deepspeed_config:
  deepspeed_multinode_launcher: standard
  gradient_accumulation_steps: 4
  gradient_clipping: 1.0
  offload_optimizer_device: none
  offload_param_device: none
  zero3_init_flag: false
  zero_stage: 2
distributed_type: DEEPSPEED
downcast_bf16: 'no'
dynamo_config:
  dynamo_backend: INDUCTOR
  dynamo_mode: default
enable_cpu_affinity: false
fp8_config:
  backend: TE
  amax_history_length: 1024
  amax_compute_algorithm: max
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: BertLayer,GPT2Block
  fsdp_version: 2
  offload_params: False
machine_rank: 0
main_process_ip: 10.0.0.1
main_process_port: 29500
main_training_function: main
megatron_lm_config:
  megatron_lm_tp_degree: 2
  pp_degree: 1
mixed_precision: bf16
mpirun_config: {}
num_machines: 1
num_processes: 8
parallelism_config:
  parallelism_config_tp_size: 2
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
"""


def test_an_unquoted_no_is_the_precision_no(files: Path) -> None:
    """C19"""
    read = load(files / "plain.yaml")
    assert read.form == "accelerate"
    assert read.values["mixed_precision"].value == "no"
    assert read.values["downcast_bf16"].value is False
    assert read.values["cpu"].value is True


@pytest.mark.parametrize("word", ["no", "No", "NO", "off", "Off", "false", "False", "'no'", '"off"'])
def test_no_and_off_and_false_are_the_precision_no(word: str, write: Write, tmp_path: Path) -> None:
    """C19; and saved again the word is quoted, for readers to whom no is a boolean."""
    values = {name: given.value for name, given in load(write(f"mixed_precision: {word}\n")).values.items()}
    assert values == {"mixed_precision": "no"}
    assert "mixed_precision: 'no'\n" in dump(values)
    assert yaml.safe_load(dump(values))["mixed_precision"] == "no"
    save(tmp_path / "again.yaml", values)
    assert load(tmp_path / "again.yaml").values["mixed_precision"].value == "no"


@pytest.mark.parametrize("word", ["null", "~", "", "Null"])
def test_a_null_precision_is_the_default_and_never_the_word_none(word: str, write: Write) -> None:
    read = load(write(f"num_processes: 1\nmixed_precision: {word}\n"))
    assert resolve([], read)["mixed_precision"].value == "no"
    assert resolve([], read)["mixed_precision"].origin == "default"
    assert resolve([], load(write("num_processes: 1\n")))["mixed_precision"].origin == "default"


@pytest.mark.parametrize("word", ["n", "yes", "on", "true", "y", "None", "fp61", "'null '"])
def test_other_words_are_refused_with_key_line_and_choice(word: str, write: Write) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load(write(f"num_processes: 1\nmixed_precision: {word}\n"))
    assert f"mixed_precision is {word.strip(chr(39))!r} (line 2), allowed: no, fp16, bf16, fp8" in str(refused.value)


def test_every_section_of_the_peers_file_is_read(write: Write) -> None:
    read = load(write(PEER))
    values = {name: given.value for name, given in read.values.items()}
    assert read.form == "accelerate"
    assert values["zero_stage"] == 2
    assert values["offload_optimizer_device"] == "none"
    assert values["gradient_clipping"] == 1.0
    assert values["gradient_accumulation_steps"] == 4
    assert values["fsdp_transformer_layer_cls_to_wrap"] == ("BertLayer", "GPT2Block")
    assert values["fsdp_offload_params"] is False
    assert values["megatron_lm_tp_degree"] == 2
    assert values["megatron_lm_pp_degree"] == 1
    assert values["fp8_amax_history_len"] == 1024
    assert values["fp8_backend"] == "te"
    assert values["dynamo_backend"] == "inductor"
    assert values["parallelism_config_tp_size"] == 2
    assert values["downcast_bf16"] is False
    assert "env" not in values
    assert read.values["zero_stage"].place.endswith("config.yaml:11")
    refusals = " ".join(choose(resolve([], read)).unavailable)
    for word in ("dynamo_backend inductor", "parallelism_config_tp_size 2"):
        assert word in refusals


def test_a_file_of_the_peers_becomes_one_of_ours_with_the_same_values(write: Write, tmp_path: Path) -> None:
    values = {name: given.value for name, given in load(write(PEER)).values.items()}
    save(tmp_path / "ours.yaml", values)
    again = load(tmp_path / "ours.yaml")
    assert again.form == "forerun"
    assert {name: given.value for name, given in again.values.items()} == values
    assert dump({name: given.value for name, given in again.values.items()}) == (tmp_path / "ours.yaml").read_text()


def test_the_peers_minus_one_for_processes_is_not_given(write: Write) -> None:
    assert "num_processes" not in load(write("distributed_type: MULTI_CPU\nnum_processes: -1\n")).values


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("num_proceses: 2\ncpu: true\n", "unknown key num_proceses (line 1), did you mean num_processes?"),
        ("cpu: true\nfsdp_config:\n  fsdp_shrading_strategy: 1\n", "did you mean fsdp_config.fsdp_sharding_strategy?"),
        ("deepspeed_config: yes\n", "deepspeed_config (line 1) is a section"),
        ("cpu: true\nnum_processes: [1]\n", "num_processes is a mapping or list (line 2)"),
        ("cpu: true\nnum_processes: 2\ncpu: true\n", "'cpu' stands at"),
        ("cpu: true\nuse_cpu: false\n", "use_cpu is False (line 2), but True at"),
        ("cpu: &a true\ntpu: *a\n", "is used a second time by an alias"),
        ("cpu: !!python/object/apply:os.system [ls]\n", "has the tag"),
        ("forerun_config: 2\ncpu: true\n", "forerun_config is '2'. Allowed: 1. Next: install a newer forerun"),
        ("forerun_config: 1\nuse_cpu: true\n", "unknown key use_cpu"),
        ("- cpu\n", "its top level is no mapping"),
        ("cpu\n", "its top level is no mapping"),
        ("cpu: [\n", "is no YAML"),
        ("cpu: true\n---\ncpu: true\n", "is no YAML"),
        ("version: '3'\nservices: {web: {image: x}}\n", "none of its keys is known (version, services)"),
        ('{"cpu": true, "cpu": false}', "'cpu' stands there twice"),
        ('{"num_processes": NaN}', "num_processes is 'NaN'"),
        ('{"cpu": ', "is no JSON"),
        ("? [a]\n: 1\n", "has a key that is no word"),
        ("{" * 3000, "is no JSON"),
        ("[" * 3000, "nested too deeply"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(text: str, said: str, write: Write) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load(write(text))
    assert said in str(refused.value)


def test_all_problems_of_a_file_are_told_at_once(write: Write) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load(write("num_processes: 0\nmixed_precision: n\nnope: 1\n"))
    for word in ("num_processes is '0'", "mixed_precision is 'n'", "unknown key nope"):
        assert word in str(refused.value)


def test_unreadable_files_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "huge").write_bytes(b"#" * (2**20 + 1))
    for path, said in (
        (tmp_path / "nope.yaml", "does not exist"),
        (tmp_path, "is a directory"),
        (tmp_path / "binary", "is no UTF-8 text"),
        (tmp_path / "huge", "too many"),
        (Path("/dev/zero"), "is no regular file"),
        (tmp_path / "a\0b", "cannot be read"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            load(path)


def test_an_empty_file_says_nothing(write: Write) -> None:
    for text in ("", "# nothing\n", "{}", "---\n"):
        assert load(write(text)).values == {}
    assert load(Path("/dev/null")).values == {}


def test_a_file_that_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        save(tmp_path / "file" / "config.yaml", {"cpu": True})
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigurationError, match="cannot be written"):
        save(tmp_path / "folder", {"cpu": True})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]
