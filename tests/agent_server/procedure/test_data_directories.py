"""A data directory at launch: what changed inside is named file by file, by the server and by the run's prologue."""

from collections.abc import Callable
from pathlib import Path

import pytest

from agent_server.procedure.asking import request_approval
from agent_server.procedure.starting import Started, launch_training
from runtime.layout import RunLayout
from runtime.run_files import read_order
from runtime.snapshots.data_manifest import FOLDER, data_drift, describe_data, store_manifest
from tests.fakes.bench import Bench
from tools.domain.errors import Refused
from tools.domain.plan_state import PlanRecord
from tools.request_approval import shown_text


@pytest.fixture
def folder(bench: Bench) -> Path:
    made = bench.project.parent / "images"
    made.mkdir()
    for number in range(3):
        (made / f"{number}.png").write_bytes(bytes([number]) * 10)
    return made


@pytest.fixture
def approved(bench: Bench, folder: Path) -> PlanRecord:
    """A plan with the folder as its data, approved."""
    file, entries = describe_data("train", folder)
    store_manifest(bench.place.settings.snapshots_dir / FOLDER, entries)
    plan = bench.plan()
    record = bench.put(plan.model_copy(update={"data": (*plan.data, file)}))
    request = request_approval(bench.place, record.plan_id, "").request
    text = shown_text(record, request, spec=None, differences=())
    assert f"train {folder} (3 files, 30 bytes, each known by name, full sha256 " in text
    bench.human.decide(request)
    return bench.store.plan(record.plan_id)


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "changed": (lambda f: (f / "1.png").write_bytes(b"\x01" * 9 + b"\x02"), "1.png changed (10 -> 10 bytes"),
    "added": (lambda f: (f / "9.png").write_bytes(b"9"), "9.png added"),
    "removed": (lambda f: (f / "1.png").unlink(), "1.png removed"),
    "renamed": (lambda f: (f / "1.png").rename(f / "7.png"), "1.png renamed to 7.png"),
}


@pytest.mark.parametrize("change", sorted(CHANGES))
def test_a_file_that_changed_inside_is_named_and_nothing_starts(
    bench: Bench, folder: Path, approved: PlanRecord, change: str
) -> None:
    alter, named = CHANGES[change]
    alter(folder)
    with pytest.raises(Refused) as caught:
        launch_training(bench.place, approved.plan_id)
    assert f"data train {folder}: {named}" in caught.value.what
    assert bench.store.runs(limit=9) == []


def test_the_run_directory_holds_the_manifest_for_its_prologue(
    bench: Bench, folder: Path, approved: PlanRecord
) -> None:
    started = launch_training(bench.place, approved.plan_id)
    assert isinstance(started, Started)
    layout = RunLayout(Path(started.run.run_dir))
    assert read_order(layout) is not None
    assert approved.plan is not None
    (folder / "2.png").unlink()
    (line,) = data_drift(approved.plan.data, manifests=layout.manifests)
    assert line == f"data train {folder}: 2.png removed"
