"""Indexes, so that looking for the latest time and for open plans does not read whole tables."""

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_index("ix_audit_time_s", "audit", ["time_s"], if_not_exists=True)
    op.create_index("ix_plans_state", "plans", ["state"], if_not_exists=True)
