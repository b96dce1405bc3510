"""What other tools, older versions and shells write: old words, None, other bytes, other cases, ~ in paths."""

from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.config.choices import choose
from runtime.config.loader import load, require_writable
from runtime.config.locations import expanded
from runtime.config.option_kinds import Many, Text
from runtime.config.option_table import table
from runtime.config.resolve import from_command_line, from_environment, resolve
from runtime.errors import ConfigurationError

Write = Callable[..., Path]
TEXTS = [option for option in table().values() if isinstance(option.kind, Text | Many)]
NO_UTF8 = "a\udce9b"


def test_pythons_none_is_not_given_where_any_text_is_a_value(write: Write) -> None:
    for option in TEXTS:
        assert from_command_line({option.name: "None"}).values == {}
        assert from_environment({option.variable: "None"}).values == {}
    assert list(load(write("main_process_ip: None\ngpu_ids: 'None'\ncpu: true\n")).values) == ["cpu"]
    assert from_command_line({"offload_param_device": "None"}).values["offload_param_device"].value == "none"


def test_bytes_that_are_no_utf8_are_refused_with_the_name_of_their_place() -> None:
    for option in TEXTS:
        with pytest.raises(ConfigurationError, match=f"{option.flag} 'a.udce9b', allowed"):
            from_command_line({option.name: NO_UTF8})
        with pytest.raises(ConfigurationError, match=f"{option.variable} 'a.udce9b', allowed"):
            from_environment({option.variable: NO_UTF8})


@pytest.mark.parametrize("key", ["num_proceses", "NUM_PROCESSES", "num-processes", "num processes", "Num_Process"])
@pytest.mark.parametrize("more", ["", "cpu: true\n", "forerun_config: 1\n"])
def test_a_misspelt_key_is_told_the_right_one_even_if_it_stands_alone(key: str, more: str, write: Write) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load(write(f"{key}: 2\n{more}"))
    assert f"unknown key {key} (line 1), did you mean num_processes?" in str(refused.value)


def test_a_misspelt_key_of_deepspeeds_is_told_the_right_one_even_if_it_stands_alone(write: Write) -> None:
    with pytest.raises(ConfigurationError, match=r"did you mean zero_optimization\?"):
        load(write('{"zero_optimisation": {"stage": 2}}', "ds.json"))


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("distributed_type: TPU\n", "distributed_type", "XLA"),
        ("distributed_type: MPS\n", "distributed_type", "MPS"),
        ("fsdp_config:\n  fsdp_backward_prefetch_policy: BACKWARD_PRE\n", "fsdp_backward_prefetch", "BACKWARD_PRE"),
        ("ipex_config:\n  ipex: false\n", "ipex", False),
        ("ipex_config:\n  use_xpu: false\n", "use_xpu", False),
        ("mpirun_config:\n  mpirun_ccl: '1'\n", "mpirun_ccl", "1"),
    ],
)
def test_words_of_older_peers_mean_what_they_meant(text: str, name: str, value: object, write: Write) -> None:
    read = load(write(f"compute_environment: LOCAL_MACHINE\n{text}"))
    assert read.values[name].value == value
    assert choose(resolve([], read)).unavailable == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ipex_config:\n  ipex: true\n", "ipex true"),
        ("ipex_config:\n  use_xpu: true\n", "use_xpu true"),
        ("distributed_type: DATA_PARALLEL\n", "distributed_type DATA_PARALLEL"),
        ("distributed_type: MODEL_PARALLEL\n", "a word of SageMaker's"),
    ],
)
def test_what_they_ask_for_and_this_version_lacks_is_refused_by_name(text: str, said: str, write: Write) -> None:
    (refusal,) = choose(resolve([], load(write(f"compute_environment: LOCAL_MACHINE\n{text}")))).unavailable
    assert said in refusal


def test_a_path_begins_at_home_wherever_it_was_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert expanded("~/runs", "--log-dir") == tmp_path / "runs"
    with pytest.raises(ConfigurationError, match="--log-dir '~nobody-has-this-name/x'"):
        expanded("~nobody-has-this-name/x", "--log-dir")
    hostfile = resolve([from_command_line({"deepspeed_hostfile": "~nobody-has-this-name/x"})])
    with pytest.raises(ConfigurationError, match="--deepspeed-hostfile"):
        hostfile.path("deepspeed_hostfile")


def test_whether_a_file_could_be_written_is_known_beforehand_and_leaves_nothing(tmp_path: Path) -> None:
    require_writable(tmp_path / "new" / "folder" / "config.yaml")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    for path in (Path("/proc/no/config.yaml"), tmp_path / "file" / "config.yaml"):
        with pytest.raises(ConfigurationError, match="cannot be written"):
            require_writable(path)
