"""Differences in words: none between equal plans, and a line that names whatever changed."""

import copy
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.config.plan import TrainingPlan
from tools.plan_difference import differences

PLAN: dict[str, Any] = {
    "argv": ["--lr", "0.01", "--train", "/data/train.csv"],
    "environment": {"PATH": "/usr/bin", "OMP_NUM_THREADS": "1"},
    "inherited": ["HF_TOKEN"],
    "code": {
        "origin": "/src",
        "entry": "train.py",
        "sha256": "a" * 64,
        "files": [
            {"path": "train.py", "sha256": "b" * 64, "size_bytes": 10, "executable": False},
            {"path": "model.py", "sha256": "c" * 64, "size_bytes": 20, "executable": True},
        ],
    },
    "data": [
        {"role": "train", "path": "/data/train.csv", "size_bytes": 5, "sha256": "d" * 64, "mode": "full"},
        {"role": "holdout", "path": "/data/test.csv", "size_bytes": 6, "sha256": "e" * 64, "mode": "sampled"},
    ],
    "interpreter": {"executable": "/venv/bin/python", "version": "3.11.7", "packages": {"torch": "2.13.0"}},
    "layout": {"num_processes": 2, "num_nodes": 1, "device": "cpu", "launcher": "local"},
    "seed": 7,
    "smoke": {"args": ["--max_steps", "12"], "num_steps": 12, "loss": "loss", "wall_time_s": 300.0},
    "evaluation": {
        "predictions": "predictions.csv",
        "holdout": "/data/test.csv",
        "train": "/data/train.csv",
        "metrics": ["accuracy", "macro_f1"],
        "baselines": ["majority"],
    },
    "ceilings": {"wall_time_s": 600.0, "max_retries": 0, "disk_bytes": 1000, "cost": 1.5, "currency": "EUR"},
    "settings": [{"name": "seed", "value": "7", "origin": "user"}],
}


def plan(data: dict[str, Any] | None = None) -> TrainingPlan:
    return TrainingPlan.model_validate(PLAN if data is None else data)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in the plan that is not a container."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        yield path
        return
    for key, inner in items:
        yield from leaves(inner, (*path, key))


LEAVES = sorted(leaves(json.loads(plan().model_dump_json())), key=str)
OTHER_WORDS = {"role": "validation", "mode": "full", "task": "regression", "origin": "assumption"}


def changed(path: tuple[Any, ...], text: str) -> TrainingPlan | None:
    """The plan with another value in one place; None where the model has no other valid one of this kind."""
    data = json.loads(plan().model_dump_json())
    place = data
    for key in path[:-1]:
        place = place[key]
    old = place[path[-1]]
    if path[-1] == "schema_version" or path == ("evaluation", "baselines", 0):
        return None
    if isinstance(path[-1], str) and path[-1] in OTHER_WORDS and path[0] != "code":
        place[path[-1]] = OTHER_WORDS[path[-1]] if old != OTHER_WORDS[path[-1]] else "sampled"
    elif path[-1] == "sha256":
        place[path[-1]] = "0" * 64
    elif isinstance(old, bool):
        place[path[-1]] = not old
    elif isinstance(old, int | float):
        place[path[-1]] = old + 1
    else:
        place[path[-1]] = f"{old or ''}{text}"
    return TrainingPlan.model_validate(data)


def test_equal_plans_do_not_differ() -> None:
    assert differences(plan(), plan(copy.deepcopy(PLAN))) == ()


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(LEAVES), st.from_regex(r"[a-z\x1b\u202e]{1,5}", fullmatch=True))
def test_every_changed_value_is_named(path: tuple[Any, ...], text: str) -> None:
    other = changed(path, text)
    if other is None:
        return
    lines = differences(plan(), other)
    assert lines
    named = {"argv": "argument", "inherited": "inherited", "files": "code"}.get(str(path[0]), str(path[0]))
    assert any(line.startswith(named.removesuffix("s")) for line in lines), (path, lines)
    if isinstance(path[-1], str) and path[0] in ("layout", "ceilings", "smoke", "interpreter", "evaluation"):
        assert any(path[-1] in line for line in lines if path[-1] != "args")
    assert not any("\x1b" in line or "\u202e" in line for line in lines)


def test_every_leaf_of_the_plan_can_be_changed_here() -> None:
    assert [path for path in LEAVES if changed(path, "x") is None] == [
        ("evaluation", "baselines", 0),
        ("schema_version",),
    ]


def test_words_for_what_a_human_looks_for() -> None:
    data = copy.deepcopy(PLAN)
    data["argv"][1] = "0.1"
    data["argv"].append("--amp")
    data["environment"] = {"PATH": "/usr/bin", "NEW": "1"}
    data["code"]["files"][0] |= {"sha256": "f" * 64, "size_bytes": 11}
    data["code"]["files"].append({"path": "new.py", "sha256": "1" * 64, "size_bytes": 1})
    data["data"].pop()
    data["smoke"]["args"] = ["--max_steps", "20"]
    data["seed"] = None
    assert differences(plan(), plan(data)) == (
        "argument 2: '0.01' -> '0.1'",
        "argument 5: (absent) -> '--amp'",
        "environment.NEW: (absent) -> '1'",
        "environment.OMP_NUM_THREADS: '1' -> (absent)",
        "code new.py added",
        "code train.py changed (10 -> 11 bytes, bbbbbbbb -> ffffffff)",
        "data holdout /data/test.csv removed",
        "seed: 7 -> none",
        "smoke argument 2: '12' -> '20'",
    )


def test_another_order_is_a_difference() -> None:
    data = copy.deepcopy(PLAN)
    data["data"].reverse()
    assert len(differences(plan(), plan(data))) == 1
    data = copy.deepcopy(PLAN)
    data["code"]["files"].reverse()
    assert len(differences(plan(), plan(data))) == 1


def test_an_evaluation_that_goes_away_is_named() -> None:
    data = copy.deepcopy(PLAN)
    data["evaluation"] = None
    assert any(line.startswith("evaluation") for line in differences(plan(), plan(data)))
