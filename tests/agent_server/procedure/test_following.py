"""Ids are looked at, waited for, listed; ends are concluded in their order."""

import json
import os
import threading
from pathlib import Path

import pytest

from agent_server.procedure.concluding import report, verify
from agent_server.procedure.following import diagnosis, status, wait
from agent_server.procedure.listing import list_work
from agent_server.procedure.report_key import load_report_key
from agent_server.procedure.starting import Started, launch_training, smoke_test
from runtime.errors import ConfigurationError
from runtime.layout import RunLayout
from tests.fakes.bench import Bench
from tests.fakes.launcher import end_run
from tools.domain.errors import InvalidInput, NotFound, WrongStep
from tools.domain.plan_state import PlanState


def launched(bench: Bench) -> tuple[str, RunLayout]:
    found = launch_training(bench.place, bench.approved().plan_id)
    assert isinstance(found, Started)
    return found.run.run_id, RunLayout(Path(found.run.run_dir))


@pytest.mark.parametrize("id_", ["run-0000000000", "plan-0000000000", "req-0000000000"])
def test_unknown_ids_are_not_found(bench: Bench, id_: str) -> None:
    with pytest.raises(NotFound):
        status(bench.place, id_)


@pytest.mark.parametrize("id_", ["", "run-", "run-../../etc", "plan-0", "req-'; drop", "42", "run-0000000000\n"])
def test_what_is_no_id_is_refused(bench: Bench, id_: str) -> None:
    with pytest.raises(InvalidInput):
        status(bench.place, id_)


def test_waiting_ends_with_the_run(bench: Bench) -> None:
    run_id, layout = launched(bench)
    timer = threading.Timer(0.3, end_run, [layout])
    timer.start()
    found = wait(bench.place, run_id, 30)
    timer.join()
    assert (found.state, found.settled) == ("succeeded", True)
    assert found.progress is not None


def test_waiting_for_a_request_ends_with_the_decision_and_with_its_expiry(bench: Bench) -> None:
    request = bench.requested()
    assert wait(bench.place, request.request_id, 0).state == "requested"
    timer = threading.Timer(0.3, bench.human.decide, [request])
    timer.start()
    assert wait(bench.place, request.request_id, 30).state == "approved"
    timer.join()
    bench.clock.now_s += 3601
    assert wait(bench.place, request.plan_id, 30).state == "expired"


def test_a_plan_with_an_open_run_shows_that_run(bench: Bench) -> None:
    record = bench.record()
    run = smoke_test(bench.place, record.plan_id).run
    found = status(bench.place, record.plan_id)
    assert found.run is not None
    assert (found.run.run_id, found.settled) == (run.run_id, False)


def test_only_a_full_run_that_succeeded_is_verified(bench: Bench) -> None:
    record = bench.record()
    smoke = smoke_test(bench.place, record.plan_id).run
    with pytest.raises(WrongStep, match="smoke run"):
        verify(bench.place, smoke.run_id)
    run_id, layout = launched(bench)
    with pytest.raises(WrongStep, match="running") as caught:
        verify(bench.place, run_id)
    assert "monitor_run" in caught.value.next_step
    end_run(layout, "failed")
    with pytest.raises(WrongStep, match="failed") as caught:
        verify(bench.place, run_id)
    assert "diagnose_failure" in caught.value.next_step


def test_a_run_that_goes_on_has_nothing_to_diagnose(bench: Bench) -> None:
    run_id, layout = launched(bench)
    with pytest.raises(WrongStep):
        diagnosis(bench.place, run_id)
    end_run(layout, "failed")
    assert diagnosis(bench.place, run_id).run_id == run_id


def test_a_report_may_be_asked_for_at_any_time_and_names_what_is_missing(bench: Bench) -> None:
    run_id, layout = launched(bench)
    early = report(bench.place, run_id, "It runs.")
    assert early.not_verified
    assert Path(early.json_path).is_file()
    end_run(layout)
    late = report(bench.place, run_id, "It ran; accuracy is 0.987.")
    assert late.unsupported_claims, "no evidence supports that number"
    saved = bench.store.run(run_id)
    assert saved.report == late
    assert layout.environment.is_file()


def test_work_is_listed_newest_first_in_pages_without_repeats_or_gaps(bench: Bench) -> None:
    ids = []
    for _ in range(13):
        bench.clock.now_s += 1
        ids.append(bench.record().plan_id)
    first = list_work(bench.place, kind="plans", state="", cursor="")
    second = list_work(bench.place, kind="plans", state="", cursor=first.cursor)
    assert [item.id for item in (*first.items, *second.items)] == ids[::-1]
    assert second.cursor == ""


def test_work_is_filtered_by_kind_and_state(bench: Bench) -> None:
    run_id, layout = launched(bench)
    request = bench.requested(argv=("--lr", "3"))
    end_run(layout)
    listed = list_work(bench.place, kind="", state="", cursor="").items
    assert {item.kind for item in listed} == {"plans", "requests", "runs"}
    runs = list_work(bench.place, kind="runs", state="succeeded", cursor="").items
    assert [(item.id, item.plan_digest != "") for item in runs] == [(run_id, True)]
    open_requests = list_work(bench.place, kind="requests", state=PlanState.REQUESTED.value, cursor="").items
    assert [item.id for item in open_requests] == [request.request_id]


@pytest.mark.parametrize(("kind", "cursor"), [("jobs", ""), ("", "run-0000000000")])
def test_a_wrong_kind_or_cursor_is_refused(bench: Bench, kind: str, cursor: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        list_work(bench.place, kind=kind, state="", cursor=cursor)
    assert caught.value.allowed


def test_the_report_key_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "state" / "report-key.pem"
    keys = []
    threads = [threading.Thread(target=lambda: keys.append(load_report_key(path))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len({key.public_key().public_bytes_raw() for key in keys}) == 1
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("content", [b"", b"no key", json.dumps({}).encode()])
def test_a_damaged_or_readable_report_key_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key.pem"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigurationError):
        load_report_key(path)
    path.unlink()
    load_report_key(path)
    path.chmod(0o644)
    with pytest.raises(ConfigurationError, match="readable by others"):
        load_report_key(path)
