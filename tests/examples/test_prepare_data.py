"""The example data: the same bytes everywhere, no row in two parts, other data refused."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from examples import prepare_data

Rows = Callable[[Path], list[dict[str, str]]]
COUNTS = {"digits": (1078, 360, 359), "diabetes": (265, 89, 88)}


@pytest.mark.parametrize("data_set", ["digits", "diabetes"])
def test_files_have_the_fixed_digests(data_set: str, tmp_path: Path) -> None:
    paths = prepare_data.prepare(data_set, tmp_path)
    wanted = prepare_data.read_digests(prepare_data.DATA_SETS[data_set][1])
    assert {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in paths} == wanted
    assert [p.name for p in paths] == ["train.csv", "validation.csv", "holdout.csv"]


@pytest.mark.parametrize("data_set", ["digits", "diabetes"])
def test_every_row_is_in_exactly_one_part(data_set: str, tmp_path: Path, rows: Rows) -> None:
    parts = [rows(path) for path in prepare_data.prepare(data_set, tmp_path)]
    assert tuple(map(len, parts)) == COUNTS[data_set]
    ids = [int(row["id"]) for part in parts for row in part]
    assert sorted(ids) == list(range(sum(COUNTS[data_set])))
    features = [tuple(v for k, v in row.items() if k not in ("id", "label")) for part in parts for row in part]
    assert len(set(features)) == len(features), "the same measurements stand in two rows"


def test_every_digit_has_its_share_of_the_holdout(tmp_path: Path, rows: Rows) -> None:
    prepare_data.prepare("digits", tmp_path)
    labels = [row["label"] for row in rows(tmp_path / "holdout.csv")]
    assert all(33 <= labels.count(str(digit)) <= 38 for digit in range(10))


def test_other_data_is_refused_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header, rows, strata = prepare_data.diabetes()
    rows[0][1] += 1
    digests = prepare_data.DATA_SETS["diabetes"][1]
    monkeypatch.setitem(prepare_data.DATA_SETS, "diabetes", (lambda: (header, rows, strata), digests))
    with pytest.raises(SystemExit, match=r"train\.csv of diabetes would have digest .*constraints\.txt"):
        prepare_data.prepare("diabetes", tmp_path)
    assert not (tmp_path / "train.csv").exists()
