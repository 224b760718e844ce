"""One row for each table has its advisory id, and the references refer to it."""

from __future__ import annotations

from alembic import op
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    DateTime,
    String,
    UniqueConstraint,
    column,
    delete,
    func,
    insert,
    inspect,
    literal,
    select,
    table,
)

from takehold import UsageError
from takehold.clickhouse.registry.migrations.altering import altered, connected
from takehold.clickhouse.registry.naming import LOCK_ONLY

__all__ = ["downgrade", "revision", "upgrade"]

revision = "9d20e6c4f81b"
down_revision: str | None = "3f7c1b9a52d4"

REFS = "table_context_refs"
REGISTRY = "table_registry"
TO_REGISTRY = "fk_table_context_refs_table_registry"
OWN = {"table_name", "advisory_id", "registered_at", "claimed_at"}

refs = table(REFS, column("table_name", String), column("context_id", BigInteger), column("advisory_id", BigInteger))
registry = table(REGISTRY, column("table_name", String), column("advisory_id", BigInteger))


def upgrade() -> None:
    """Give every name a row with the id that it has, and make that the only id it can have."""
    connection = connected()
    inspector = inspect(connection)
    if inspector.has_table(REGISTRY):
        if {one["name"] for one in inspector.get_columns(REGISTRY)} >= OWN:
            return
        raise UsageError(f"there is a {REGISTRY} that is not ours: rename it, or keep the registry in another schema")
    _refuse_ambiguous(connection)
    op.create_table(
        REGISTRY,
        Column("table_name", String, primary_key=True),
        Column("advisory_id", BigInteger, nullable=False),
        Column("registered_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
        Column("claimed_at", DateTime(timezone=True)),
        UniqueConstraint("advisory_id", name="uq_table_registry_advisory_id"),
        UniqueConstraint("table_name", "advisory_id", name="uq_table_registry_table_name_advisory_id"),
    )
    pairs = select(refs.c.table_name, refs.c.advisory_id).distinct()
    connection.execute(insert(registry).from_select(["table_name", "advisory_id"], pairs))
    connection.execute(delete(refs).where(refs.c.context_id == LOCK_ONLY))
    with altered(REFS) as batch:
        both = ["table_name", "advisory_id"]
        batch.create_foreign_key(TO_REGISTRY, REGISTRY, both, both)


def downgrade() -> None:
    """Drop the registry. A table without references keeps its id in a row of a context that cannot be."""
    connection = connected()
    with altered(REFS) as batch:
        batch.drop_constraint(TO_REGISTRY, type_="foreignkey")
    alone = select(registry.c.table_name, literal(LOCK_ONLY, BigInteger), registry.c.advisory_id).where(
        registry.c.table_name.not_in(select(refs.c.table_name))
    )
    connection.execute(insert(refs).from_select(["table_name", "context_id", "advisory_id"], alone))
    op.drop_table(REGISTRY)


def _refuse_ambiguous(connection: Connection) -> None:
    """Rows that somebody else has filled may contradict each other, and which is right cannot be known."""
    for one, other in ((refs.c.table_name, refs.c.advisory_id), (refs.c.advisory_id, refs.c.table_name)):
        several = select(one).group_by(one).having(func.count(other.distinct()) > 1)
        if found := connection.scalars(several.limit(5)).all():
            raise UsageError(
                f"{REFS} has several values of {other.name} for one {one.name}, as for {list(found)}: correct it first"
            )
