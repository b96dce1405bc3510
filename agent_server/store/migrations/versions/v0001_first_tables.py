"""The first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "meta",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )
    op.create_table(
        "plans",
        sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("plan_id", sa.String(32), nullable=False, unique=True),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "requests",
        sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("request_id", sa.String(32), nullable=False, unique=True),
        sa.Column("plan_id", sa.String(32), nullable=False, index=True),
        sa.Column("body", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "approvals",
        sa.Column("request_id", sa.String(32), primary_key=True),
        sa.Column("used_by", sa.String(32), nullable=True, unique=True),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_table(
        "runs",
        sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("run_id", sa.String(32), nullable=False, unique=True),
        sa.Column("plan_id", sa.String(32), nullable=False, index=True),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("state", sa.String(24), nullable=False, index=True),
        sa.Column("body", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
    is_open_smoke = sa.text("kind = 'smoke' AND state IN ('launching', 'running')")
    op.create_index(
        "one_open_smoke_run",
        "runs",
        ["plan_id"],
        unique=True,
        sqlite_where=is_open_smoke,
        postgresql_where=is_open_smoke,
    )
    op.create_table(
        "actuals",
        sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("run_id", sa.String(32), nullable=False, unique=True),
        sa.Column("body", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "keys",
        sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("key_id", sa.String(64), nullable=False, unique=True),
        sa.Column("body", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "audit",
        sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("time_s", sa.Float, nullable=False),
        sa.Column("subject", sa.String(128), nullable=False, index=True),
        sa.Column("body", sa.Text, nullable=False),
    )
