"""The migrations of the registry, by Alembic.

`registry.upgrade()` runs them and keeps its place in a version table of its own. An application that has an Alembic
tree may run them there instead, below whatever revision is its head, by two revision files of two lines each:

    from takehold.clickhouse.registry.migrations.versions.add_advisory_id_to_table_context_refs import *
    down_revision = "b7c8d9e0f1a2"

    from takehold.clickhouse.registry.migrations.versions.fold_advisory_id_into_table_registry import *
    down_revision = "3f7c1b9a52d4"  # `revision` of the first

Both ways lead to the same tables, and one may follow the other: what is done already is left as it is.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Connection, text

from takehold import UsageError
from takehold.clickhouse.registry.entries import Mint

__all__ = ["VERSION_TABLE", "alone", "downgrade", "upgrade"]

VERSION_TABLE = "takehold_clickhouse_version"

alone = threading.Lock()
"""Alembic's `op` and `context` are one for the whole process."""


def upgrade(connection: Connection, mint: Mint | None = None) -> None:
    """To the last revision, in the caller's transaction."""
    command.upgrade(_begun(connection, takehold_mint=mint), "head")


def downgrade(connection: Connection, revision: str) -> None:
    """Back to a revision, in the caller's transaction."""
    config = _begun(connection)
    try:
        command.downgrade(config, revision)
    except CommandError as error:
        raise UsageError(f"{revision!r} is no revision to go back to: {error}") from error


def _begun(connection: Connection, **attributes: Any) -> Config:
    if connection.dialect.name == "postgresql":  # of SQLite we are the only writer already
        connection.execute(text("SELECT pg_advisory_xact_lock(hashtext(:name))"), {"name": VERSION_TABLE})
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes.update(attributes, connection=connection)
    return config
