"""What a training table and a hold-out table share: equal rows, equal text, equal groups, reused ids."""

import unicodedata
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_TEXT_SHARE = 0.5


@dataclass(frozen=True)
class Table:
    """Columns of equal length; `ids` and `labels` apart, `groups` if rows belong to persons or the like."""

    ids: Sequence[Any]
    labels: Sequence[Any]
    features: Mapping[str, Sequence[Any]]
    groups: Sequence[Any] | None = None


@dataclass(frozen=True)
class Overlap:
    """Hold-out row numbers (from 0) by what they share with the training table.

    `normalised` includes `exact`; both compare content without id, label and group. `conflicting` are those of
    `normalised` whose label differs from every equal training row's. `reused_ids` share an id but not the content.
    """

    exact: tuple[int, ...] = ()
    normalised: tuple[int, ...] = ()
    conflicting: tuple[int, ...] = ()
    grouped: tuple[int, ...] = ()
    reused_ids: tuple[int, ...] = ()
    compared: tuple[str, ...] = ()
    shared_groups: tuple[Any, ...] = ()

    @property
    def leaking(self) -> frozenset[int]:
        """Every hold-out row whose content or group the training table has."""
        return frozenset(self.normalised) | frozenset(self.grouped)


def find_overlap(train: Table, holdout: Table) -> Overlap:
    """Compare over all common feature columns together, and over each column of free text alone."""
    common = [name for name in holdout.features if name in train.features]
    keys: list[tuple[str, ...]] = [(name,) for name in common if _is_free_text(holdout.features[name])]
    if common and tuple(common) not in keys:
        keys.insert(0, tuple(common))
    num_rows = len(holdout.ids)
    exact: set[int] = set()
    normalised: set[int] = set()
    agreeing: set[int] = set()
    for names in keys:
        exact |= set(_matches(train, holdout, names, normalise=False))
        for row, labels in _matches(train, holdout, names, normalise=True).items():
            normalised.add(row)
            if holdout.labels[row] in labels:
                agreeing.add(row)
    exact &= normalised
    grouped, shared = _shared_groups(train, holdout)
    known_ids = set(train.ids)
    reused = {row for row in range(num_rows) if holdout.ids[row] in known_ids} - normalised if common else set()
    return Overlap(
        exact=tuple(sorted(exact)),
        normalised=tuple(sorted(normalised)),
        conflicting=tuple(sorted(normalised - agreeing)),
        grouped=grouped,
        reused_ids=tuple(sorted(reused)),
        compared=tuple(" + ".join(names) if len(names) <= 4 else f"{len(names)} columns" for names in keys),
        shared_groups=shared,
    )


def normalise_value(value: Any) -> Any:
    """Text in NFC, without case, with single spaces; anything else as it is."""
    if not isinstance(value, str):
        return value
    text = unicodedata.normalize("NFC", value).casefold()
    return unicodedata.normalize("NFC", " ".join(text.split()))


def _matches(train: Table, holdout: Table, names: tuple[str, ...], *, normalise: bool) -> dict[int, set[Any]]:
    """Hold-out row -> labels of the training rows with the same content."""
    seen: dict[tuple[Any, ...], set[Any]] = defaultdict(set)
    for label, row in zip(train.labels, _rows(train, names, normalise), strict=True):
        seen[row].add(label)
    rows = enumerate(_rows(holdout, names, normalise))
    return {number: seen[row] for number, row in rows if row in seen and any(v not in (None, "") for v in row)}


def _rows(table: Table, names: tuple[str, ...], normalise: bool) -> list[tuple[Any, ...]]:
    columns = [table.features[name] for name in names]
    if normalise:
        columns = [[normalise_value(v) for v in column] for column in columns]
    return [tuple(_hashable(v) for v in row) for row in zip(*columns, strict=True)]


def _hashable(value: Any) -> Any:
    return repr(value) if isinstance(value, list | dict) else value


def _shared_groups(train: Table, holdout: Table) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    if train.groups is None or holdout.groups is None:
        return (), ()
    known = {g for g in train.groups if g is not None and g != ""}
    rows = tuple(row for row, group in enumerate(holdout.groups) if group in known)
    shared = tuple(dict.fromkeys(holdout.groups[row] for row in rows))
    return rows, shared


def _is_free_text(values: Sequence[Any]) -> bool:
    """Mostly different texts with spaces in them: prose, not a category."""
    texts = [v for v in values if isinstance(v, str) and v]
    if not texts or len(texts) < _TEXT_SHARE * len(values):
        return False
    spaced = sum(1 for text in texts if len(text.split()) > 1)
    return spaced >= _TEXT_SHARE * len(texts) and len(set(texts)) > _TEXT_SHARE * len(texts)
