"""Checkpoints load or do not; damage of every kind is told."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

from tools.probe import checkpoint_problem


def problem(path: Path) -> str | None:
    return checkpoint_problem(sys.executable, path)


class Payload:
    """Creates a file when unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return (open, (str(self.target), "w"))


def test_whole_files_load_and_damaged_ones_do_not(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(1000)}, tmp_path / "a.pt")
    save_file({"w": torch.ones(1000)}, tmp_path / "a.safetensors")
    for name in ("a.pt", "a.safetensors"):
        assert problem(tmp_path / name) is None
        whole = (tmp_path / name).read_bytes()
        (tmp_path / f"cut-{name}").write_bytes(whole[: len(whole) // 2])
        assert problem(tmp_path / f"cut-{name}") is not None
    (tmp_path / "empty.pt").touch()
    assert problem(tmp_path / "empty.pt") == "empty.pt is empty"
    assert problem(tmp_path / "absent.pt") == "it does not exist"
    torch.save({"step": 3}, tmp_path / "none.pt")
    assert problem(tmp_path / "none.pt") == "it loads, but holds no tensor"


def test_a_pickle_that_runs_code_is_refused_and_not_run(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2), "x": Payload(tmp_path / "ran")}, tmp_path / "evil.pt")
    said = problem(tmp_path / "evil.pt")
    assert said is not None
    assert "more than tensors" in said
    assert not (tmp_path / "ran").exists()


def test_a_directory_with_a_foreign_side_file_loads_by_its_weights(tmp_path: Path) -> None:
    save_file({"w": torch.ones(4)}, tmp_path / "model.safetensors")
    torch.save(Payload(tmp_path / "ran"), tmp_path / "training_args.bin")
    assert problem(tmp_path) is None
    (tmp_path / "optimizer.pt").write_bytes(b"PK\x03\x04 cut")
    said = problem(tmp_path)
    assert said is not None
    assert "optimizer.pt is damaged" in said


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    save_file({"w": torch.ones(4)}, tmp_path / "model-1.safetensors")
    index = {"weight_map": {"w": "model-1.safetensors", "v": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    said = problem(tmp_path)
    assert said is not None
    assert "model-2.safetensors" in said


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled, unavailable or uninitialized")
def test_a_distributed_checkpoint_is_read_piece_by_piece(tmp_path: Path) -> None:
    path = tmp_path / "dcp"
    dcp.save({"w": torch.ones(50, 50), "n": 3}, checkpoint_id=str(path), no_dist=True)
    assert problem(path) is None
    part = next(path.glob("*.distcp"))
    whole = part.read_bytes()
    part.write_bytes(whole[:-200])
    said = problem(path)
    assert said is not None
    assert "is cut" in said
    part.unlink()
    said = problem(path)
    assert said is not None
    assert "is missing" in said


def test_a_hostile_metadata_file_is_not_unpickled(tmp_path: Path) -> None:
    import pickle

    (tmp_path / ".metadata").write_bytes(pickle.dumps(Payload(tmp_path / "ran")))
    said = problem(tmp_path)
    assert said is not None
    assert "was not loaded" in said
    assert not (tmp_path / "ran").exists()


def test_an_empty_directory_is_no_checkpoint(tmp_path: Path) -> None:
    assert problem(tmp_path) == "the directory is empty"
    (tmp_path / "notes.txt").write_text("x")
    assert problem(tmp_path) == "it loads, but holds no tensor"


def test_a_checkpoint_of_our_runtime_is_held_to_its_manifest(tmp_path: Path) -> None:
    script = tmp_path / "save.py"
    script.write_text(
        "import sys, torch\nfrom runtime import Accelerator\n"
        "accelerator = Accelerator(cpu=True)\nmodel = torch.nn.Linear(3, 2)\n"
        "model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))\n"
        "accelerator.save_state(sys.argv[1])\n"
    )
    path = tmp_path / "saved"
    subprocess.run([sys.executable, script, path], check=True, timeout=55, cwd=tmp_path)
    assert json.loads((path / "manifest.json").read_text())["format"] == "forerun-checkpoint"
    assert problem(path) is None
    weights = next(p for p in sorted(path.iterdir()) if p.name == "state.rank0.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    said = problem(path)
    assert said is not None
    assert f"{weights.name} is not the file" in said
    weights.unlink()
    assert problem(path) == f"{weights.name} is missing"


def test_a_manifest_of_somebody_else_is_no_obstacle(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(4)}, tmp_path / "model.pt")
    (tmp_path / "manifest.json").write_text("[1, 2]")
    assert problem(tmp_path) is None
