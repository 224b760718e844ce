"""The migrations: what they make, what they adopt, and that they can be taken back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Inspector, inspect, text
from sqlalchemy.exc import IntegrityError

from takehold import UsageError
from takehold.clickhouse.registry import AsyncRegistry, Registry
from takehold.clickhouse.registry.migrations.versions import (
    add_advisory_id_to_table_context_refs as first,
)
from takehold.clickhouse.registry.migrations.versions import (
    fold_advisory_id_into_table_registry as second,
)
from takehold.clickhouse.registry.schema import metadata
from tests.clickhouse.registries import Counter, Face, connected, in_processes

pytestmark = pytest.mark.slow

EXISTING = (
    "CREATE TABLE table_context_refs (table_name VARCHAR NOT NULL, context_id BIGINT NOT NULL,"
    " note VARCHAR DEFAULT 'none' NOT NULL, CHECK (length(note) < 20), PRIMARY KEY (table_name, context_id))"
)
ROWS = [("p_a", 1, "one"), ("p_a", 2, "two"), ("j_7_b", 2, "three"), ("odd name", 9, "four")]
REFS = "SELECT table_name, context_id, note, advisory_id FROM table_context_refs ORDER BY table_name, context_id"
REGISTRY = "SELECT table_name, advisory_id FROM table_registry ORDER BY table_name"
USED = "SELECT count(*) FROM takehold_machine_ranges WHERE until_ms > 0"


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    with connected(url) as connection:
        return [tuple(row) for row in connection.execute(text(query))]


def inspected(url: str, look: Callable[[Inspector], Any]) -> Any:
    with connected(url) as connection:
        return look(inspect(connection))


def columns(url: str, table: str = "table_context_refs") -> dict[str, Any]:
    return {one["name"]: one for one in inspected(url, lambda inspector: inspector.get_columns(table))}


def make_existing(url: str, extra: str = "") -> None:
    with connected(url) as connection:
        connection.execute(text(EXISTING))
        if extra:
            connection.execute(text(extra))
        insert = text("INSERT INTO table_context_refs (table_name, context_id, note) VALUES (:t, :c, :n)")
        connection.execute(insert, [{"t": name, "c": context, "n": note} for name, context, note in ROWS])


# ------------------------------------------------------------------------------------------------------ a fresh install


@pytest.mark.covers("A-1", "A-5", "A-40")
def test_after_the_last_migration_the_tables_are_those_of_the_schema(sql_url: str, face: Face) -> None:
    face.registry(sql_url).upgrade()

    def differences(connection: Any) -> list[Any]:
        found: list[Any] = compare_metadata(MigrationContext.configure(connection), metadata)
        return [one for one in found if getattr(one[-1], "name", "") != "takehold_clickhouse_version"]

    with connected(sql_url) as connection:
        assert differences(connection) == []
        inspector = inspect(connection)
        assert inspector.get_pk_constraint("table_context_refs")["constrained_columns"] == ["table_name", "context_id"]
        assert inspector.get_pk_constraint("table_registry")["constrained_columns"] == ["table_name"]
        unique = {tuple(one["column_names"]) for one in inspector.get_unique_constraints("table_registry")}
        assert unique == {("advisory_id",), ("table_name", "advisory_id")}
        (foreign,) = inspector.get_foreign_keys("table_context_refs")
        assert foreign["referred_table"] == "table_registry"
        assert foreign["constrained_columns"] == foreign["referred_columns"] == ["table_name", "advisory_id"]
    for table in ("table_context_refs", "table_registry"):
        assert columns(sql_url, table)["advisory_id"]["nullable"] is False
        assert str(columns(sql_url, table)["advisory_id"]["type"]) == "BIGINT"


@pytest.mark.covers("A-32")
def test_without_rows_no_id_is_minted(sql_url: str, face: Face) -> None:
    with connected(sql_url) as connection:
        connection.execute(text(EXISTING))
    mint = Counter()
    face.registry(sql_url, mint=mint).upgrade()
    assert mint.minted == 0
    face.registry(sql_url).upgrade()
    assert rows(sql_url, USED) == [(0,)]


def test_an_upgrade_that_is_done_again_changes_nothing(sql_url: str, face: Face) -> None:
    registry = face.registry(sql_url)
    registry.upgrade()
    advisory_id = registry.incref("p_a", 1)
    registry.upgrade()
    assert registry.advisory_id("p_a") == advisory_id
    assert registry.references("p_a") == [1]


def upgrade_in_a_process(number: int, url: str) -> int:
    async def upgrade() -> int:
        async with AsyncRegistry(url) as registry:
            await registry.upgrade()
            return await registry.incref("p_a", number)

    if number % 2:
        return asyncio.run(upgrade())
    with Registry(url) as registry:
        registry.upgrade()
        return registry.incref("p_a", number)


@pytest.mark.covers("A-31", "A-40")
def test_ten_processes_upgrade_at_once(sql_url: str) -> None:
    make_existing(sql_url)
    answers = in_processes(10, upgrade_in_a_process, sql_url)
    ((stored,),) = rows(sql_url, "SELECT advisory_id FROM table_registry WHERE table_name = 'p_a'")
    assert answers == [stored] * 10
    assert len(rows(sql_url, "SELECT * FROM takehold_clickhouse_version")) == 1


def test_threads_or_tasks_of_one_process_upgrade_at_once(sql_url: str, face: Face) -> None:
    registries = [face.registry(sql_url) for _ in range(4)]
    face.at_once([(one, "upgrade", ()) for one in registries])
    assert registries[0].incref("p_a", 1)


# ------------------------------------------------------------------------------------------------- an existing table


@pytest.mark.covers("A-31", "A-32", "A-37")
def test_rows_that_are_there_get_one_id_for_each_name_and_keep_the_rest(sql_url: str, face: Face) -> None:
    make_existing(sql_url)
    mint = Counter(11, 22, 33)
    registry = face.registry(sql_url, mint=mint)
    registry.upgrade()
    ids = {"j_7_b": 11, "odd name": 22, "p_a": 33}
    assert rows(sql_url, REFS) == [(name, context, note, ids[name]) for name, context, note in sorted(ROWS)]
    assert mint.minted == 3
    assert dict(rows(sql_url, REGISTRY)) == ids
    assert registry.incref("p_a", 3) == 33
    with pytest.raises(IntegrityError), connected(sql_url) as connection:
        connection.execute(text("UPDATE table_context_refs SET note = '12345678901234567890'"))


@pytest.mark.covers("A-5", "A-32")
def test_ids_for_existing_rows_come_from_ranges_of_the_registry_as_at_run_time(sql_url: str, face: Face) -> None:
    make_existing(sql_url)
    registry = face.registry(sql_url)
    registry.upgrade()
    assert rows(sql_url, USED) == [(1,)]
    ids = dict(rows(sql_url, REGISTRY))
    assert len(set(ids.values())) == 3
    assert all(1 << 60 < one < 1 << 63 for one in ids.values())
    assert registry.new()[0] not in ids.values()
    assert rows(sql_url, USED) == [(2,)]  # the range of the migration is not over yet


@pytest.mark.covers("A-31")
def test_after_the_first_migration_alone_the_column_is_there_and_demanded(sql_url: str, face: Face) -> None:
    make_existing(sql_url)
    registry = face.registry(sql_url)
    registry.upgrade()
    registry.downgrade(first.revision)
    assert columns(sql_url)["advisory_id"]["nullable"] is False
    assert not inspected(sql_url, lambda inspector: inspector.has_table("table_registry"))
    found = rows(sql_url, REFS)
    assert [row[:3] for row in found] == sorted(ROWS)
    assert len({(row[0], row[3]) for row in found}) == 3


@pytest.mark.covers("A-33")
def test_a_downgrade_drops_the_column_and_keeps_the_rows(sql_url: str, face: Face) -> None:
    make_existing(sql_url)
    before = columns(sql_url)
    registry = face.registry(sql_url)
    registry.upgrade()
    registry.advisory_id("p_lock_only")
    registry.downgrade("base")
    assert columns(sql_url).keys() == before.keys()
    assert rows(sql_url, "SELECT * FROM table_context_refs ORDER BY 1, 2") == sorted(ROWS)
    registry.upgrade()
    assert {name for name, _ in rows(sql_url, REGISTRY)} == {name for name, _, _ in ROWS}


@pytest.mark.covers("A-9", "A-40")
def test_every_id_survives_the_fold_its_downgrade_and_the_next_upgrade(sql_url: str, face: Face) -> None:
    make_existing(sql_url)
    registry = face.registry(sql_url)
    registry.upgrade()
    registry.advisory_id("p_lock_only")
    registry.incref("p_dropped", 1)
    registry.forget("p_dropped")
    before = rows(sql_url, REGISTRY)
    registry.downgrade("-1")
    kept = {(name, advisory_id) for name, _, _, advisory_id in rows(sql_url, REFS)}
    assert sorted(kept) == before
    negative = rows(sql_url, "SELECT table_name FROM table_context_refs WHERE context_id < 0 ORDER BY 1")
    assert negative == [("p_dropped",), ("p_lock_only",)]
    registry.upgrade()
    assert rows(sql_url, REGISTRY) == before
    assert registry.references("p_lock_only") == []


@pytest.mark.covers("A-31", "A-37")
def test_ids_that_an_application_has_filled_in_are_kept(sql_url: str, face: Face) -> None:
    make_existing(sql_url, "ALTER TABLE table_context_refs ADD COLUMN advisory_id BIGINT")
    with connected(sql_url) as connection:
        connection.execute(text("UPDATE table_context_refs SET advisory_id = 5 WHERE context_id = 1"))
    registry = face.registry(sql_url, mint=Counter(5, 6, 7))
    registry.upgrade()
    assert rows(sql_url, REGISTRY) == [("j_7_b", 6), ("odd name", 7), ("p_a", 5)]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("UPDATE table_context_refs SET advisory_id = context_id", "several values of advisory_id.*p_a"),
        ("UPDATE table_context_refs SET advisory_id = 4", "several values of table_name"),
    ],
)
def test_ids_that_contradict_each_other_are_refused_and_nothing_is_changed(
    sql_url: str, face: Face, change: str, named: str
) -> None:
    make_existing(sql_url, "ALTER TABLE table_context_refs ADD COLUMN advisory_id BIGINT")
    with connected(sql_url) as connection:
        connection.execute(text(change))
    before = rows(sql_url, REFS)
    with pytest.raises(UsageError, match=named):
        face.registry(sql_url).upgrade()
    assert rows(sql_url, REFS) == before
    assert inspected(sql_url, Inspector.get_table_names) == ["table_context_refs"]


def test_a_registry_table_of_somebody_elses_is_refused(sql_url: str, face: Face) -> None:
    with connected(sql_url) as connection:
        connection.execute(text("CREATE TABLE table_registry (table_name VARCHAR PRIMARY KEY, job BIGINT)"))
    with pytest.raises(UsageError, match="not ours"):
        face.registry(sql_url).upgrade()
    assert inspected(sql_url, Inspector.get_table_names) == ["table_registry"]


def test_what_refers_to_the_table_and_what_it_triggers_is_there_afterwards(tmp_path: Path, face: Face) -> None:
    url = f"sqlite:///{tmp_path / 'own.db'}"
    make_existing(url, "CREATE INDEX by_note ON table_context_refs (note)")
    with connected(url) as connection:
        connection.execute(
            text(
                "CREATE TABLE child (t VARCHAR, c BIGINT,"
                " FOREIGN KEY (t, c) REFERENCES table_context_refs ON DELETE CASCADE)"
            )
        )
        connection.execute(text("INSERT INTO child VALUES ('p_a', 1)"))
        connection.execute(
            text("CREATE TRIGGER told AFTER DELETE ON table_context_refs BEGIN DELETE FROM child WHERE c = 99; END")
        )
    face.registry(url).upgrade()
    assert rows(url, "SELECT * FROM child") == [("p_a", 1)]
    assert rows(url, "SELECT name FROM sqlite_master WHERE type = 'trigger'") == [("told",)]
    assert inspected(url, lambda inspector: inspector.get_indexes("table_context_refs"))[0]["name"] == "by_note"


def test_a_revision_that_is_none_is_refused(sql_url: str, face: Face) -> None:
    registry = face.registry(sql_url)
    registry.upgrade()
    with pytest.raises(UsageError, match="no revision"):
        registry.downgrade("nonsense")


# ------------------------------------------------------------------------------------------- in an application's tree

ENV = """
from alembic import context
from tests.clickhouse.registries import engine_of
engine = engine_of(context.config.get_main_option("sqlalchemy.url"))
with engine.connect() as connection:
    context.configure(connection=connection)
    with context.begin_transaction():
        context.run_migrations()
engine.dispose()
"""
THEIRS = f"""
from alembic import op
revision = "b7c8d9e0f1a2"
down_revision = None
def upgrade():
    op.execute("{EXISTING}")
def downgrade():
    op.drop_table("table_context_refs")
"""
OURS = """
from takehold.clickhouse.registry.migrations.versions.{name} import *
down_revision = "{down_revision}"
"""


@pytest.fixture
def tree(tmp_path: Path, sql_url: str) -> Config:
    """An application's own Alembic, whose head was b7c8d9e0f1a2 until it took up our two revisions."""
    versions = tmp_path / "alembic" / "versions"
    versions.mkdir(parents=True)
    (tmp_path / "alembic" / "env.py").write_text(ENV)
    (versions / "b7c8d9e0f1a2_theirs.py").write_text(THEIRS)
    ours = {
        "add_advisory_id_to_table_context_refs": "b7c8d9e0f1a2",
        "fold_advisory_id_into_table_registry": first.revision,
    }
    for name, down_revision in ours.items():
        (versions / f"{name}.py").write_text(OURS.format(name=name, down_revision=down_revision))
    config = Config()
    config.set_main_option("script_location", str(tmp_path / "alembic"))
    config.set_main_option("sqlalchemy.url", sql_url)
    return config


@pytest.mark.covers("A-31", "A-33", "A-37")
def test_an_application_runs_the_migrations_below_its_own_head(tree: Config, sql_url: str, face: Face) -> None:
    assert [one.revision for one in ScriptDirectory.from_config(tree).walk_revisions()] == [
        second.revision,
        first.revision,
        "b7c8d9e0f1a2",
    ]
    command.upgrade(tree, "b7c8d9e0f1a2")
    with connected(sql_url) as connection:
        insert = text("INSERT INTO table_context_refs (table_name, context_id, note) VALUES (:t, :c, :n)")
        connection.execute(insert, [{"t": name, "c": context, "n": note} for name, context, note in ROWS])
    command.upgrade(tree, "+1")
    assert columns(sql_url)["advisory_id"]["nullable"] is False
    after_first = rows(sql_url, REFS)
    assert [row[:3] for row in after_first] == sorted(ROWS)
    command.upgrade(tree, "head")
    assert rows(sql_url, REFS) == after_first
    assert rows(sql_url, "SELECT version_num FROM alembic_version") == [(second.revision,)]

    registry = face.registry(sql_url)
    assert registry.incref("p_a", 3) == dict(rows(sql_url, REGISTRY))["p_a"]
    before = rows(sql_url, REGISTRY)
    registry.upgrade()  # they did it already
    assert rows(sql_url, REGISTRY) == before

    command.downgrade(tree, "b7c8d9e0f1a2")
    assert "advisory_id" not in columns(sql_url)
    assert len(rows(sql_url, "SELECT * FROM table_context_refs")) == len(ROWS) + 1


def test_a_script_of_statements_cannot_mint(tree: Config, capsys: pytest.CaptureFixture[str]) -> None:
    offline = Path(str(tree.get_main_option("script_location"))) / "env.py"
    offline.write_text(
        "from alembic import context\ncontext.configure(url=context.config.get_main_option('sqlalchemy.url'))\n"
        "with context.begin_transaction():\n    context.run_migrations()\n"
    )
    with pytest.raises(UsageError, match="without --sql"):
        command.upgrade(tree, "head", sql=True)


def test_on_a_connection_that_would_cascade_the_migration_is_refused(tree: Config, sql_url: str) -> None:
    command.upgrade(tree, "b7c8d9e0f1a2")
    with connected(sql_url) as connection:
        child = "CREATE TABLE child (t VARCHAR, c BIGINT, FOREIGN KEY (t, c) REFERENCES table_context_refs"
        connection.execute(text(f"{child} (table_name, context_id) ON DELETE CASCADE)"))
    if sql_url.startswith("postgresql"):
        command.upgrade(tree, "head")  # it alters the table in place
        return
    with pytest.raises(UsageError, match="foreign_keys = OFF"):
        command.upgrade(tree, "head")
