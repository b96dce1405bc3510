"""The tables. Each row holds a record's canonical JSON in `body`, and the columns that queries need.

Imported by the store alone; migrations spell their own tables, so that an old one never changes its meaning.
"""

from sqlalchemy import Column, Float, Index, Integer, MetaData, String, Table, Text, text

metadata = MetaData()

meta = Table(
    "meta",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("value", Text, nullable=False),
)

plans = Table(
    "plans",
    metadata,
    Column("sequence", Integer, primary_key=True, autoincrement=True),
    Column("plan_id", String(32), nullable=False, unique=True),
    Column("state", String(16), nullable=False, index=True),
    Column("body", Text, nullable=False),
    sqlite_autoincrement=True,
)

requests = Table(
    "requests",
    metadata,
    Column("sequence", Integer, primary_key=True, autoincrement=True),
    Column("request_id", String(32), nullable=False, unique=True),
    Column("plan_id", String(32), nullable=False, index=True),
    Column("body", Text, nullable=False),
    sqlite_autoincrement=True,
)

# One decision a request, one use an approval: the database itself says so.
approvals = Table(
    "approvals",
    metadata,
    Column("request_id", String(32), primary_key=True),
    Column("used_by", String(32), nullable=True, unique=True),
    Column("body", Text, nullable=False),
)

runs = Table(
    "runs",
    metadata,
    Column("sequence", Integer, primary_key=True, autoincrement=True),
    Column("run_id", String(32), nullable=False, unique=True),
    Column("plan_id", String(32), nullable=False, index=True),
    Column("kind", String(16), nullable=False),
    Column("state", String(24), nullable=False, index=True),
    Column("body", Text, nullable=False),
    sqlite_autoincrement=True,
)
_OPEN_SMOKE = text("kind = 'smoke' AND state IN ('launching', 'running')")
Index("one_open_smoke_run", runs.c.plan_id, unique=True, sqlite_where=_OPEN_SMOKE, postgresql_where=_OPEN_SMOKE)

actuals = Table(
    "actuals",
    metadata,
    Column("sequence", Integer, primary_key=True, autoincrement=True),
    Column("run_id", String(32), nullable=False, unique=True),
    Column("body", Text, nullable=False),
    sqlite_autoincrement=True,
)

keys = Table(
    "keys",
    metadata,
    Column("sequence", Integer, primary_key=True, autoincrement=True),
    Column("key_id", String(64), nullable=False, unique=True),
    Column("body", Text, nullable=False),
    sqlite_autoincrement=True,
)

audit = Table(
    "audit",
    metadata,
    Column("sequence", Integer, primary_key=True, autoincrement=False),
    Column("time_s", Float, nullable=False, index=True),
    Column("subject", String(128), nullable=False, index=True),
    Column("body", Text, nullable=False),
)

# One applied document of each kind; what it replaced stands in the audit log.
applied = Table(
    "applied",
    metadata,
    Column("kind", String(16), primary_key=True),
    Column("body", Text, nullable=False),
)

# One reservation a launch; a run settles one.
reservations = Table(
    "reservations",
    metadata,
    Column("reservation_id", String(32), primary_key=True),
    Column("run_id", String(32), nullable=True, unique=True),
    Column("body", Text, nullable=False),
)
