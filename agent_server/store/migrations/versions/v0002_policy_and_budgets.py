"""Applied policy and prices, and what is reserved in the budgets."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "applied",
        sa.Column("kind", sa.String(16), primary_key=True),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_table(
        "reservations",
        sa.Column("reservation_id", sa.String(32), primary_key=True),
        sa.Column("run_id", sa.String(32), nullable=True, unique=True),
        sa.Column("body", sa.Text, nullable=False),
    )
