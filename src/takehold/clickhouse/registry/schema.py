"""The tables of the registry as they are after the last migration."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    ForeignKeyConstraint,
    Integer,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    func,
)

__all__ = ["machine_ranges", "table_context_refs", "table_registry"]

metadata = MetaData()

table_registry = Table(
    "table_registry",
    metadata,
    Column("table_name", String, primary_key=True),
    Column("advisory_id", BigInteger, nullable=False),
    Column("registered_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("claimed_at", DateTime(timezone=True)),  # by whoever drops it: a result that nobody uses
    UniqueConstraint("advisory_id", name="uq_table_registry_advisory_id"),
    UniqueConstraint("table_name", "advisory_id", name="uq_table_registry_table_name_advisory_id"),
)

table_context_refs = Table(
    "table_context_refs",
    metadata,
    Column("table_name", String, primary_key=True),
    Column("context_id", BigInteger, primary_key=True, autoincrement=False),
    Column("advisory_id", BigInteger, nullable=False),
    # "Same table, same id" cannot be broken: a reference names both, and the registry has the pair once.
    ForeignKeyConstraint(
        ["table_name", "advisory_id"],
        ["table_registry.table_name", "table_registry.advisory_id"],
        name="fk_table_context_refs_table_registry",
    ),
)

machine_ranges = Table(
    "takehold_machine_ranges",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("until_ms", BigInteger, nullable=False),  # nobody has minted as this machine from here on
)
