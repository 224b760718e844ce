"""Every reference to a table carries the table's advisory id.

A `table_context_refs` that is there already is adopted with all its rows and columns; otherwise it is made.
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Integer,
    String,
    bindparam,
    column,
    delete,
    inspect,
    select,
    table,
    update,
)

from takehold.clickhouse.registry import ranges
from takehold.clickhouse.registry.entries import Mint
from takehold.clickhouse.registry.migrations.altering import altered, connected
from takehold.clickhouse.registry.naming import LOCK_ONLY
from takehold.clickhouse.snowflake import MACHINES, Minter

__all__ = ["downgrade", "revision", "upgrade"]

revision = "3f7c1b9a52d4"
down_revision: str | None = None

REFS = "table_context_refs"
RANGES = "takehold_machine_ranges"
refs = table(REFS, column("table_name", String), column("context_id", BigInteger), column("advisory_id", BigInteger))


def upgrade() -> None:
    """Add the column, fill it with one id for each name, and only then demand it."""
    connection = connected()
    inspector = inspect(connection)
    if not inspector.has_table(RANGES):
        made = op.create_table(
            RANGES,
            Column("number", Integer, primary_key=True, autoincrement=False),
            Column("until_ms", BigInteger, nullable=False),
        )
        op.bulk_insert(made, [{"number": number, "until_ms": 0} for number in range(MACHINES)])
    if not inspector.has_table(REFS):
        op.create_table(
            REFS,
            Column("table_name", String, primary_key=True),
            Column("context_id", BigInteger, primary_key=True, autoincrement=False),
            Column("advisory_id", BigInteger, nullable=False),
        )
        return
    if "advisory_id" not in {one["name"] for one in inspector.get_columns(REFS)}:
        with altered(REFS) as batch:
            batch.add_column(Column("advisory_id", BigInteger, nullable=True))
    _fill(connection)
    with altered(REFS) as batch:
        batch.alter_column("advisory_id", existing_type=BigInteger(), nullable=False)


def downgrade() -> None:
    """Drop the column. The machine ranges stay: what was minted must not be minted again after the next upgrade."""
    connected().execute(delete(refs).where(refs.c.context_id == LOCK_ONLY))  # they were there for their ids alone
    with altered(REFS) as batch:
        batch.drop_column("advisory_id")


def _fill(connection: Connection) -> None:
    """A name that has an id in some of its rows keeps it; the others get one of their own."""
    pairs = connection.execute(select(refs.c.table_name, refs.c.advisory_id).distinct()).all()
    known = {name: advisory_id for name, advisory_id in pairs if advisory_id is not None}
    lacking = sorted({name for name, advisory_id in pairs if advisory_id is None})
    taken, mint = set(known.values()), _minting(connection)
    for name in lacking:
        while name not in known:
            proposal = mint(1)[0]
            if proposal not in taken:
                known[name] = proposal
                taken.add(proposal)
    if lacking:
        filled = update(refs).where(refs.c.table_name == bindparam("name"), refs.c.advisory_id.is_(None))
        rows = [{"name": name, "id": known[name]} for name in lacking]
        connection.execute(filled.values(advisory_id=bindparam("id")), rows)


def _minting(connection: Connection) -> Mint:
    """As at run time, from ranges of the registry; if this transaction fails, they and the ids are gone together."""
    config = op.get_context().config
    given: Mint | None = config.attributes.get("takehold_mint") if config else None
    return given or Minter(lambda from_ms: ranges.reserve(connection, from_ms)).new
