"""The schema's history, run in-process by alembic when a database is older than this package."""
