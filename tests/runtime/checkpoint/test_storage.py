"""Checkpoints at URLs: whole or not there, the newest by its manifest, bounded attempts, nothing lost here."""

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from torch import nn

from runtime import Accelerator, ProjectConfiguration
from runtime.checkpoint.manifest import MANIFEST, read_manifest
from runtime.checkpoint.storage import Storage
from runtime.checkpoint.urls import as_url
from runtime.errors import CheckpointError, MissingDependencyError
from tests.runtime.conftest import RunRanks

pytestmark = pytest.mark.usefixtures("fresh_process")


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    yield "memory://bucket/runs" if request.param == "memory" else f"file://{tmp_path}/remote"
    if request.param == "memory":
        fsspec.filesystem("memory").store.clear()


def saved(directory: Path, value: float, *, steps: int = 1) -> Path:
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(2, 2)
    nn.init.constant_(model.weight, value)
    accelerator.prepare(model)
    accelerator._saver.iteration = steps
    accelerator.save_state(directory)
    accelerator._saver.close()
    return directory


def value_at(storage: Storage, name: str, scratch: Path) -> float:
    """What a load of the downloaded checkpoint gives."""
    shutil.rmtree(scratch, ignore_errors=True)
    storage.download(scratch, name)
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(nn.Linear(2, 2))
    accelerator.load_state(scratch)
    return float(model.weight[0, 0].detach())


class Flaky:
    """A file system whose n-th operation fails, once or for ever."""

    def __init__(self, real: Any, fail_at: int, *, times: int) -> None:
        self._real, self._fail, self._calls = real, range(fail_at, fail_at + times), itertools.count()

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._real, name)

        def call(*args: Any, **options: Any) -> Any:
            if next(self._calls) in self._fail:
                raise ConnectionError("the line is cut")
            return attribute(*args, **options)

        return call


def flaky(url: str, fail_at: int, *, times: int) -> tuple[Storage, list[float]]:
    pauses: list[float] = []
    storage = Storage(url, pause=pauses.append)
    storage._system = Flaky(storage._system, fail_at, times=times)
    return storage, pauses


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("s3://bucket/run", "s3://bucket/run"),
        (Path("s3://bucket/run"), "s3://bucket/run"),
        ("memory://x", "memory://x"),
        ("file:///tmp/x", "file:///tmp/x"),
        (Path("file:///tmp/x"), "file:///tmp/x"),
        ("/tmp/x", None),
        ("checkpoints/a:b", None),
        ("C:/x", None),
        (None, None),
    ],
)
def test_urls_are_told_from_paths(path: Any, expected: str | None) -> None:
    assert as_url(path) == expected


def test_what_was_uploaded_comes_back(url: str, tmp_path: Path) -> None:
    storage = Storage(url)
    assert storage.checkpoints() == []
    storage.upload(saved(tmp_path / "a", 3.0), "a")
    assert [name for name, _ in storage.checkpoints()] == ["a"]
    assert value_at(storage, "a", tmp_path / "scratch") == 3.0


def test_a_failure_anywhere_leaves_the_former_one_or_the_new(url: str, tmp_path: Path) -> None:
    """The line is cut at the n-th operation and stays so, for every n."""
    old, new = saved(tmp_path / "old", 1.0), saved(tmp_path / "new", 2.0)
    seen = []
    for fail_at in itertools.count():
        name = f"case{fail_at}"
        Storage(url).upload(old, name)
        storage, pauses = flaky(url, fail_at, times=10_000)
        try:
            storage.upload(new, name)
            failed = False
        except CheckpointError as error:
            failed = True
            seen.append(str(error))
        assert len(pauses) <= 8, "attempts are bounded"
        if failed or not pauses:
            value = value_at(Storage(url), name, tmp_path / "scratch")
            assert value in (1.0, 2.0)
        if not failed and not pauses:
            break
    assert value == 2.0
    assert all("the line is cut" in text and "3 times" in text for text in seen)
    assert read_manifest(new) is not None, "the local one is intact"


def test_a_cut_that_passes_is_gone_over(url: str, tmp_path: Path) -> None:
    source = saved(tmp_path / "a", 4.0)
    for fail_at in range(6):
        storage, pauses = flaky(url, fail_at, times=2)
        storage.upload(source, "a")
        assert pauses == [0.5, 1.0]
    assert value_at(Storage(url), "a", tmp_path / "scratch") == 4.0


def test_half_an_upload_is_no_checkpoint(url: str, tmp_path: Path) -> None:
    storage = Storage(url)
    source = saved(tmp_path / "a", 1.0)
    storage.upload(source, "checkpoint_0")
    storage.upload(source, "checkpoint_9")
    storage._system.rm_file(storage._at("checkpoint_9", MANIFEST))
    assert [name for name, _ in storage.checkpoints()] == ["checkpoint_0"]
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        storage.download(tmp_path / "scratch", "checkpoint_9")


def test_the_newest_is_found_by_its_manifest_and_pruning_keeps_it(url: str, tmp_path: Path) -> None:
    storage = Storage(url)
    for name, steps in (("checkpoint_2", 2), ("checkpoint_10", 10), ("checkpoint_1", 1), ("best", 0)):
        storage.upload(saved(tmp_path / name, float(steps), steps=steps), name)
    assert [name for name, _ in storage.checkpoints()] == ["best", "checkpoint_1", "checkpoint_2", "checkpoint_10"]
    assert storage.prune(keep=1) == ["checkpoint_1", "checkpoint_2"]
    assert [name for name, _ in storage.checkpoints()] == ["best", "checkpoint_10"]
    with pytest.raises(CheckpointError, match="keep 0"):
        storage.prune(keep=0)


def test_a_damaged_file_is_refused_when_it_is_loaded(url: str, tmp_path: Path) -> None:
    storage = Storage(url)
    storage.upload(saved(tmp_path / "a", 1.0), "a")
    (path,) = storage._system.glob(f"{storage._at('a')}/*/state.rank0.safetensors")
    content = bytearray(storage._system.cat_file(path))
    content[-1] ^= 1
    storage._system.pipe_file(path, bytes(content))
    with pytest.raises(CheckpointError, match=r"state\.rank0\.safetensors has other content"):
        value_at(storage, "a", tmp_path / "scratch")


def test_unknown_kinds_and_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match="nosuch"):
        Storage("nosuch://bucket")
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(MissingDependencyError, match="needs a package"):
        Storage("memory://bucket")


@pytest.mark.parametrize("in_background", [False, True])
def test_the_accelerator_saves_to_and_loads_from_a_url(url: str, in_background: bool) -> None:
    def start() -> tuple[Accelerator, nn.Module]:
        project = ProjectConfiguration(project_dir=url, automatic_checkpoint_naming=True, total_limit=2)
        accelerator = Accelerator(cpu=True, project_config=project)
        model = nn.Linear(2, 2)
        return accelerator, accelerator.prepare(model)

    accelerator, model = start()
    places = []
    for value in (1.0, 2.0, 3.0):
        nn.init.constant_(model.weight, value)
        places.append(accelerator.save_state(async_save=in_background))
    accelerator._saver.finish()
    assert places == [f"{url}/checkpoints/checkpoint_{number}" for number in range(3)]
    names = [name for name, _ in Storage(f"{url}/checkpoints").checkpoints()]
    assert names == ["checkpoint_1", "checkpoint_2"]
    manifest = Storage(places[2]).manifest()
    assert manifest is not None
    assert all(file.sha256 for file in manifest.files)
    staged = list(accelerator._saver._remote._staged)
    accelerator._saver.close()
    assert staged
    assert not any(path.exists() for path in staged)

    other, model = start()
    assert other.load_state() == places[2]
    assert float(model.weight[0, 0].detach()) == 3.0
    assert other.load_state(places[1]) == places[1]
    assert float(model.weight[0, 0].detach()) == 2.0
    assert other.save_state() == f"{url}/checkpoints/checkpoint_3"
    other._saver.close()
    with pytest.raises(CheckpointError, match="no complete checkpoint at"):
        other.load_state(f"{url}/nothing")


RANKS = """
import time
from runtime import FullyShardedDataParallelPlugin as Plugin, saving
said, rng_ranks = {}, saving.saved_rng_ranks

def read_late(directory):  # the others are through with the local copy long before
    time.sleep(0.3 * accelerator.process_index)
    assert rng_ranks(directory) == [0, 1]
    return rng_ranks(directory)

saving.saved_rng_ranks = read_late
for name, plugin in (("replicated", None), ("sharded", Plugin())):
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    model = accelerator.prepare(nn.Linear(3, 3))
    torch.manual_seed(accelerator.process_index)
    place = accelerator.save_state(f"{URL}/{name}")
    drawn = float(torch.rand(()))
    whole = accelerator.get_state_dict(model)
    before = None if not whole else whole["weight"].clone()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    accelerator._saver._remote.close()
    accelerator.wait_for_everyone()
    loaded = accelerator.load_state(f"{URL}/{name}")
    whole = accelerator.get_state_dict(model)
    equal = before is None or bool(torch.equal(whole["weight"], before))
    said[name] = [str(place), str(loaded), equal, drawn == float(torch.rand(()))]
say(**said)
"""


@pytest.mark.multiprocess
def test_ranks_save_to_and_load_from_a_url(run_ranks: RunRanks, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/remote"
    ended = run_ranks(f"URL = {url!r}\n{RANKS}", ranks=2)
    for said in ended.said:
        for name in ("replicated", "sharded"):
            assert said[name] == [f"{url}/{name}", f"{url}/{name}", True, True]


def test_a_failed_upload_names_the_local_copy_and_keeps_it(url: str, tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(nn.Linear(2, 2))
    remote = accelerator._saver._remote
    remote._storage = lambda root: flaky(root, 3, times=10_000)[0]
    with pytest.raises(CheckpointError, match=r"the line is cut.*the checkpoint lies in /") as caught:
        accelerator.save_state(f"{url}/last")
    accelerator._saver.close()
    left = Path(caught.value.what.rpartition(" lies in ")[2])
    nn.init.constant_(model.weight, 5.0)
    accelerator.load_state(left)
    assert float(model.weight[0, 0].detach()) != 5.0
    shutil.rmtree(left.parent)
    remote._storage = Storage
    assert accelerator.save_state(f"{url}/last") == f"{url}/last", "the run goes on"
    accelerator._saver.close()


def test_a_script_that_just_ends_leaves_no_local_copy(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    script = (
        "import torch; from runtime import Accelerator\n"
        "accelerator = Accelerator(cpu=True); accelerator.prepare(torch.nn.Linear(2, 2))\n"
        f"accelerator.save_state('file://{tmp_path}/remote/last', async_save=True)\n"
    )
    environment = {**os.environ, "TMPDIR": str(scratch), "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=55, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert [name for name, _ in Storage(f"file://{tmp_path}/remote").checkpoints()] == ["last"]
    assert list(scratch.iterdir()) == []
