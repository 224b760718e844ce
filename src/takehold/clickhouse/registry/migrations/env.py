"""How Alembic runs the migrations: on the connection, and in the transaction, of who called it."""

from alembic import context

from takehold.clickhouse.registry.migrations import VERSION_TABLE

context.configure(connection=context.config.attributes["connection"], version_table=VERSION_TABLE)
with context.begin_transaction():
    context.run_migrations()
