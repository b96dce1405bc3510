"""`forerun checkpoint` and `forerun merge-weights` on checkpoints that two ranks and one process have written."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pexpect
import pytest

from agent_server.cli.app import main
from runtime.checkpoint.selection import complete_checkpoints

_SOURCE = Path(__file__).parents[3]
_WRITE = """
import sys, torch
from torch import nn
from runtime import Accelerator, FullyShardedDataParallelPlugin, ProjectConfiguration
torch.set_num_threads(1)

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(5, 3)
        self.last = nn.Linear(3, 5, bias=False)
        self.last.weight = self.words.weight
    def forward(self, x):
        return self.last(self.words(x))

root = sys.argv[1]
for name, plugin in (("whole", None), ("sharded", FullyShardedDataParallelPlugin())):
    project = ProjectConfiguration(project_dir=f"{root}/{name}", automatic_checkpoint_naming=True)
    accelerator = Accelerator(cpu=True, project_config=project, fsdp_plugin=plugin)
    model = Tied()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    for _ in range(3):
        accelerator.backward(model(torch.tensor([1, 2])).square().sum())
        optimizer.step()
        optimizer.zero_grad()
        accelerator.save_state()
accelerator.end_training()
"""

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("checkpoints")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FORERUN_")}
    done = subprocess.run(
        [sys.executable, "-c", _WRITE, str(root)],
        env=kept | {"PYTHONPATH": str(_SOURCE)},
        capture_output=True,
        text=True,
        timeout=55,
    )
    assert done.returncode == 0, done.stderr
    return root


@pytest.fixture
def project(written: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    return Path(shutil.copytree(written / "whole", tmp_path / "project"))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.setattr(sys, "argv", ["forerun", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return int(left.value.code or 0), captured.out, captured.err

    return call


def test_inspect_shows_what_a_checkpoint_holds(project: Path, run: Run) -> None:
    code, out, _ = run("checkpoint", "inspect", project)
    assert code == 0
    for words in ("checkpoint_0", "checkpoint_2", "single (replicated)", "optimizer_0", "AdamW", "version of torch"):
        assert words in out
    code, out, _ = run("checkpoint", "inspect", project / "checkpoints" / "checkpoint_1", "--json")
    document = json.loads(out)
    assert (document["iteration"], document["optimizer_steps"], document["world_size"]) == (1, 2, 1)
    assert document["rng_ranks"] == [0]
    assert {"name": "model_0/words.weight", "dtype": "float32", "shape": [5, 3]} in document["tensors"]
    assert document["parts"]["optimizer_0"] == "AdamW"


def test_the_commands_on_manifests_import_no_torch(written: Path) -> None:
    code = (
        "import sys; from agent_server.cli.app import main\n"
        f"sys.argv = ['forerun', 'checkpoint', 'verify', {str(written / 'whole')!r}]\n"
        "try: main()\nexcept SystemExit as left: assert not left.code\n"
        "assert not {'torch', 'sqlalchemy', 'pydantic_settings'} & set(sys.modules), 'heavy'"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=_SOURCE, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr


def test_verify_names_each_wrong_file(project: Path, run: Run) -> None:
    assert run("checkpoint", "verify", project)[0] == 0
    first, second = (project / "checkpoints" / f"checkpoint_{number}" for number in (0, 1))
    data = next(first.glob("*.safetensors"))
    content = bytearray(data.read_bytes())
    content[-1] ^= 1
    data.write_bytes(content)
    index = next(second.glob("state*.json"))
    index.unlink()
    code, out, err = run("checkpoint", "verify", project)
    assert code == 1
    assert f"{data.name} has other content than was saved" in err
    assert f"{index.name} is missing" in err
    assert "checkpoint_2" in out
    code, out, _ = run("checkpoint", "verify", project, "--json")
    assert code == 1
    document = json.loads(out)
    wrong = {file["path"] for c in document["checkpoints"] for file in c["files"] if file["problem"]}
    assert wrong == {data.name, index.name}
    assert not document["ok"]


def test_verify_needs_sha256_where_the_manifest_has_one(project: Path, run: Run) -> None:
    directory = project / "checkpoints" / "checkpoint_2"
    manifest = json.loads((directory / "manifest.json").read_text())
    manifest["files"][0]["sha256"] = "0" * 64
    (directory / "manifest.json").write_text(json.dumps(manifest))
    code, _, err = run("checkpoint", "verify", directory)
    assert code == 1
    assert "(SHA-256)" in err
    (directory / "manifest.json").write_text("{broken")
    code, _, err = run("checkpoint", "verify", project)
    assert code == 1
    assert "is no JSON" in err


def test_hostile_names_are_shown_escaped(project: Path, run: Run) -> None:
    directory = project / "checkpoints" / "checkpoint_2"
    index = next(directory.glob("state*.json"))
    content = index.read_text().replace("words.weight", "\\u001b\\u202e")
    index.write_text(content)
    _, out, _ = run("checkpoint", "inspect", directory)
    assert "model_0/\\x1b\\u202e" in out
    assert "\x1b\u202e" not in out


def test_prune_keeps_the_newest_complete_ones(project: Path, run: Run) -> None:
    def left() -> list[str]:
        return sorted(path.name for path, _ in complete_checkpoints(project / "checkpoints"))

    code, out, _ = run("checkpoint", "prune", project, "--keep", 1, "--dry-run")
    assert code == 0
    assert out.count("would delete") == 2
    code, _, err = run("checkpoint", "prune", project, "--keep", 1)
    assert code == 2
    assert "add --yes" in err
    assert run("checkpoint", "prune", project, "--keep", 0, "--yes")[0] == 2
    assert left() == ["checkpoint_0", "checkpoint_1", "checkpoint_2"]
    next((project / "checkpoints" / "checkpoint_2").glob("*.safetensors")).unlink()
    assert run("checkpoint", "prune", project, "--keep", 1, "--yes")[0] == 0
    assert left() == ["checkpoint_1"], "the newest is incomplete, and does not count"
    assert (project / "checkpoints" / "checkpoint_2").is_dir()


def test_prune_asks_and_takes_no_for_the_default(project: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(_SOURCE), "TERM": "dumb"}
    arguments = ["-m", "agent_server.cli.app", "checkpoint", "prune", str(project), "--keep", "2"]
    for answer, count in (("", 3), ("y", 2)):
        child = pexpect.spawn(sys.executable, arguments, env=environment, timeout=30, encoding="utf-8")
        child.expect("Delete them")
        child.sendline(answer)
        child.expect(pexpect.EOF)
        child.close()
        assert len(complete_checkpoints(project / "checkpoints")) == count


@pytest.mark.parametrize("name", ["whole", "sharded"])
def test_merged_weights_load_and_are_tied(written: Path, tmp_path: Path, run: Run, name: str) -> None:
    import torch
    from safetensors.torch import load_model
    from torch import nn

    from runtime.checkpoint.reader import read_parts

    code, out, _ = run("merge-weights", written / name, tmp_path / "out")
    assert code == 0
    assert "last.weight is tied to words.weight" in out
    fresh = nn.ModuleDict({"words": nn.Embedding(5, 3), "last": nn.Linear(3, 5, bias=False)})
    fresh["last"].weight = fresh["words"].weight
    assert load_model(fresh, tmp_path / "out" / "model.safetensors") == (set(), [])
    saved = read_parts(written / name / "checkpoints" / "checkpoint_2", ["model_0"])["model_0"]
    assert torch.equal(fresh["words"].weight, saved["words.weight"])
    assert torch.equal(saved["last.weight"], saved["words.weight"])


def test_merging_is_refused_with_the_reason(written: Path, tmp_path: Path, run: Run) -> None:
    source = written / "whole" / "checkpoints" / "checkpoint_2"
    before = sorted(os.listdir(source))
    assert "is the checkpoint itself" in run("merge-weights", source, source)[2]
    assert "has no model 3; it holds" in run("merge-weights", source, tmp_path / "out", "--model", 3)[2]
    assert "no complete checkpoint" in run("merge-weights", tmp_path / "nothing", tmp_path / "out")[2]
    assert "max_shard_size='many'" in run("merge-weights", source, tmp_path / "out", "--max-shard-size", "many")[2]
    assert sorted(os.listdir(source)) == before
    assert not (tmp_path / "out").exists()
