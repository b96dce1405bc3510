"""Many launches of one approval at once, from several processes and threads: exactly one run."""

import subprocess
import sys
from pathlib import Path

import pytest

from agent_server.store.sql import SqlStore
from tests.fakes.approvals import Clock, Human, approved, estimated_record

PROCESSES, THREADS = 2, 10

_CHILD = """
import sys, threading
from pathlib import Path
from tests.fakes.approvals import Clock, open_store, run_of

store = open_store(Path(sys.argv[1]), Clock())
record = store.plan(sys.argv[2])
barrier, answers = threading.Barrier(int(sys.argv[4])), []

def launch():
    run = run_of(record, kind="full" if sys.argv[3] else "smoke")
    barrier.wait(30)
    kept = store.consume_approval(sys.argv[3], run) if sys.argv[3] else store.add_run(run)
    answers.append(kept.run_id)

threads = [threading.Thread(target=launch) for _ in range(int(sys.argv[4]))]
print("ready", flush=True)
sys.stdin.readline()
for thread in threads: thread.start()
for thread in threads: thread.join()
print(*answers, flush=True)
store.close()
"""


@pytest.mark.multiprocess
@pytest.mark.parametrize("kind", ["full", "smoke"])
def test_racing_launches_get_one_run(tmp_path: Path, store: SqlStore, clock: Clock, human: Human, kind: str) -> None:
    record = estimated_record()
    request_id = ""
    if kind == "full":
        request_id = approved(store, clock, human, record).request_id
    else:
        store.add_plan(record)
    argv = [sys.executable, "-c", _CHILD, str(tmp_path), record.plan_id, request_id, str(THREADS)]
    children = [
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(PROCESSES)
    ]
    answers = _race(children)
    assert len(answers) == PROCESSES * THREADS
    assert len(set(answers)) == 1
    assert [r.run_id for r in store.runs(limit=99)] == answers[:1]
    assert store.problems() == []


@pytest.mark.multiprocess
def test_racing_first_starts_make_one_store(tmp_path: Path) -> None:
    child = (
        "import sys; from pathlib import Path; from tests.fakes.approvals import Clock, open_store\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "store = open_store(Path(sys.argv[1]), Clock())\n"
        "print(sum(r.event == 'store_created' for r in store.audit_log()), len(store.problems())); store.close()"
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", child, str(tmp_path / "new")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    assert _race(children) == ["1", "0"] * 4


def _race(children: "list[subprocess.Popen[str]]") -> list[str]:
    """Let all children go at once, and collect the words that they print."""
    try:
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        for child in children:
            assert child.stdin is not None
            child.stdin.write("\n")
            child.stdin.flush()
        words = [word for child in children for word in child.communicate(timeout=50)[0].split()]
        assert [child.returncode for child in children] == [0] * len(children)
        return words
    finally:
        for child in children:
            child.kill()
            child.wait()
