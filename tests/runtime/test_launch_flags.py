"""The words before the script, derived from the table; the words after it are the script's."""

import pytest

from runtime.cli.flags import knows_options, misplaced, normalise
from runtime.config.option_kinds import FALSE_WORDS, TRUE_WORDS, Flag
from runtime.config.option_table import table
from runtime.errors import ConfigurationError


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("--cpu t.py", "--cpu=true t.py"),
        ("--cpu false t.py", "--cpu=false t.py"),
        ("--cpu=0 t.py", "--cpu=0 t.py"),
        ("--no-cpu t.py", "--cpu=false t.py"),
        ("--no_tpu_cluster t.py", "--tpu-cluster=false t.py"),
        ("--no_python t.py", "--no-python=true t.py"),
        ("--num_processes 2 --num-machines=1 t.py", "--num-processes=2 --num-machines=1 t.py"),
        ("-m pkg.mod -m", "--module=true pkg.mod -m"),
        ("-q -t 3 t.py", "--quiet=true --tee=3 t.py"),
        ("--vm a --vm b t.py", "--vm=a,b t.py"),
        ("--num_processes 2 --num_processes 2 t.py", "--num-processes=2 t.py"),
        ("t.py --cpu --num_processes 9", "t.py --cpu --num_processes 9"),
        ("--cpu -- t.py", "--cpu=true -- t.py"),
        ("--nope 3 t.py", "--nope 3 t.py"),
        ("--cpu --nope t.py", "--cpu=true --nope t.py"),
        ("--num_processes", "--num_processes"),
        ("--CPU t.py", "--CPU t.py"),
        ("", ""),
    ],
)
def test_words_become_one_form(typed: str, read: str) -> None:
    assert normalise(typed.split()) == read.split()


def test_every_flag_takes_every_word_attached_and_apart() -> None:
    for option in table().values():
        if not isinstance(option.kind, Flag):
            continue
        for word in (*TRUE_WORDS, *FALSE_WORDS, "True", "FALSE"):
            for spelled in (option.flag, f"--{option.name}"):
                assert normalise([spelled, word, "t.py"]) == [f"{option.flag}={word}", "t.py"]
                assert normalise([f"{spelled}={word}", "t.py"]) == [f"{option.flag}={word}", "t.py"]
        assert normalise([option.flag, "maybe.py"]) == [f"{option.flag}=true", "maybe.py"]


@pytest.mark.parametrize("typed", ["--num_processes 2 --num-processes 3", "--cpu --no-cpu", "--cpu --cpu=false"])
def test_two_values_for_one_option_are_an_error(typed: str) -> None:
    with pytest.raises(ConfigurationError, match="is given twice"):
        normalise([*typed.split(), "t.py"])


def test_options_of_a_launcher_after_the_script_are_noticed() -> None:
    words = [
        "--num_processes",
        "2",
        "--main-process-port=1",
        "--mixed_precision",
        "fp16",
        "--env",
        "x",
        "num_processes",
    ]
    assert misplaced(words) == ["--num_processes", "--main-process-port=1"]


@pytest.mark.parametrize(
    ("source", "knows"),
    [
        ("print(1)", False),
        ("parser.add_argument('--num_processes')", True),
        ("parser.add_argument('--num-processes')", True),
        ("def main(num_processes=1): ...", True),
        ("parser.add_argument('--num_procs')", False),
        ("import sys; print(sys.argv[1:])", True),
    ],
)
def test_a_script_knows_an_option_that_it_names_or_reads_by_itself(source: str, knows: bool) -> None:
    assert knows_options([source], ["--num_processes=2"]) is knows
    assert knows_options([source], ["--num_processes", "--gpu-ids"]) is ("argv" in source)
    assert knows_options(["import options", source], ["--num_processes"]) is (knows and "argv" not in source)
