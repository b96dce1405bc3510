"""The schema: made on first use, migrations equal to the tables, a newer one stops with a sentence."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

import agent_server.store
from agent_server.store import schema, tables
from agent_server.store.engine import Database
from agent_server.store.sql import SqlStore
from runtime.errors import ConfigurationError
from tests.fakes.approvals import Clock, Human, ask, open_store, run_of
from tools.domain.errors import StoreUnavailable


def test_a_newer_schema_stops_with_a_sentence_and_stays_untouched(
    tmp_path: Path, store: SqlStore, clock: Clock
) -> None:
    store.close()
    with closing(sqlite3.connect(tmp_path / "forerun.db")) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(ConfigurationError, match="'9999', newer than this forerun knows"):
        open_store(tmp_path, clock)
    with closing(sqlite3.connect(tmp_path / "forerun.db")) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchone() == ("9999",)


def test_another_programs_database_is_refused(tmp_path: Path, clock: Clock) -> None:
    with closing(sqlite3.connect(tmp_path / "forerun.db")) as connection, connection:
        connection.execute("CREATE TABLE invoices (id INTEGER)")
    with pytest.raises(ConfigurationError, match="invoices"):
        open_store(tmp_path, clock)


def test_the_migrations_make_the_tables_that_the_store_uses(tmp_path: Path, store: SqlStore) -> None:
    database = Database(f"sqlite:///{tmp_path / 'forerun.db'}", busy_timeout_s=1)
    with database.read() as connection:
        assert compare_metadata(MigrationContext.configure(connection), tables.metadata) == []
    database.close()


def test_the_known_versions_are_those_of_the_migrations() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(agent_server.store.__file__).parent / "migrations"))
    revisions = [r.revision for r in ScriptDirectory.from_config(config).walk_revisions()]
    assert tuple(reversed(revisions)) == schema.VERSIONS


UNDO = {
    "0002": ("DROP INDEX ix_audit_time_s", "DROP INDEX ix_plans_state"),
    "0001": (
        "DROP INDEX ix_audit_time_s",
        "DROP INDEX ix_plans_state",
        "DROP TABLE applied",
        "DROP TABLE reservations",
    ),
}


@pytest.mark.parametrize("version", sorted(UNDO))
def test_an_older_database_keeps_what_it_holds(
    tmp_path: Path, store: SqlStore, clock: Clock, human: Human, version: str
) -> None:
    request = ask(store, clock)
    if version == "0002":
        human.decide(request)
    before = store.audit_log()
    store.close()
    with closing(sqlite3.connect(tmp_path / "forerun.db")) as connection, connection:
        for statement in (*UNDO[version], f"UPDATE alembic_version SET version_num = '{version}'"):
            connection.execute(statement)
    with closing(sqlite3.connect(tmp_path / "forerun.db")) as holder:
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="another process holds its lock"):
            open_store(tmp_path, clock, busy_timeout_s=0.05)
        holder.rollback()
        assert holder.execute("SELECT version_num FROM alembic_version").fetchone() == (version,)
    again = open_store(tmp_path, clock)
    assert again.audit_log() == before
    assert again.problems() == []
    if version == "0001":
        Human(again, clock, private=human.private).decide(request)
    assert again.consume_approval(request.request_id, run_of(again.plan(request.plan_id))).kind == "full"
    assert again.problems() == []
    database = Database(f"sqlite:///{tmp_path / 'forerun.db'}", busy_timeout_s=1)
    with database.read() as connection:
        assert compare_metadata(MigrationContext.configure(connection), tables.metadata) == []
    database.close()
    again.close()


def test_a_current_database_loads_no_alembic_and_a_lazy_store_no_sqlalchemy(tmp_path: Path, store: SqlStore) -> None:
    code = """
import sys, time
from pathlib import Path
from agent_server.settings import load_settings
from agent_server.store.base import open_store
store = open_store(load_settings(state_dir=Path(sys.argv[1])), clock=time.time)
assert "sqlalchemy" not in sys.modules and "cryptography" not in sys.modules
assert store.mode == "normal"
assert "sqlalchemy" in sys.modules and "alembic" not in sys.modules and "torch" not in sys.modules
store.close()
assert len(store.audit_log()) == 1
store.close()
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=50)


def test_a_store_keeps_the_mode_it_was_created_with(tmp_path: Path, store: SqlStore, clock: Clock) -> None:
    again = open_store(tmp_path, clock, mode="simulated")
    assert (store.mode, again.mode) == ("normal", "normal")
    again.close()
