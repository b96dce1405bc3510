"""The schema's version: created or brought up to date on first use, and never read when newer than this package."""

from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Connection, inspect, text

from runtime.errors import ConfigurationError

from .engine import Database

VERSIONS = ("0001", "0002", "0003")  # oldest first; the migrations bear these names


def bring_up_to_date(database: Database, *, on_create: Callable[[Connection], None]) -> None:
    """Create or migrate the tables in one transaction; nothing happens, and alembic stays unloaded, if current.

    Args:
        on_create: called in the same transaction when the database was new.

    Raises:
        ConfigurationError: the schema is newer than this package, or the database is another program's.
    """
    with database.read() as connection:
        if _version(connection, database.name) == VERSIONS[-1]:
            return
    with database.write() as connection:
        version = _version(connection, database.name)
        if version == VERSIONS[-1]:
            return  # another process was quicker
        _upgrade(connection)
        if version is None:
            on_create(connection)


def _version(connection: Connection, name: str) -> str | None:
    tables = inspect(connection).get_table_names()
    if "alembic_version" in tables:
        version: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
        if version in VERSIONS:
            return version
        raise ConfigurationError(
            f"the database {name} has schema version {version!r}, newer than this forerun knows",
            allowed=f"up to {VERSIONS[-1]}",
            next_step="start the newer forerun that wrote it, or use another state directory",
        )
    if tables:
        raise ConfigurationError(
            f"the database {name} holds another program's tables ({', '.join(sorted(tables)[:3])})",
            allowed="an empty database, or one that forerun made",
            next_step="set FORERUN_DATABASE_URL to a database of forerun's own",
        )
    return None


def _upgrade(connection: Connection) -> None:
    from alembic import command  # heavy, and needed once in a database's life
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
