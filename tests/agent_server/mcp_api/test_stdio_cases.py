"""What goes wrong between clients and stdio servers elsewhere, done to this one with real runs."""

import os
import signal
import time
from pathlib import Path

import pytest

from runtime.launchers.process import marked_pids
from runtime.layout import RunLayout
from tests.agent_server.mcp_api.conftest import Site

pytestmark = pytest.mark.multiprocess

ASKS = """
import sys
try:
    print('answer', input('Continue? '))
except EOFError:
    print('EOF on input')
print('rest', len(sys.stdin.read()))
"""
POOL = """
import json, multiprocessing
def double(x):
    return 2 * x
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print("doubled", pool.map(double, [1, 2, 3]), flush=True)
    for step in range(1, 13):
        print(json.dumps({"step": step, "loss": 1.0 / step}), flush=True)
"""


def gone(run_id: str, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while marked_pids(run_id):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def appeared(run_id: str, within_s: float = 20.0) -> bool:
    deadline = time.monotonic() + within_s
    while not marked_pids(run_id):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def layout(site: Site, run_id: str) -> RunLayout:
    return RunLayout(site.state / "runs" / run_id)


# -- a child and the server's stdin ----------------------------------------------------------------------------------


def test_a_script_that_asks_sees_eof_at_once_and_eats_no_request(site: Site) -> None:
    (site.project / "train.py").write_text(ASKS)
    server = site.serve()
    plan_id = site.plan(server, args=[], smoke_args=[])
    starting = server.send("tools/call", {"name": "smoke_test", "arguments": {"plan_id": plan_id}})
    others = [server.send("tools/list"), server.send("tools/call", {"name": "list_work", "arguments": {}})]
    for request in others:
        assert "result" in server.answer(request)
    run_id = server.structured(server.answer(starting)["result"])["run_id"]
    site.ended(server, run_id)
    printed = layout(site, run_id).stdout(0).read_text()
    assert "EOF on input" in printed
    assert "rest 0" in printed


def test_a_script_with_a_pool_of_processes_finishes(site: Site) -> None:
    (site.project / "train.py").write_text(POOL)
    server = site.serve()
    found = site.smoked(server, site.plan(server, args=[], smoke_args=[]))
    assert found["state"] == "succeeded", found
    assert "doubled [2, 4, 6]" in layout(site, found["run_id"]).stdout(0).read_text()


# -- the client goes -------------------------------------------------------------------------------------------------


def test_a_smoke_run_ends_with_its_client_and_the_next_server_says_so(site: Site) -> None:
    server = site.serve()
    plan_id = site.plan(server, smoke_args=["--steps", "3000", "--sleep", "0.1", "--stubborn"])
    server.send("tools/call", {"name": "smoke_test", "arguments": {"plan_id": plan_id}})
    watcher = site.serve()
    run_id = ""
    deadline = time.monotonic() + 30
    while not run_id:
        assert time.monotonic() < deadline
        run_id = next((item["id"] for item in watcher.data("list_work", kind="runs").get("items", ())), "")
    assert appeared(run_id)
    assert server.close(timeout_s=10) == 0
    assert gone(run_id, 20.0), "processes of the smoke run outlived their server"
    found = site.ended(watcher, run_id)
    assert found["state"] in ("cancelled", "failed", "stopped_at_limit"), found


@pytest.mark.parametrize("how", ["eof", "sigkill"])
def test_an_approved_run_goes_on_without_its_server_and_a_new_one_shows_it(site: Site, how: str) -> None:
    server = site.serve()
    plan_id = site.approved(args=("--steps", "120", "--sleep", "0.1"))
    run_id = server.data("launch_training", plan_id=plan_id)["run_id"]
    assert appeared(run_id)
    if how == "eof":
        server.close()
    else:
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(10)
    assert marked_pids(run_id)
    another = site.serve()
    assert another.data("monitor_run", id=run_id)["state"] == "running"
    assert site.ended(another, run_id)["state"] == "succeeded"


# -- cancelled -------------------------------------------------------------------------------------------------------


def test_cancelling_the_call_that_started_a_smoke_run_stops_its_processes_and_is_never_answered(site: Site) -> None:
    server = site.serve()
    plan_id = site.plan(server, smoke_args=["--steps", "3000", "--sleep", "0.1", "--stubborn"])
    request = server.send("tools/call", {"name": "smoke_test", "arguments": {"plan_id": plan_id}})
    watcher = site.serve()
    run_id = ""
    deadline = time.monotonic() + 30
    while not run_id:
        assert time.monotonic() < deadline
        run_id = next((item["id"] for item in watcher.data("list_work", kind="runs").get("items", ())), "")
    assert appeared(run_id)
    for _ in range(2):  # the second is of a request that is over: without effect
        server.notify("notifications/cancelled", {"requestId": request, "reason": "changed my mind"})
    server.notify("notifications/cancelled", {"requestId": 987654})
    found = site.ended(server, run_id)
    assert found["state"] == "cancelled", found
    assert gone(run_id, 1.0)
    assert all(f'"id":{request},'.encode() not in line for line in server.lines), "a late answer"
    again = server.data("smoke_test", plan_id=plan_id)  # the server is usable, and the plan may be tried again
    assert again["run_id"] != run_id
    assert server.data("cancel_run", run_id=again["run_id"])["state"] == "cancelled"
    assert gone(again["run_id"], 1.0)


def test_cancelling_a_call_that_only_waits_leaves_the_run_alone(site: Site) -> None:
    server = site.serve()
    plan_id = site.approved(args=("--steps", "20", "--sleep", "0.1"))
    run_id = server.data("launch_training", plan_id=plan_id)["run_id"]
    waiting = server.send("tools/call", {"name": "monitor_run", "arguments": {"id": run_id, "wait_s": 25}})
    server.notify("notifications/cancelled", {"requestId": waiting})
    assert site.ended(server, run_id)["state"] == "succeeded"
    assert all(f'"id":{waiting},'.encode() not in line for line in server.lines)


def test_a_launch_that_is_cancelled_at_once_leaves_no_run_without_an_id(site: Site) -> None:
    server = site.serve()
    plan_id = site.approved()
    request = server.send("tools/call", {"name": "launch_training", "arguments": {"plan_id": plan_id}})
    server.notify("notifications/cancelled", {"requestId": request})
    found = server.data("launch_training", plan_id=plan_id)
    listed = server.data("list_work", kind="runs")["items"]
    full = [item for item in listed if item["detail"].startswith("full")]
    assert [item["id"] for item in full] == [found["run_id"]]
    assert site.ended(server, found["run_id"])["state"] == "succeeded"


# -- the same launch again -------------------------------------------------------------------------------------------


def test_a_launch_sent_twice_again_later_and_after_a_restart_is_one_run(site: Site) -> None:
    server = site.serve()
    plan_id = site.approved()
    call = {"name": "launch_training", "arguments": {"plan_id": plan_id}}
    before = time.monotonic()
    requests = [server.send("tools/call", call) for _ in range(2)]
    answers = [server.structured(server.answer(request)["result"]) for request in requests]
    assert time.monotonic() - before < 20
    assert len({answer["run_id"] for answer in answers}) == 1
    assert sorted(answer["already_launched"] for answer in answers) == [False, True]
    again = server.data("launch_training", plan_id=plan_id)
    server.process.send_signal(signal.SIGKILL)
    server.process.wait(10)
    restarted = site.serve()
    later = restarted.data("launch_training", plan_id=plan_id)
    assert {again["run_id"], later["run_id"]} == {answers[0]["run_id"]}
    assert later["already_launched"]
    assert [item["id"] for item in restarted.data("list_work", kind="runs")["items"]].count(later["run_id"]) == 1
    site.ended(restarted, later["run_id"])
    assert len(list((site.state / "runs").iterdir())) == 1


def test_after_a_lost_answer_a_list_shows_the_run_with_its_plan(site: Site) -> None:
    server = site.serve()
    plan_id = site.approved()
    server.send("tools/call", {"name": "launch_training", "arguments": {"plan_id": plan_id}})
    server.close()  # the pipe goes right after the call
    restarted = site.serve()
    found = restarted.data("launch_training", plan_id=plan_id)
    listed = {item["id"]: item for item in restarted.data("list_work", kind="runs")["items"]}
    assert listed[found["run_id"]]["plan_id"] == plan_id
    assert listed[found["run_id"]]["plan_digest"] == found["plan_digest"][:12]
    full = [item for item in listed.values() if item["detail"].startswith("full")]
    assert len(full) == 1
    assert site.ended(restarted, found["run_id"])["state"] == "succeeded"


# -- no locks --------------------------------------------------------------------------------------------------------


def test_rounds_of_killed_servers_leave_no_lock_and_no_process(site: Site) -> None:
    pids = []
    for round_ in range(6):
        server = site.serve()
        server.send("tools/call", {"name": "list_work", "arguments": {}})
        if round_ % 2:
            server.answer(1 if server.modern else 2)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(10)
        pids.append(server.process.pid)
    survivor = site.serve()
    assert survivor.data("list_work")["next"]
    for pid in pids:
        assert not Path(f"/proc/{pid}").exists() or os.readlink(f"/proc/{pid}/exe") == ""
