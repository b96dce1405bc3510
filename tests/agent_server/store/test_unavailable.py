"""A database that cannot be used is said to be so, with the cause; nothing is lost and no approval opens."""

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from agent_server.store.engine import Database
from agent_server.store.sql import SqlStore
from runtime.errors import ConfigurationError
from tests.fakes.approvals import Clock, Human, approved, ask, estimated_record, open_store, run_of
from tools.domain.errors import StoreUnavailable

_NOBODY = 65534


@pytest.fixture
def public_dir() -> Iterator[Path]:
    """A directory that other users can enter; pytest's own they cannot."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    path.chmod(0o755)
    shutil.rmtree(path)


@contextmanager
def without_write_permission(directory: Path) -> Iterator[None]:
    """Root may write anywhere, so it becomes somebody else."""
    directory.chmod(0o555)
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_locked_database_is_named_and_serves_again_afterwards(tmp_path: Path, clock: Clock) -> None:
    store = open_store(tmp_path, clock, busy_timeout_s=0.2)
    request = approved(store, clock, Human(store, clock).enroll())
    record = store.plan(request.plan_id)
    with closing(sqlite3.connect(tmp_path / "forerun.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match=r"another process holds its lock.*approvals stay closed"):
            store.consume_approval(request.request_id, run_of(record))
        assert store.approval(request.request_id) is not None, "readers go on while somebody writes"
        other.execute("ROLLBACK")
    kept = store.consume_approval(request.request_id, run_of(record))
    assert [r.run_id for r in store.runs(limit=9)] == [kept.run_id]
    assert store.problems() == []
    store.close()


@pytest.mark.parametrize("readable", [True, False])
def test_a_read_only_directory_is_named(public_dir: Path, clock: Clock, readable: bool) -> None:
    store = open_store(public_dir, clock)
    request = ask(store, clock)
    store.close()
    (public_dir / "forerun.db").chmod(0o444 if readable else 0o000)
    with without_write_permission(public_dir):
        if os.geteuid() == 0:
            pytest.fail("still root")
        with pytest.raises(StoreUnavailable, match=r"read-only|cannot be opened"):
            Human(store, clock).enroll()
        store.close()
        with pytest.raises(StoreUnavailable, match=r"read-only|cannot be opened"):
            open_store(public_dir, clock).add_plan(estimated_record())
    public_dir.chmod(0o755)
    (public_dir / "forerun.db").chmod(0o600)
    assert store.request(request.request_id) == request
    assert store.keys() == []
    store.close()


def test_a_state_directory_that_cannot_be_made_is_named(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match="file/state"):
        open_store(tmp_path / "file" / "state", clock)


_FILLER = """
import resource, sys
from pathlib import Path
from tests.fakes.approvals import Clock, Human, ask, estimated_record, open_store
from tools.domain.errors import StoreUnavailable

store = open_store(Path(sys.argv[1]), Clock())
size = max(p.stat().st_size for p in Path(sys.argv[1]).iterdir())
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 200_000, resource.RLIM_INFINITY))
kept = 0
try:
    while kept < 500:
        ask(store, Clock(), estimated_record())
        kept += 1
except StoreUnavailable as error:
    print(kept, error)
"""


@pytest.mark.multiprocess
def test_a_full_disk_is_named_and_loses_nothing(tmp_path: Path, clock: Clock) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FILLER, str(tmp_path)], capture_output=True, text=True, timeout=50, check=False
    )
    kept, _, message = done.stdout.partition(" ")
    assert "the disk" in message, done.stdout + done.stderr
    assert "Nothing was changed" in message
    store = open_store(tmp_path, clock)
    assert 0 < int(kept) == len(store.requests(limit=999)) < 500
    assert store.problems() == []
    ask(store, clock)
    store.close()


_KILLED = """
import os, signal, sys
from pathlib import Path
from agent_server.store.ledger import Ledger
from tests.fakes.approvals import Clock, open_store, run_of

append = Ledger.append
def dying(self, connection, entry, *, subject):
    record = append(self, connection, entry, subject=subject)
    if entry.event == "run_added":
        os.kill(os.getpid(), signal.SIGKILL)
    return record
Ledger.append = dying
store = open_store(Path(sys.argv[1]), Clock())
store.consume_approval(sys.argv[2], run_of(store.plan(sys.argv[3])))
"""


@pytest.mark.multiprocess
def test_a_server_killed_in_mid_launch_leaves_the_approval_whole(tmp_path: Path, clock: Clock) -> None:
    store = open_store(tmp_path, clock)
    request = approved(store, clock, Human(store, clock).enroll())
    argv = [sys.executable, "-c", _KILLED, str(tmp_path), request.request_id, request.plan_id]
    assert subprocess.run(argv, timeout=50, check=False).returncode == -9
    assert store.runs(limit=9) == []
    assert store.problems() == []
    kept = store.consume_approval(request.request_id, run_of(store.plan(request.plan_id)))
    assert store.run(kept.run_id) == kept
    store.close()


def test_a_file_that_is_no_database_is_named(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "forerun.db").write_bytes(b"not a database at all " * 300)
    with pytest.raises(StoreUnavailable, match="no database"):
        open_store(tmp_path, clock)
    assert (tmp_path / "forerun.db").read_bytes().startswith(b"not a database")


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "nonsense", "no_such_dialect:///x"])
def test_a_url_that_keeps_nothing_is_refused(url: str, clock: Clock) -> None:
    with pytest.raises(ConfigurationError, match="no database that forerun can use"):
        SqlStore(url, clock=clock)


def test_writes_reach_the_disk_before_they_are_answered(tmp_path: Path, store: SqlStore) -> None:
    database = Database(f"sqlite:///{tmp_path / 'forerun.db'}", busy_timeout_s=1)
    with database.read() as connection:
        found = [
            connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "busy_timeout")
        ]
    database.close()
    assert found == ["wal", 2, 1000]
    assert (tmp_path / "forerun.db").stat().st_mode & 0o077 == 0
