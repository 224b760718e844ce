"""What the registry knows of tables, as plain functions inside a transaction of the caller's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from sqlalchemy import Connection, delete, exists, func, select, text, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError

from takehold import BackendRefused, UsageError
from takehold.clickhouse.registry.naming import is_result
from takehold.clickhouse.registry.schema import table_context_refs as refs
from takehold.clickhouse.registry.schema import table_registry as registry

__all__ = ["Mint", "claim", "decref", "find", "forget", "incref", "leave", "references", "register", "unreferenced"]

Mint: TypeAlias = Callable[[int], list[int]]
"""Gives so many new ids, as `snowflake.new` does."""

PROPOSALS = 100


def find(connection: Connection, table: str) -> int | None:
    """The advisory id of a table, if it has one."""
    return connection.scalar(select(registry.c.advisory_id).where(registry.c.table_name == table))


def register(connection: Connection, table: str, mint: Mint) -> int:
    """The advisory id of a table; it gets one if it has none."""
    known = find(connection, table)
    if known is not None:
        return known
    if connection.dialect.name == "postgresql":
        # Whoever else registers this name waits here until we have committed, and then mints nothing.
        connection.execute(text("SELECT pg_advisory_xact_lock(hashtext(:name))"), {"name": table})
        known = find(connection, table)
    for _ in range(PROPOSALS):
        if known is not None:
            return known
        # What was minted is a proposal, and the stored id is the truth. Nothing stored: another table has this id.
        _insert(connection, registry, table_name=table, advisory_id=mint(1)[0])
        known = find(connection, table)
    raise BackendRefused(f"{PROPOSALS} ids in a row belong to other tables: what mints them repeats itself")


def incref(connection: Connection, table: str, context_id: int, mint: Mint) -> int:
    """Note that a context uses a table; the table's advisory id."""
    advisory_id = register(connection, table, mint)
    gone = UsageError(f"{table} is being dropped: nobody used it any more")
    try:
        _insert(connection, refs, table_name=table, context_id=context_id, advisory_id=advisory_id)
    except IntegrityError as error:  # it was claimed and forgotten since its id was looked up
        raise gone from error
    # After the row above, which waits for who claims it: from then on it is the one or the other.
    if connection.scalar(select(registry.c.claimed_at).where(registry.c.table_name == table)) is not None:
        raise gone
    return advisory_id


def decref(connection: Connection, table: str, context_id: int) -> int:
    """Note that a context no longer uses a table; how many still do."""
    _hold_still(connection, table)
    connection.execute(delete(refs).where(refs.c.table_name == table, refs.c.context_id == context_id))
    return connection.scalar(select(func.count()).select_from(refs).where(refs.c.table_name == table)) or 0


def leave(connection: Connection, context_id: int) -> None:
    """Drop all references of a context."""
    connection.execute(delete(refs).where(refs.c.context_id == context_id))


def references(connection: Connection, table: str) -> list[int]:
    """The contexts that use a table."""
    return list(connection.scalars(select(refs.c.context_id).where(refs.c.table_name == table).order_by("context_id")))


def unreferenced(connection: Connection) -> list[str]:
    """Results of operators, `t_<id>`, that no context uses and nobody has forgotten."""
    used = exists().where(refs.c.table_name == registry.c.table_name)
    query = select(registry.c.table_name).where(registry.c.table_name.startswith("t_", autoescape=True), ~used)
    names = connection.scalars(query.order_by(registry.c.table_name))
    return [name for name in names if is_result(name)]


def claim(connection: Connection, table: str) -> bool:
    """Whether the result of an operator may be dropped: nobody uses it, and from now on nobody can."""
    _hold_still(connection, table)
    used = connection.scalar(select(func.count()).select_from(refs).where(refs.c.table_name == table))
    if used or not is_result(table):
        return False
    connection.execute(update(registry).where(registry.c.table_name == table).values(claimed_at=func.now()))
    return True


def forget(connection: Connection, table: str) -> None:
    """Drop all references to a table that was dropped.

    Its id stays: a table of this name that is made again has the same one. Of a result nothing stays, because nobody
    makes one of its name again.
    """
    _hold_still(connection, table)
    connection.execute(delete(refs).where(refs.c.table_name == table))
    if is_result(table):
        connection.execute(delete(registry).where(registry.c.table_name == table))


def _hold_still(connection: Connection, table: str) -> None:
    """Nobody else adds or drops a reference until we have committed, so that one of two last users counts zero."""
    connection.execute(select(registry.c.advisory_id).where(registry.c.table_name == table).with_for_update())


def _insert(connection: Connection, into: Any, **values: Any) -> None:
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    connection.execute(dialect.insert(into).values(**values).on_conflict_do_nothing())
