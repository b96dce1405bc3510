"""Foreign files that hold more than data: refused by the name of the class, and nothing of them runs."""

import argparse
import collections
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from runtime.checkpoint.foreign.accelerate_folder import read_accelerate_folder
from runtime.checkpoint.foreign.deepspeed_folder import read_deepspeed_folder
from runtime.checkpoint.foreign.distributed_folder import DistributedFolder
from runtime.checkpoint.foreign.plain_file import NUMPY, load_plain
from runtime.errors import CheckpointError


class Trap:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_a_trap_is_named_and_not_run(tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    for number, content in enumerate([Trap(sprung), {"state": [Trap(sprung)]}]):
        path = tmp_path / f"{number}.bin"
        torch.save(content, path)
        with pytest.raises(CheckpointError, match=r"posix\.mkdir, and was not unpickled"):
            load_plain(path, allowed=NUMPY)
    plain = tmp_path / "plain.pkl"
    plain.write_bytes(pickle.dumps(Trap(sprung)))
    with pytest.raises(CheckpointError, match=r"plain\.pkl"):
        load_plain(plain, allowed=NUMPY)
    assert not sprung.exists()


@pytest.mark.parametrize("name", ["optimizer.bin", "scheduler.bin", "scaler.pt", "custom_checkpoint_0.pkl"])
def test_a_trap_anywhere_in_a_folder_of_accelerate(tmp_path: Path, name: str) -> None:
    sprung = tmp_path / "sprung"
    torch.save({"weight": torch.zeros(2)}, tmp_path / "pytorch_model.bin")
    torch.save({"state": {}, "param_groups": [{"params": [0]}]}, tmp_path / "optimizer.bin")
    torch.save(Trap(sprung), tmp_path / name)
    with pytest.raises(CheckpointError, match=rf"{name.replace('.', chr(92) + '.')} holds objects of posix\.mkdir"):
        read_accelerate_folder(tmp_path, rank=0)
    assert not sprung.exists()


def test_a_trap_among_random_states_refuses_the_folder(tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    torch.save({"weight": torch.zeros(2)}, tmp_path / "pytorch_model.bin")
    torch.save({"random_state": Trap(sprung)}, tmp_path / "random_states_0.pkl")
    with pytest.raises(CheckpointError, match=r"posix\.mkdir"):
        read_accelerate_folder(tmp_path, rank=0)
    assert not sprung.exists()


def test_a_trap_in_a_folder_of_deepspeed(tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    torch.save({"module": {}, "client": Trap(sprung)}, tmp_path / "mp_rank_00_model_states.pt")
    with pytest.raises(CheckpointError, match=r"posix\.mkdir"):
        read_deepspeed_folder(tmp_path, rank=0)
    assert not sprung.exists()


def test_a_trap_in_the_metadata_of_a_distributed_folder(tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Trap(sprung)))
    with pytest.raises(CheckpointError, match=r"posix\.mkdir, which no checkpoint needs"):
        DistributedFolder(tmp_path)
    (tmp_path / ".metadata").write_bytes(b"cbuiltins\neval\n(S'1'\ntR.")
    with pytest.raises(CheckpointError, match=r"builtins\.eval"):
        DistributedFolder(tmp_path)
    assert not sprung.exists()


def test_numpy_numbers_and_arrays_are_read(tmp_path: Path) -> None:
    values = {
        "array": np.arange(6, dtype=np.uint32).reshape(2, 3),
        "number": np.float64(0.5),
        "count": np.int64(3),
        "ordered": collections.OrderedDict(a=1),
    }
    torch.save(values, tmp_path / "values.pkl")
    loaded = load_plain(tmp_path / "values.pkl", allowed=NUMPY)
    assert np.array_equal(loaded["array"], values["array"])
    assert (loaded["number"], loaded["count"], loaded["ordered"]) == (0.5, 3, {"a": 1})


def test_an_array_of_objects_is_refused(tmp_path: Path) -> None:
    torch.save(np.array([Trap(tmp_path / "sprung")], dtype=object), tmp_path / "values.pkl")
    with pytest.raises(CheckpointError):
        load_plain(tmp_path / "values.pkl", allowed=NUMPY)
    assert not (tmp_path / "sprung").exists()


def test_another_class_is_named(tmp_path: Path) -> None:
    torch.save({"args": argparse.Namespace(lr=1)}, tmp_path / "args.pt")
    with pytest.raises(CheckpointError, match=r"args\.pt holds objects of argparse\.Namespace"):
        load_plain(tmp_path / "args.pt")
