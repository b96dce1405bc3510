"""collate_plain: the same batches, types and errors as torch's default_collate."""

from collections import OrderedDict, namedtuple
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from runtime.data.collation import collate_plain, is_default

_Pair = namedtuple("_Pair", ["x", "y"])


class _Kept(dict[str, Any]):
    """A dict with something beside its items."""

    note = "kept"


class _Odd:
    pass


_SAMPLES: dict[str, list[Any]] = {
    "tensors": [torch.arange(3.0), torch.ones(3)],
    "scalars": [torch.tensor(1), torch.tensor(2)],
    "with gradients": [torch.ones(2, requires_grad=True), torch.zeros(2)],
    "channels last": [torch.randn(1, 3, 4, 4).to(memory_format=torch.channels_last)[0] for _ in range(2)],
    "parameters": [torch.nn.Parameter(torch.ones(2)) for _ in range(2)],
    "half": [torch.ones(2, dtype=torch.bfloat16)] * 2,
    "ints": [1, -2, 3],
    "int, then float": [1, 2.5],
    "float, then int": [0.1, 2],
    "bools": [True, False],
    "bool, then int": [True, 7],
    "floats": [0.1, float("nan")],
    "strings": ["a", "b"],
    "bytes": [b"a", b"b"],
    "arrays": [np.arange(3), np.ones(3, dtype=np.int64)],
    "numpy numbers": [np.float32(1), np.float32(2)],
    "tuples": [(torch.ones(2), 1, "a"), (torch.zeros(2), 2, "b")],
    "lists": [[torch.ones(2), 1.5], [torch.zeros(2), 2.5]],
    "tuple, then list": [(1, 2), [3, 4]],
    "empty tuples": [(), ()],
    "dicts": [{"y": 1, "x": torch.ones(2), 3: "s"}, {"x": torch.zeros(2), 3: "t", "y": 2, "more": 5}],
    "empty dicts": [{}, {}],
    "nested": [{"a": ([1, 2.0], {"b": (np.float64(2), "s")})}, {"a": ([3, 4.0], {"b": (np.float64(1), "t")})}],
    "named tuples": [_Pair(1, torch.ones(1)), _Pair(2, torch.zeros(1))],
    "ordered dicts": [OrderedDict(b=1, a=2), OrderedDict(b=3, a=4)],
    "dicts of a class": [_Kept(a=1), _Kept(a=2)],
    "read-only mappings": [MappingProxyType({"a": 1}), MappingProxyType({"a": 2})],
    "ranges": [range(2), range(2, 4)],
    "one sample": [(torch.ones(2), 3)],
}
_WRONG: dict[str, list[Any]] = {
    "no samples": [],
    "shapes differ": [torch.ones(2), torch.ones(3)],
    "sizes differ": [(1, 2), (1,)],
    "a size is missing": [(1, 2), 3],
    "kinds differ": [torch.ones(2), 1],
    "a key is missing": [{"a": 1}, {"b": 1}],
    "nothing": [None, None],
    "unknown": [_Odd(), _Odd()],
    "unknown inside": [{"a": (1, None)}, {"a": (2, None)}],
    "sparse": [torch.eye(2).to_sparse()] * 2,
    "too large": [2**70, 1],
    "string, then number, inside": [("a", 1), (torch.ones(1), "b")],
}


def _same(mine: Any, torchs: Any) -> None:
    assert type(mine) is type(torchs)
    if isinstance(torchs, torch.Tensor):
        torch.testing.assert_close(mine, torchs, rtol=0, atol=0, equal_nan=True, check_stride=True)
        assert mine.requires_grad == torchs.requires_grad
    elif isinstance(torchs, Mapping):
        assert list(mine) == list(torchs)
        _same(list(mine.values()), list(torchs.values()))
    elif isinstance(torchs, (list, tuple)):
        assert len(mine) == len(torchs)
        for one, other in zip(mine, torchs, strict=True):
            _same(one, other)
    else:
        assert mine == torchs


@pytest.mark.parametrize("samples", _SAMPLES.values(), ids=_SAMPLES)
def test_batches_are_those_of_default_collate(samples: list[Any]) -> None:
    _same(collate_plain(samples), default_collate(samples))


@pytest.mark.parametrize("samples", _WRONG.values(), ids=_WRONG)
def test_errors_are_those_of_default_collate(samples: list[Any]) -> None:
    with pytest.raises(Exception) as expected:  # whichever torch raises
        default_collate(samples)
    with pytest.raises(type(expected.value)) as raised:
        collate_plain(samples)
    assert str(raised.value) == str(expected.value)


def test_what_a_user_taught_default_collate_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_default(default_collate)
    assert not is_default(lambda samples: samples)
    monkeypatch.setitem(default_collate_fn_map, _Odd, lambda batch, *, collate_fn_map: len(batch))
    assert not is_default(default_collate)
