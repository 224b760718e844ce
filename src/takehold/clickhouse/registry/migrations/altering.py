"""Changes a table that may be an application's own, and that SQLite can change only by making it anew."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from alembic import op
from alembic.operations import BatchOperations
from sqlalchemy import CheckConstraint, Connection, inspect, text

from takehold import UsageError

__all__ = ["altered", "connected"]

TRIGGERS = text("SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = :table")


def connected() -> Connection:
    """The connection of the migration."""
    if op.get_context().as_sql:
        raise UsageError("this migration mints ids for the rows that it finds: run it on the database, without --sql")
    return op.get_bind()


@contextmanager
def altered(table: str) -> Iterator[BatchOperations]:
    """Alembic's batch, and what it would leave behind of a table that it makes anew."""
    connection = connected()
    if connection.dialect.name != "sqlite":
        with op.batch_alter_table(table) as batch:
            yield batch
        return
    _refuse_to_cascade(connection, table)
    triggers = _triggers(connection, table)
    unnamed = [one["sqltext"] for one in inspect(connection).get_check_constraints(table) if not one["name"]]
    with op.batch_alter_table(table, table_args=tuple(CheckConstraint(sql) for sql in unnamed)) as batch:
        yield batch
    for name in triggers.keys() - _triggers(connection, table).keys():
        connection.exec_driver_sql(triggers[name])


def _triggers(connection: Connection, table: str) -> dict[str, str]:
    return {name: sql for name, sql in connection.execute(TRIGGERS, {"table": table})}  # noqa: C416 - typed this way


def _refuse_to_cascade(connection: Connection, table: str) -> None:
    if not connection.exec_driver_sql("PRAGMA foreign_keys").scalar():
        return
    inspector = inspect(connection)
    for other in inspector.get_table_names():
        if any(key["referred_table"] == table for key in inspector.get_foreign_keys(other)):
            raise UsageError(
                f"{other} refers to {table}, which SQLite makes anew, and with that deletes what refers to it:"
                " run this migration on a connection with PRAGMA foreign_keys = OFF"
            )
