"""One table and one parser: every boolean, number and null means the same in every source (C20)."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime.cli.flags import normalise
from runtime.config.loader import load
from runtime.config.option_kinds import Flag, Number, Whole, Word, WrongValue, parse_text
from runtime.config.option_table import all_keys, own_keys, peer_keys, table, variables
from runtime.config.resolve import from_command_line, from_environment
from runtime.errors import ConfigurationError

FLAGS = [option for option in table().values() if isinstance(option.kind, Flag)]
BOOLEANS = {
    **dict.fromkeys(("False", "false", "FALSE", "0", "no", "off", "No", "OFF"), False),
    **dict.fromkeys(("True", "true", "1", "yes", "on", "TRUE", "Yes", "ON"), True),
}
WRONG = ("", "maybe", "2", "n", "y", "t", "none", " ")


def _from_cli(name: str, text: str) -> Any:
    (word,) = normalise([f"{table()[name].flag}={text}"])
    return from_command_line({name: word.partition("=")[2]}).values[name].value


def _from_variable(name: str, text: str) -> Any:
    return from_environment({table()[name].variable: text}).values[name].value


def _from_file(write: Callable[..., Path], key: str, content: str, name: str) -> Any:
    return load(write(content, name)).values[all_keys()[key].name].value


def test_the_values_of_the_case_are_all_covered(files: Path) -> None:
    lines = (files / "values.txt").read_text().splitlines()
    assert {"" if line == "(empty string)" else line for line in lines} <= {*BOOLEANS, *WRONG}


@pytest.mark.parametrize(("text", "value"), BOOLEANS.items())
def test_every_boolean_option_reads_every_spelling_alike_in_every_source(
    text: str, value: bool, write: Callable[..., Path]
) -> None:
    for option in FLAGS:
        assert _from_cli(option.name, text) is value
        assert _from_variable(option.name, text) is value
        if not option.in_file:
            continue
        section, _, key = option.key.rpartition(".")
        indent = "  " if section else ""
        head = f"{section}:\n" if section else ""
        for quoted in (text, f"'{text}'", f'"{text}"'):
            assert _from_file(write, option.key, f"{head}{indent}{key}: {quoted}\n", "c.yaml") is value
        data = {section: {key: text}} if section else {key: text}
        assert _from_file(write, option.key, json.dumps(data), "c.json") is value
    assert _from_file(write, "cpu", json.dumps({"cpu": value}), "c.json") is value


@pytest.mark.parametrize("text", WRONG)
def test_every_boolean_option_refuses_other_words_by_name_in_every_source(
    text: str, write: Callable[..., Path]
) -> None:
    for option in FLAGS:
        with pytest.raises(ConfigurationError) as refused:
            _from_cli(option.name, text)
        assert f"{option.flag} {text!r}, allowed: true" in str(refused.value)
        with pytest.raises(ConfigurationError) as refused:
            _from_variable(option.name, text)
        assert f"{option.variable} {text!r}, allowed: true" in str(refused.value)
        if option.in_file and not option.section:
            with pytest.raises(ConfigurationError) as refused:
                load(write(f"num_processes: 1\n{option.key}: '{text}'\n"))
            assert f"{option.key} is {text!r} (line 2), allowed: true" in str(refused.value)


def test_json_strings_are_no_truth(files: Path) -> None:
    values = load(files / "fsdp.json").values
    assert values["fsdp_offload_params"].value is False
    assert values["fsdp_cpu_ram_efficient_loading"].value is False


@pytest.mark.parametrize("text", ["1e-5", "'1e-5'", "1.0e-5", "0.00001", '"0.00001"'])
def test_numbers_mean_the_same_quoted_or_not_and_in_every_source(text: str, write: Callable[..., Path]) -> None:
    plain = text.strip("'\"")
    assert _from_file(write, "monitor_interval", f"monitor_interval: {text}\n", "c.yaml") == 1e-5
    assert _from_cli("monitor_interval", plain) == 1e-5
    assert _from_variable("monitor_interval", plain) == 1e-5
    assert _from_file(write, "monitor_interval", json.dumps({"monitor_interval": 1e-5}), "c.json") == 1e-5


@pytest.mark.parametrize(
    ("text", "value"), [("010", 10), ("1e2", 100), ("+7", 7), ("7.0", 7), ("4096", 4096), ("'8'", 8)]
)
def test_whole_numbers_are_decimal_everywhere(text: str, value: int, write: Callable[..., Path]) -> None:
    """YAML 1.1 reads 010 as 8 and 1:30 as 90; here no syntax changes a number."""
    assert _from_file(write, "num_processes", f"num_processes: {text}\n", "c.yaml") == value
    assert _from_cli("num_processes", text.strip("'")) == value


@pytest.mark.parametrize(
    "text", ["0", "-1", "4097", "1.5", "1:30", "0x10", "1_000", "two", "nan", "inf", "1e400", "\u0663"]
)
def test_other_numbers_of_processes_are_refused_in_every_source(text: str, write: Callable[..., Path]) -> None:
    for read in (_from_cli, _from_variable):
        with pytest.raises(ConfigurationError, match="whole number from 1 to 4096"):
            read("num_processes", text)
    with pytest.raises(ConfigurationError, match="whole number from 1 to 4096"):
        load(write(f"num_processes: {text}\n"))


@pytest.mark.parametrize("text", ["null", "~", "", "Null", "NULL"])
def test_null_is_not_given(text: str, write: Callable[..., Path]) -> None:
    assert "num_processes" not in load(write(f"cpu: true\nnum_processes: {text}\n")).values
    assert "mixed_precision" not in load(write(json.dumps({"cpu": True, "mixed_precision": None}), "c.json")).values
    if text:
        assert from_command_line({"num_processes": text}).values == {}
        assert from_environment({"FORERUN_NUM_PROCESSES": text}).values == {}


def test_the_table_is_consistent() -> None:
    assert len(own_keys()) == len([option for option in table().values() if option.in_file])
    assert len(variables()) == len(table())
    claimed = [key for option in table().values() for key in option.peer]
    assert len(claimed) == len(set(claimed)) == len(peer_keys())
    for key, option in all_keys().items():
        for keys in (own_keys(), peer_keys()):
            assert keys.get(key, option) is option
    for option in table().values():
        assert option.help
        assert (option.effect == "built" and not option.accepts) or option.remark, option.name
        if option.default is not None and not isinstance(option.default, tuple):
            assert parse_text(option, str(option.default)) == option.default, option.name


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Whole(1), ""),
        (Number(), "1_0"),
        (Number(), "nan"),
        (Word(("no", "a")), "off"),
        (Word(("a",), no_word="a"), "n"),
    ],
)
def test_kinds_refuse(kind: Any, text: str) -> None:
    with pytest.raises(WrongValue):
        kind.parse(text)
