"""The tables of the ledger, format 1."""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Float,
    ForeignKey,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    inspect,
    select,
)

from takehold import BackendRefused

__all__ = ["FORMAT", "check_format", "make_tables", "metadata", "tables_are_there"]

FORMAT: Final = 1
BIG: Final = BigInteger().with_variant(Integer, "sqlite")

metadata: Final = MetaData()

format_table: Final = Table("takehold_fragment_format", metadata, Column("format", Integer, primary_key=True))

fragments: Final = Table(
    "takehold_fragments",
    metadata,
    Column("id", BIG, primary_key=True),
    Column("identity", Text, nullable=False, unique=True),
    Column("corpus", Text, nullable=False, index=True),
    Column("document", Text, nullable=False),
    Column("fence", BigInteger, nullable=False, comment="of the newest claim"),
    Column("hash", String(32), nullable=False, comment="what the newest claim was for"),
    Column("owner", Text, nullable=False),
    Column("claimed", Float, nullable=False, comment="seconds since the epoch"),
)
"""One row per identity."""

runs: Final = Table(
    "takehold_fragment_runs",
    metadata,
    # Unique: fragment, profile, content hash.
    Column("fragment", BIG, ForeignKey("takehold_fragments.id"), primary_key=True),
    Column("profile", Text, primary_key=True),
    Column("hash", String(32), primary_key=True),
    Column("status", String(10), nullable=False, comment="done, failed, due"),
    Column("attempts", Integer, nullable=False),
    Column("error", Text),
    Column("owner", Text, nullable=False),
    Column("finished", Float, nullable=False, comment="seconds since the epoch"),
)
"""What came of a fragment with this content, in this profile."""


def tables_are_there(connection: Connection) -> bool:
    """Whether somebody has made them."""
    return inspect(connection).has_table(format_table.name)


def make_tables(connection: Connection) -> None:
    """Make them; the caller sees to it that nobody else does so now."""
    if not tables_are_there(connection):
        metadata.create_all(connection)
        connection.execute(format_table.insert().values(format=FORMAT))


def check_format(connection: Connection) -> None:
    """Refuse tables of another release that count differently."""
    found = connection.scalars(select(format_table.c.format)).all()
    if list(found) != [FORMAT]:
        shown = ", ".join(map(str, found)) or "none"
        raise BackendRefused(f"the ledger has format {shown}, this release knows format {FORMAT}; use the same release")
