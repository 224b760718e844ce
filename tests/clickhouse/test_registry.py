"""The registry: one advisory id for each name, whoever asks first, and who uses a table."""

from __future__ import annotations

import asyncio
import os
import uuid
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import create_async_engine

from takehold import BackendRefused, UsageError
from takehold.clickhouse.mode import is_distributed
from takehold.clickhouse.registry import AsyncRegistry, Registry
from tests import parity
from tests.clickhouse.registries import Counter, Face, connected, in_processes
from tests.lanes import scaled
from tests.servers.postgres import Postgres

pytestmark = pytest.mark.slow

FIRST, SECOND = 7528893687015669760, 7528893687015669761


@pytest.fixture
def registry(sql_url: str, face: Face) -> Any:
    made = face.registry(sql_url)
    made.upgrade()
    return made


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    with connected(url) as connection:
        return [tuple(row) for row in connection.execute(text(query))]


REGISTRY = "SELECT table_name, advisory_id FROM table_registry ORDER BY table_name"
REFS = "SELECT table_name, context_id, advisory_id FROM table_context_refs ORDER BY table_name, context_id"


# -------------------------------------------------------------------------------------------------- one id per name


@pytest.mark.covers("A-1", "A-2", "A-3", "A-37")
def test_a_table_has_one_id_in_every_context_and_it_is_minted_once(sql_url: str, face: Face) -> None:
    mint = Counter(FIRST, SECOND)
    registry = face.registry(sql_url, mint=mint)
    registry.upgrade()
    assert registry.incref("p_a", 1) == FIRST
    assert registry.incref("p_a", 2) == FIRST
    assert registry.advisory_id("p_a") == FIRST
    assert mint.minted == 1
    assert registry.incref("p_b", 1) == SECOND
    assert rows(sql_url, REFS) == [("p_a", 1, FIRST), ("p_a", 2, FIRST), ("p_b", 1, SECOND)]


@pytest.mark.covers("A-4", "A-37")
def test_a_reference_that_is_there_is_not_made_again(sql_url: str, registry: Any) -> None:
    first = registry.incref("p_a", 1)
    assert registry.incref("p_a", 1) == first
    assert rows(sql_url, REFS) == [("p_a", 1, first)]


@pytest.mark.covers("A-1", "A-2")
def test_the_database_refuses_a_second_id_for_a_name_and_a_reference_without_one(sql_url: str, registry: Any) -> None:
    first = registry.incref("p_a", 1)
    other = registry.incref("p_b", 1)
    for context_id, advisory_id in ((2, first + 1), (2, other), (2, None), (1, first)):
        values = {"context": context_id, "id": advisory_id}
        with pytest.raises(IntegrityError), connected(sql_url) as connection:
            connection.execute(text("INSERT INTO table_context_refs VALUES ('p_a', :context, :id)"), values)


@pytest.mark.covers("A-5", "A-37")
def test_an_id_is_a_positive_number_of_63_bits_and_no_two_names_share_one(registry: Any) -> None:
    ids = [registry.advisory_id(f"p_{number}") for number in range(20)]
    assert len(set(ids)) == 20
    assert all(1 << 60 < one < 1 << 63 for one in ids)


@pytest.mark.covers("A-5")
def test_an_id_that_another_table_has_is_minted_anew_in_the_same_transaction(sql_url: str, face: Face) -> None:
    mint = Counter(FIRST, FIRST, FIRST, SECOND)
    registry = face.registry(sql_url, mint=mint)
    registry.upgrade()
    assert registry.advisory_id("p_a") == FIRST
    with face.statements(registry) as statements:
        assert registry.advisory_id("p_b") == SECOND
    assert mint.minted == 4
    assert sum("INSERT" in one for one in statements) == 3
    assert sum("BEGIN" in one for one in statements) <= 1
    assert rows(sql_url, REGISTRY) == [("p_a", FIRST), ("p_b", SECOND)]


def test_a_mint_that_repeats_itself_is_refused_and_not_asked_for_ever(sql_url: str, face: Face) -> None:
    registry = face.registry(sql_url, mint=lambda n: [FIRST] * n)
    registry.upgrade()
    registry.advisory_id("p_a")
    with pytest.raises(BackendRefused, match="repeats itself"):
        registry.advisory_id("p_b")


@pytest.mark.covers("A-6", "A-8")
def test_twenty_at_once_get_the_one_id_that_is_stored(sql_url: str, face: Face) -> None:
    face.registry(sql_url).upgrade()
    mint = Counter()
    registries = [face.registry(sql_url, mint=mint) for _ in range(20)]
    calls: list[Any] = [(one, "incref", ("p_new", number)) for number, one in enumerate(registries)]
    ids = face.at_once(calls)
    ((_, stored),) = rows(sql_url, REGISTRY)
    assert set(ids) == {stored}
    assert mint.minted == 1
    assert {row[2] for row in rows(sql_url, REFS)} == {stored}
    assert len(rows(sql_url, REFS)) == 20


def resolve_in_a_process(number: int, url: str) -> list[int]:
    async def resolve() -> list[int]:
        async with AsyncRegistry(url) as registry:
            return [await registry.advisory_id(f"p_{name}") for name in range(10)]

    if number % 2:
        return asyncio.run(resolve())
    with Registry(url) as registry:
        return [registry.incref(f"p_{name}", number) for name in range(10)]


@pytest.mark.covers("A-6", "A-8")
def test_processes_of_both_faces_agree_on_new_names(sql_url: str) -> None:
    with Registry(sql_url) as registry:
        registry.upgrade()
    answers = in_processes(6, resolve_in_a_process, sql_url)
    assert answers == [[advisory_id for _, advisory_id in rows(sql_url, REGISTRY)]] * 6


@pytest.mark.covers("A-8")
def test_the_loser_of_a_race_returns_what_is_stored_and_not_what_it_minted(sql_url: str, face: Face) -> None:
    face.registry(sql_url).upgrade()

    def beaten(n: int) -> list[int]:
        # By one who does not know the lock of the name, so that only the stored row decides.
        if sql_url.startswith("postgresql"):
            with connected(sql_url) as connection:
                connection.execute(text(f"INSERT INTO table_registry VALUES ('p_a', {FIRST})"))
        return [SECOND] * n

    loser = face.registry(sql_url, mint=beaten)
    won = loser.advisory_id("p_a")
    assert won == (FIRST if sql_url.startswith("postgresql") else SECOND)  # SQLite lets nobody in between
    assert loser.advisory_id("p_a") == won == face.registry(sql_url).incref("p_a", 1)


@pytest.mark.covers("A-7")
def test_the_name_is_locked_while_its_id_is_minted_and_no_longer(
    postgres_url: str, postgres_server: Postgres, face: Face
) -> None:
    seen = []

    def look(n: int) -> list[int]:
        seen.extend(postgres_server.advisory_locks())
        return [FIRST] * n

    name = f"registry_{uuid.uuid4().hex}"
    url = postgres_server.database(name)
    registry = face.registry(url, mint=look)
    registry.upgrade()
    try:
        registry.advisory_id("p_a")
        ((_, high, low, *_),) = seen
        ((key,),) = postgres_server.query("SELECT hashtext('p_a')::bigint & 4294967295")
        assert low == key
        assert high in {0, 0xFFFFFFFF}
        assert postgres_server.advisory_locks() == []
    finally:
        postgres_server.query(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.covers("A-9")
@pytest.mark.parametrize("table", ["events", "analytics.events"])
def test_a_table_that_nobody_registered_gets_its_id_when_it_is_asked_for(
    sql_url: str, registry: Any, table: str
) -> None:
    advisory_id = registry.advisory_id(table)
    assert rows(sql_url, REGISTRY) == [(table, advisory_id)]
    assert rows(sql_url, REFS) == []


# ----------------------------------------------------------------------------------------------------------- cache


@pytest.mark.covers("A-29", "A-37")
def test_a_second_resolve_sends_no_statement(sql_url: str, registry: Any, face: Face) -> None:
    first = registry.advisory_id("p_a")
    second = registry.incref("p_b", 1)
    another = face.registry(sql_url)
    for one in (registry, another):
        with face.statements(one) as statements:
            assert (one.advisory_id("p_a"), one.advisory_id("p_b")) == (first, second)
        assert statements == []


@pytest.mark.covers("A-29")
def test_the_cache_knows_databases_apart(sql_url: str, registry: Any, face: Face, tmp_path: Path) -> None:
    other = face.registry(f"sqlite:///{tmp_path / 'other.db'}")
    other.upgrade()
    assert registry.advisory_id("p_a") != other.advisory_id("p_a")


def resolve_cold(_: int, url: str) -> int:
    with Registry(url) as registry:
        return registry.advisory_id("p_a")


@pytest.mark.covers("A-29")
def test_the_cache_knows_databases_apart_whose_relative_names_are_one(
    face: Face, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / folder / "registry.db" for folder in ("one", "two")]
    for file in files:
        file.parent.mkdir()
        face.registry(f"sqlite:///{file}").upgrade()
    for file in files:
        monkeypatch.chdir(file.parent)
        found = face.registry("sqlite:///registry.db").advisory_id("p_prices")
        assert rows(f"sqlite:///{file}", "SELECT advisory_id FROM table_registry") == [(found,)]


@pytest.mark.covers("A-30", "A-40")
def test_a_dropped_table_that_is_made_again_has_its_old_id_also_for_a_cold_cache(sql_url: str, registry: Any) -> None:
    warm = registry.incref("p_a", 1)
    registry.incref("p_a", 2)
    registry.forget("p_a")
    assert registry.references("p_a") == []
    assert in_processes(1, resolve_cold, sql_url) == [warm]
    assert registry.advisory_id("p_a") == registry.incref("p_a", 3) == warm


# ------------------------------------------------------------------------------------------------------ references


@pytest.mark.covers("A-37")
def test_references_are_counted(registry: Any) -> None:
    for context_id in (3, 0, (1 << 63) - 1):
        registry.incref("p_a", context_id)
    assert registry.references("p_a") == [0, 3, (1 << 63) - 1]
    assert registry.decref("p_a", 0) == 2
    assert registry.decref("p_a", 0) == 2
    assert registry.decref("p_a", 3) == 1
    assert registry.decref("p_a", (1 << 63) - 1) == 0
    assert registry.decref("p_never", 1) == 0


def test_a_context_whose_process_was_killed_can_be_taken_off_everything_at_once(registry: Any) -> None:
    for table, context_id in (("t_1", 1), ("t_2", 1), ("t_2", 2), ("p_a", 1)):
        registry.incref(table, context_id)
    registry.leave(1)
    assert [registry.references(table) for table in ("t_1", "t_2", "p_a")] == [[], [2], []]
    assert registry.unreferenced() == ["t_1"]


@pytest.mark.covers("A-37")
def test_of_the_last_users_at_once_exactly_one_is_told_that_nobody_is_left(sql_url: str, face: Face) -> None:
    registries = [face.registry(sql_url) for _ in range(8)]
    registries[0].upgrade()
    for attempt in range(5):
        for context_id in range(8):
            registries[0].incref("t_1", context_id)
        calls: list[Any] = [(one, "decref", ("t_1", context_id)) for context_id, one in enumerate(registries)]
        assert sorted(face.at_once(calls)) == list(range(8)), attempt


def test_only_results_of_operators_are_ever_reported_as_unreferenced(registry: Any) -> None:
    for table in ("t_1", "t_2", "t_3", "p_a", "tx1", "t_mine"):
        registry.incref(table, 1)
        registry.decref(table, 1)
    registry.incref("t_2", 7)
    assert registry.unreferenced() == ["t_1", "t_3"]
    registry.forget("t_1")
    registry.forget("t_3")
    assert registry.unreferenced() == []
    registry.incref("t_1", 1)
    registry.decref("t_1", 1)
    assert registry.unreferenced() == ["t_1"]


def test_a_result_can_be_claimed_when_nobody_uses_it_and_then_nobody_can(sql_url: str, registry: Any) -> None:
    for table in ("t_1", "p_a"):
        registry.incref(table, 1)
    assert not registry.claim("t_1")
    registry.decref("t_1", 1)
    registry.decref("p_a", 1)
    assert not registry.claim("p_a"), "a shared table is never dropped for want of users"
    assert registry.claim("t_1")
    with pytest.raises(UsageError, match="being dropped"):
        registry.incref("t_1", 2)
    assert registry.references("t_1") == []
    assert registry.unreferenced() == ["t_1"], "also when who claimed it has died"
    registry.forget("t_1")
    assert [name for name, _ in rows(sql_url, REGISTRY)] == ["p_a"], "nothing stays of a result"


def test_either_a_result_is_claimed_or_somebody_uses_it(sql_url: str, face: Face) -> None:
    registries = [face.registry(sql_url) for _ in range(6)]
    registries[0].upgrade()
    for attempt in range(scaled(100)):
        table = f"t_{attempt}"
        registries[0].incref(table, 0)
        registries[0].decref(table, 0)
        calls: list[Any] = [(one, "claim", (table,)) for one in registries[:3]]
        calls += [(one, "incref", (table, number)) for number, one in enumerate(registries[3:])]
        answers = face.at_once(calls, refused=True)
        assert set(map(type, answers[3:])) <= {int, UsageError}, answers
        used = sum(isinstance(one, int) for one in answers[3:])
        assert len(registries[0].references(table)) == used
        assert any(answers[:3]) != bool(used), attempt


@pytest.mark.covers("A-9", "A-37")
@pytest.mark.parametrize("context_id", [-1, -(1 << 62), 1 << 63, True, "1", None])
def test_a_context_that_cannot_be_is_refused(registry: Any, context_id: Any) -> None:
    for method, *arguments in ((registry.incref, "p_a"), (registry.decref, "p_a"), (registry.leave,)):
        with pytest.raises(UsageError, match="context"):
            method(*arguments, context_id)


@pytest.mark.covers("A-9")
def test_a_name_that_is_none_is_refused(registry: Any) -> None:
    for table in ("", "1a", "a b", "a;b", "a-b", "a\n", "p_ä", "a.b.c", ".a", "a.", None, 3):
        calls = (
            (registry.advisory_id, table),
            (registry.incref, table, 1),
            (registry.decref, table, 1),
            (registry.references, table),
            (registry.claim, table),
            (registry.forget, table),
        )
        for call, *arguments in calls:
            with pytest.raises(UsageError, match="name of a table"):
                call(*arguments)
    with pytest.raises(UsageError, match="name of a table"):
        registry.incref("db.table", 1)


# ------------------------------------------------------------------------------------------------------- databases


@pytest.mark.covers("A-19", "A-37")
@pytest.mark.parametrize(
    ("url", "distributed"),
    [
        ("postgresql://db/app", True),
        ("postgresql+asyncpg://db/app", True),
        ("sqlite:///app.db", False),
        ("sqlite+aiosqlite:////postgresql.db", False),
        ("mysql://db/postgresql", False),
        ("", False),
    ],
)
def test_it_is_distributed_if_the_url_begins_with_postgresql(url: str, distributed: bool) -> None:
    assert is_distributed(url) is distributed


def test_without_its_tables_the_registry_says_what_to_do(sql_url: str, face: Face) -> None:
    registry = face.registry(sql_url)
    for call in (lambda: registry.incref("p_a", 1), registry.new, registry.unreferenced):
        with pytest.raises(UsageError, match=r"registry\.upgrade\(\)"):
            call()


@pytest.mark.parametrize("url", ["mysql://h/db", "sqlite://", "sqlite:///:memory:", "nonsense", 7, None])
def test_another_database_is_refused(face: Face, url: Any) -> None:
    with pytest.raises(UsageError, match="sqlite:///path"):
        face.registry(url)


def test_every_driver_and_engine_of_a_database_leads_to_the_same_registry(sql_url: str, face: Face) -> None:
    if sql_url.startswith("postgresql"):
        drivers = ["postgresql+psycopg", "postgresql+asyncpg", "postgresql+psycopg2", "postgresql"]
    else:
        drivers = ["sqlite+pysqlite", "sqlite+aiosqlite", "sqlite"]
    urls = [sql_url.replace(sql_url.partition(":")[0], driver, 1) for driver in drivers]
    engine, async_engine = create_engine(urls[0]), create_async_engine(urls[1])
    first = face.registry(sql_url)
    first.upgrade()
    first.incref("p_a", 7)
    everything: list[Any] = [*urls, engine, async_engine]
    for database in everything:
        assert face.registry(database).references("p_a") == [7], database


def test_a_url_may_say_what_libpq_understands(postgres_url: str, face: Face) -> None:
    registry = face.registry(f"{postgres_url}?sslmode=disable&application_name=me&options=-csearch_path%3Dnowhere")
    with pytest.raises(UsageError, match=r"registry\.upgrade"):
        registry.references("p_a")


def test_a_forked_child_uses_connections_of_its_own(sql_url: str) -> None:
    with Registry(sql_url) as registry:
        registry.upgrade()
        advisory_id = registry.incref("p_a", 1)
        if not (child := os.fork()):
            try:
                os._exit(0 if registry.incref("p_a", 2) == advisory_id and registry.new() else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert registry.references("p_a") == [1, 2]


def test_one_registry_serves_one_event_loop_after_the_other(sql_url: str) -> None:
    registry = AsyncRegistry(sql_url)

    async def use(number: int) -> list[int]:
        await registry.upgrade()
        await registry.incref("p_a", number)
        found = await registry.references("p_a")
        await registry.close()
        return found

    assert asyncio.run(use(1)) == [1]
    assert asyncio.run(use(2)) == [1, 2]


def test_a_registry_shows_no_password() -> None:
    assert "secret" not in repr(Registry("postgresql://me:secret@db/app"))


@pytest.mark.covers("A-37")
def test_both_faces_of_the_registry_are_the_same() -> None:
    assert not parity.differences(Registry, AsyncRegistry)
