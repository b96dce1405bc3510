"""Plain data as JSON and back."""

import json
import math
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from runtime.checkpoint.disk import Disk
from runtime.checkpoint.manifest import MANIFEST, Manifest
from runtime.checkpoint.plain import same
from runtime.checkpoint.reader import CheckpointReader, read_parts
from runtime.checkpoint.snapshot import take
from runtime.errors import CheckpointError
from runtime.state_parts import Part

VALUES: dict[str, Any] = {
    "numbers": [1, -2, 2**80, True, False, None, 0.1, -0.0, 1e-320, math.inf, -math.inf],
    "texts": ["", "$", "\u00fc\n", "a/b"],
    "nested": {"a": ({"b": [()]}, {1, 2}), "$": "a key like a tag"},
    "keys": {1: "int", (2, "x"): "tuple", None: 0, 1.5: 1},
    "ordered": OrderedDict([("z", 1), ("a", 2)]),
    "counter": Counter("aab"),
    "default": defaultdict(list, {1: [2], "a": []}),
    "default of nothing": defaultdict(None, {"a": 1}),
    "bytes": b"\x00\xff",
    "complex": 1 + 2j,
    "dtype": torch.bfloat16,
    "device": torch.device("cpu"),
    "size": torch.Size([2, 3]),
}
TENSORS: dict[str, torch.Tensor] = {
    "float": torch.tensor([[1.5, -0.0], [math.inf, 1e-40]]),
    "scalar": torch.tensor(3),
    "empty": torch.empty(0, 4),
    "bool": torch.tensor([True, False]),
    "bf16": torch.randn(5).bfloat16(),
    "fp8": torch.randn(5).to(torch.float8_e4m3fn),
    "complex": torch.randn(3, dtype=torch.complex128),
    "conjugated": torch.randn(3, dtype=torch.complex64).conj(),
    "transposed": torch.arange(12.0).reshape(3, 4).t(),
    "expanded": torch.tensor([7.0]).expand(1000),
    "view": torch.arange(10_000)[5:9],
    "large": torch.arange(600_000, dtype=torch.float64),
}


def _saved(directory: Path, *parts: tuple[str, Any]) -> Path:
    directory.mkdir()
    given = [Part(name, lambda: None, lambda _: None) for name, _ in parts]
    snapshot = take(given, dict(parts), rank=0, replicated=True)
    assert snapshot.state is not None
    files = [*snapshot.state.write(Disk(), directory), *snapshot.own.write(Disk(), directory)]
    manifest = Manifest("x", 0, 0, 1, "single", True, 0.0, (), None, {}, tuple(files))
    (directory / MANIFEST).write_bytes(manifest.as_json())
    return directory


def _through(tmp_path: Path, value: Any) -> Any:
    return read_parts(_saved(tmp_path / "saved", ("part", value)))["part"]


@pytest.mark.parametrize("name", list(VALUES))
def test_plain_values_come_back_with_their_types(tmp_path: Path, name: str) -> None:
    found = _through(tmp_path, VALUES[name])
    assert found == VALUES[name]
    assert repr(found) == repr(VALUES[name])


@pytest.mark.parametrize("name", list(TENSORS))
def test_tensors_come_back_bit_for_bit(tmp_path: Path, name: str) -> None:
    found = _through(tmp_path, {"x": TENSORS[name], "beside": [TENSORS["float"]]})
    assert same(found["x"], TENSORS[name].resolve_conj())
    assert same(found["beside"][0], TENSORS["float"])
    assert found["x"].is_contiguous()


def test_sparse_tensors_arrays_and_numpy_numbers(tmp_path: Path) -> None:
    sparse = torch.sparse_coo_tensor([[0, 2, 0]], [1.0, 2.0, 3.0], (4,), check_invariants=True)
    array = np.arange(6, dtype=np.int16).reshape(2, 3).T
    found = _through(tmp_path, {"sparse": sparse, "array": array, "number": np.float32(0.1), "nan": math.nan})
    assert found["sparse"].is_sparse
    assert torch.equal(found["sparse"].to_dense(), sparse.to_dense())
    assert found["array"].dtype == array.dtype
    assert (found["array"] == array).all()
    assert (type(found["number"]), found["number"]) == (float, float(np.float32(0.1)))
    assert math.isnan(found["nan"])


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (Path("x"), r"\['deep'\]\[1\] is a pathlib"),
        (object(), "is a builtins.object"),
        (torch.empty(2, device="meta"), "on the meta device"),
        (np.array(["text"]), "is a numpy.ndarray"),
        ({torch.ones(1)}, "a tensor in a set"),
        (defaultdict(lambda: 1), "is a defaultdict of <function"),
        (np.zeros(2, dtype=np.longdouble), "is a numpy.ndarray"),
        (torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged), "is a tensor that is nested"),
        (TwoTensor(torch.ones(2), torch.ones(2)), "is a tensor that is a TwoTensor"),
    ],
)
def test_what_could_only_be_pickled_is_refused_by_its_place(tmp_path: Path, value: Any, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        _through(tmp_path, {"deep": [0, value]})


def test_what_holds_itself_is_refused(tmp_path: Path) -> None:
    circle: dict[str, Any] = {}
    circle["inner"] = [circle]
    with pytest.raises(CheckpointError, match="part holds itself"):
        _through(tmp_path, circle)


@pytest.mark.parametrize("dtype", [">i4", ">f8", "<u2"])
def test_arrays_of_another_byte_order_keep_their_values(tmp_path: Path, dtype: str) -> None:
    assert _through(tmp_path, np.arange(3, dtype=dtype)).tolist() == [0, 1, 2]


def test_tensors_that_are_one_stay_one_and_equal_ones_do_not_become_one(tmp_path: Path) -> None:
    shared, equal = torch.randn(3), torch.randn(3)
    found = _through(tmp_path, {"a": shared, "b": shared, "c": equal, "d": equal.clone(), "e": shared[:2]})
    assert found["a"] is found["b"]
    assert found["c"] is not found["d"]
    reader = CheckpointReader(tmp_path / "saved")
    assert sorted(reader.tensors()) == ["part/a", "part/c", "part/d", "part/e"]


def test_names_that_would_be_alike_are_kept_apart(tmp_path: Path) -> None:
    value = {"a/b": torch.zeros(1), "a": {"b": torch.ones(1)}, 1: torch.tensor([2.0]), "1": torch.tensor([3.0])}
    found = _through(tmp_path, value)
    assert [float(found["a/b"]), float(found["a"]["b"]), float(found[1]), float(found["1"])] == [0, 1, 2, 3]


def test_many_small_tensors_and_one_that_spans_chunks(tmp_path: Path) -> None:
    value = {"small": [torch.tensor([float(i)]) for i in range(3000)], "large": torch.arange(400_000.0)}
    found = _through(tmp_path, value)
    assert same(found, value)


def test_the_file_of_tensors_is_a_safetensors_file(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    directory = _saved(tmp_path / "saved", ("model_0", {"w": TENSORS["transposed"], "b": TENSORS["bf16"]}))
    found = load_file(directory / "state.rank0.safetensors")
    assert same(found["model_0/w"], TENSORS["transposed"])
    assert same(found["model_0/b"], TENSORS["bf16"])


def test_a_flipped_bit_anywhere_is_found_in_the_file_that_holds_it(tmp_path: Path) -> None:
    directory = _saved(tmp_path / "saved", ("part", {"x": torch.randn(700_000), "n": 1}))
    for name in ("state.rank0.safetensors", "state.rank0.json"):
        content = (directory / name).read_bytes()
        for at in (0, len(content) // 2, len(content) - 1):
            flipped = bytearray(content)
            flipped[at] ^= 16
            (directory / name).write_bytes(flipped)
            with pytest.raises(CheckpointError, match=f"is damaged: {name} has other content"):
                read_parts(directory)
        for wrong, words in ((content[:-1], "bytes, not"), (None, "is missing")):
            (directory / name).unlink() if wrong is None else (directory / name).write_bytes(wrong)
            with pytest.raises(CheckpointError, match=words):
                read_parts(directory)
        (directory / name).write_bytes(content)
    assert read_parts(directory)["part"]["n"] == 1


def test_a_foreign_index_is_refused(tmp_path: Path) -> None:
    from runtime.checkpoint.manifest import describe

    directory = _saved(tmp_path / "saved", ("part", {"x": torch.ones(3)}))
    path, good = directory / "state.rank0.json", json.loads((directory / "state.rank0.json").read_text())
    box = good["tensors"]["part/x"]
    wrongs: list[Any] = [
        [],
        {**good, "schema_version": 3},
        {**good, "data": "../elsewhere"},
        {**good, "tensors": {"part/x": {**box, "dtype": "load"}}},
        {**good, "tensors": {"part/x": {**box, "bytes": [0, 10**9]}}},
        {**good, "tensors": {"part/x": {**box, "offsets": [2]}}},
        {**good, "tensors": {"part/x": {"dtype": "float32", "shape": [3]}}},
        {**good, "parts": {"part": {"kind": "", "tree": {"$": "module", "v": "os"}}}},
        {**good, "parts": {"part": {"kind": "", "tree": {"$": "tensor", "v": "part/y"}}}},
    ]
    manifest = json.loads((directory / MANIFEST).read_text())
    for wrong in wrongs:
        path.write_text(json.dumps(wrong))
        seen = describe(path)
        for file in manifest["files"]:
            if file["path"] == path.name:
                file.update(size_bytes=seen.size_bytes, crc32=seen.crc32)
        (directory / MANIFEST).write_text(json.dumps(manifest))
        with pytest.raises(CheckpointError):
            read_parts(directory)
