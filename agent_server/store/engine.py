"""The database connection: transactions that hold, and failures in words."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoSuchModuleError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from runtime.errors import ConfigurationError, MissingDependencyError
from tools.domain.errors import Conflict, StoreUnavailable
from tools.text import redact

from .filesystem import require_local

# What SQLite says -> (what it means, what helps).
_CAUSES = (
    ("locked", "another process holds its lock", "end the process that holds it, then try again"),
    ("busy", "another process holds its lock", "end the process that holds it, then try again"),
    ("readonly", "it is read-only", "make the file and its directory writable"),
    ("read-only", "it is read-only", "make the file and its directory writable"),
    ("full", "the disk is full", "free space on the disk, then try again"),
    ("unable to open", "it cannot be opened", "see that the directory exists and is writable"),
    ("disk i/o", "the disk refused to read or write", "check the disk, its space and its limits, then try again"),
    ("malformed", "the file is damaged", "restore it from a copy, or start with a new state directory"),
    ("not a database", "the file is no database", "restore it from a copy, or start with a new state directory"),
    ("lock timeout", "another process holds its lock", "end the process that holds it, then try again"),
    ("password", "it refuses this user", "correct the user and password of FORERUN_DATABASE_URL"),
    ("does not exist", "there is no such database or user", "create it, or correct FORERUN_DATABASE_URL"),
    ("permission denied", "this user may not do that", "give the user of FORERUN_DATABASE_URL the right to"),
    ("connection", "it cannot be reached", "start the database server, or correct FORERUN_DATABASE_URL"),
)
_BACKENDS = ("sqlite", "postgresql")
_WRITING = "forerun_write"
_WRITERS_LOCK = 0x666F7265  # one for all forerun servers on a database


class Database:
    """One database by URL. `read` and `write` are transactions; whatever fails in them becomes StoreUnavailable."""

    def __init__(self, url: str, *, busy_timeout_s: float) -> None:
        self._url = _parse(url)
        self.is_sqlite = self._url.get_backend_name() == "sqlite"
        self.name = str(self._url.database) if self.is_sqlite else self._url.render_as_string(hide_password=True)
        self._busy_timeout_s = busy_timeout_s
        if self.is_sqlite:
            self._prepare_file()
        self._engine = self._make_engine()

    @property
    def identity(self) -> str:
        """Which database this is: path and inode of its file, or the server's URL without the password."""
        if not self.is_sqlite:
            return self._url.render_as_string(hide_password=True)
        path = Path(self.name).resolve()
        try:
            return f"{path} (inode {path.stat().st_ino})"
        except OSError as error:
            raise self.unavailable(error.strerror or str(error)) from error

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One consistent view."""
        with self._in_words(), self._engine.connect() as connection:
            if not self.is_sqlite:
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Everything or nothing; the write lock is taken at the start, so that no decision rests on what is past."""
        with self._in_words(), self._engine.connect() as connection:
            connection = connection.execution_options(**{_WRITING: True})
            with connection.begin():
                if not self.is_sqlite:
                    self._lock_out_other_writers(connection)
                yield connection

    def _lock_out_other_writers(self, connection: Connection) -> None:
        """As SQLite does by itself; what is read after this is what the last writer left."""
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {int(self._busy_timeout_s * 1000)}")
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_WRITERS_LOCK})")

    def close(self) -> None:
        self._engine.dispose()

    def _prepare_file(self) -> None:
        path = Path(self.name)
        require_local(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with suppress(FileExistsError):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except OSError as error:
            raise self.unavailable(error.strerror or str(error)) from error

    def _make_engine(self) -> Engine:
        options: dict[str, Any] = {"connect_args": {"timeout": self._busy_timeout_s}}
        if not self.is_sqlite:
            wait_s = max(2, int(self._busy_timeout_s))
            options = {"connect_args": {"connect_timeout": wait_s}, "pool_pre_ping": True}
        try:
            engine = create_engine(self._url, pool_size=5, max_overflow=15, **options)
        except ModuleNotFoundError as error:
            raise MissingDependencyError(
                f"the driver for {self._url.drivername} is not installed: {error.name}",
                next_step=f"pip install {error.name}",
            ) from error
        except NoSuchModuleError as error:
            raise _bad_url(self._url.drivername) from error
        if self.is_sqlite:
            event.listen(engine, "connect", self._on_connect)
            event.listen(engine, "begin", _on_begin)
        return engine

    def _on_connect(self, connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # the driver would begin transactions of its own, later than we mean
        connection.execute(f"PRAGMA busy_timeout = {int(self._busy_timeout_s * 1000)}")
        if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        try:
            yield
        except IntegrityError as error:
            raise Conflict(
                f"the database holds another record already: {error.orig}", next_step="read the record again"
            ) from error
        except (DBAPIError, PoolTimeoutError) as error:
            raise self.unavailable(str(error.orig if isinstance(error, DBAPIError) else error)) from error
        except sqlite3.Error as error:  # raised by a pragma, before SQLAlchemy wraps errors
            raise self.unavailable(str(error)) from error

    def unavailable(self, detail: str) -> StoreUnavailable:
        """The refusal for a database that cannot be used, with its cause in words."""
        detail = " ".join(detail.split())  # PostgreSQL speaks in several lines
        lowered = detail.lower()
        known = ((cause, cure) for sign, cause, cure in _CAUSES if sign in lowered)
        cause, cure = next(known, ("it does not answer", "mend what the message names, then try again"))
        return StoreUnavailable(
            f"the database {self.name} cannot be used: {cause} ({detail}). Nothing was changed, approvals stay closed",
            next_step=cure,
        )


def _on_begin(connection: Connection) -> None:
    writing = connection.get_execution_options().get(_WRITING, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


def _parse(text: str) -> URL:
    try:
        url = make_url(text)
    except ArgumentError as error:
        raise _bad_url(text) from error
    if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
        raise _bad_url(text)
    if url.get_backend_name() not in _BACKENDS:
        raise _bad_url(text)
    return url.set(drivername="postgresql+psycopg") if url.drivername == "postgresql" else url


def _bad_url(text: str) -> ConfigurationError:
    return ConfigurationError(
        f"{redact(text)!r} is no database that forerun can use",
        allowed="sqlite:////absolute/path/forerun.db, or postgresql://USER@HOST/DATABASE",
        next_step="set FORERUN_DATABASE_URL, or unset it for SQLite in the state directory",
    )
