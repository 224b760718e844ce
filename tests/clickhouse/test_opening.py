"""Opening: which places go together, what is missing said by name, and the names that are public."""

from __future__ import annotations

import ast
import asyncio
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from takehold import BackendRefused, UsageError, clickhouse
from takehold.clickhouse import snowflake
from takehold.clickhouse.channel import Channel
from tests import parity
from tests.clickhouse.stores import Place, Stores
from tests.servers.clickhouse import ClickHouse
from tests.servers.postgres import Postgres

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src" / "takehold" / "clickhouse"


@pytest.mark.parametrize("name", ["Table", "Store", "Object", "Registry"])
@pytest.mark.covers("A-37")
def test_both_faces_have_the_same_names_parameters_and_annotations(name: str) -> None:
    assert not parity.differences(getattr(clickhouse, name), getattr(clickhouse, f"Async{name}"))


@pytest.mark.covers("A-37")
def test_what_is_public_is_there_and_documented() -> None:
    assert len(set(clickhouse.__all__)) == len(clickhouse.__all__)
    for name in clickhouse.__all__:
        assert (getattr(clickhouse, name).__doc__ or "").strip(), name
        assert not parity.positional_flags(getattr(clickhouse, name)), name
    assert clickhouse.is_distributed("postgresql://db/app")
    assert len(snowflake.new(3)) == 3


@pytest.mark.covers("A-21")
def test_a_server_with_sqlite_is_refused_unless_all_writers_are_on_this_host(
    clickhouse_url: str, embedded: Place
) -> None:
    mixed = Place(clickhouse_url, embedded.sql_url)
    for open_ in (clickhouse.open, clickhouse.open_async):
        with pytest.raises(UsageError, match="one_host=True"):
            open_(*vars(mixed).values())
    for face in ("blocking", "asyncio"):
        with Stores(face, mixed) as stores:
            store = stores.open(one_host=True)
            store.create([1], "new", timeout=5)
            store.insert("new", [2])
            assert store.object("new").value()[-1] == 2


@pytest.mark.slow
def test_the_engine_in_process_with_postgresql_is_a_place_too(embedded: Place, distributed: Place) -> None:
    with Stores("blocking", Place(embedded.ch_url, distributed.sql_url)) as stores:
        assert stores.open().create([1], "new").value() == [1]


@pytest.mark.parametrize(
    ("ch_url", "sql_url", "sentence"),
    [
        ("mysql://h/d", "postgresql://h/d", "ClickHouse is chdb"),
        (None, "postgresql://h/d", "ClickHouse is chdb"),
        ("chdb:///tmp/x", None, "the SQL database is"),
        ("chdb:///tmp/x", "mysql://h/d", "the registry takes"),
        ("chdb:///tmp/x", "sqlite://", "needs a file"),
    ],
)
def test_places_that_are_none_are_refused(ch_url: Any, sql_url: Any, sentence: str) -> None:
    async def opened() -> None:
        await clickhouse.open_async(ch_url, sql_url)

    with pytest.raises(UsageError, match=sentence):
        clickhouse.open(ch_url, sql_url)
    with pytest.raises(UsageError, match=sentence):
        asyncio.run(opened())


@pytest.mark.slow
def test_what_cannot_be_opened_leaves_nothing_open(
    emptied_url: str, postgres_server: Postgres, embedded: Place, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match="refused"):
        clickhouse.open("clickhouse://127.0.0.1:1/db", emptied_url)
    connected = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'takehold_registry'"
    assert postgres_server.query(connected) == [(0,)]
    with Stores("blocking", embedded) as stores:
        stores.open()
        with pytest.raises(UsageError, match="close that store"):
            clickhouse.open(f"chdb:///{tmp_path / 'second'}", embedded.sql_url)
    taken = "from takehold import clickhouse; clickhouse.open({!r}, {!r})"
    with Stores("blocking", embedded) as stores:
        stores.open()
        code = taken.format(embedded.ch_url, f"sqlite:///{tmp_path / 'other.db'}")
        second = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "only one process at a time can have it open" in second.stderr


@pytest.mark.slow
def test_an_opening_that_is_entered_is_closed_in_the_end(embedded: Place) -> None:
    async def entered() -> None:
        async with clickhouse.open_async(embedded.ch_url, embedded.sql_url) as store:
            made = await store.create([1])
            assert await store.tables() == [made.table]
        store = await clickhouse.open_async(embedded.ch_url, embedded.sql_url, migrate=False)
        assert await store.tables() == []
        await store.close()

    asyncio.run(entered())


@pytest.mark.slow
@pytest.mark.covers("A-41")
def test_a_store_on_a_server_with_replicas_is_refused(
    clickhouse_pair: tuple[ClickHouse, ClickHouse], emptied_url: str
) -> None:
    with pytest.raises(
        BackendRefused, match=r"reports 2 replicas in the cluster 'pair'.*write cluster='pair', in clickhouse\.Table"
    ):
        clickhouse.open(clickhouse_pair[0].url(), emptied_url)


# --------------------------------------------------------------------------------------------------- what is installed


def test_importing_takehold_loads_none_of_it() -> None:
    code = "import sys, takehold; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    ours = {"takehold.clickhouse", "clickhouse_connect", "pyarrow", "sqlalchemy", "alembic", "chdb", "pandas"}
    assert not ours & set(loaded.stdout.split())


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["clickhouse_connect", "pyarrow", "sqlalchemy", "alembic"])
def test_what_is_missing_is_said_with_the_extra_that_has_it(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; import takehold.clickhouse"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].startswith("ImportError: takehold.clickhouse needs")
    assert "pip install 'takehold[clickhouse]'" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("missing", "urls", "extra"),
    [
        ("chdb", ("chdb:///{}/ch", "sqlite:///{}/r.db"), "takehold[chdb]"),
        ("psycopg", ("chdb:///{}/ch", "postgresql://h/d"), "takehold[postgres]"),
    ],
)
def test_a_driver_that_is_missing_is_said_with_the_extra_that_has_it(
    missing: str, urls: tuple[str, str], extra: str, tmp_path: Path
) -> None:
    ch_url, sql_url = (url.format(tmp_path) for url in urls)
    code = (
        f"import sys; sys.modules[{missing!r}] = None; from takehold import clickhouse;"
        f" clickhouse.open({ch_url!r}, {sql_url!r})"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False)
    assert "UsageError" in done.stderr.splitlines()[-1]
    assert extra in done.stderr.splitlines()[-1]


def test_pandas_is_nobodys_dependency_and_chdb_is_an_extra_of_its_own() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert not [one for one in extras["clickhouse"] if one.startswith(("pandas", "chdb"))]
    assert [one.partition(">")[0] for one in extras["chdb"]] == ["chdb-core"]
    assert not [name for name, needs in extras.items() if name != "chdb" and any("chdb" in one for one in needs)]


# ------------------------------------------------------------------------------------------------- who writes where

WRITES = re.compile(
    "INSERT INTO|(ALTER|CREATE|DROP|UNDROP|RENAME|EXCHANGE|TRUNCATE|OPTIMIZE) TABLE|DELETE FROM|UPDATE |REPLACE"
    "|ATTACH|MOVE PARTITION|KILL QUERY|ON CLUSTER"
)
ADDS_ROWS = {
    "appending:_send": "under the hold of the table",
    "ledger:_write": "the ledger, which nobody reads by order",
    "objects.unshared:fill": "tables that one call has for itself",
}
OTHER = {
    "appending:_before": "under the hold: what an earlier call with the token left",
    "appending:_end": "ends queries",
    "appending:_prepare": "under the hold: hidden columns",
    "channel:__init__": "what other statements say of a cluster",
    "description:check_replicas": "says what to set",
    "description:check_token": "says what to set",
    "ledger:create": "makes the ledger",
    "objects.core:_drop": "drops",
    "objects.core:copy": "gives a table that is whole its name; copies are not serialized, and say so",
    "objects.relation:definition": "makes tables",
}
CALLERS = {
    "write_held": {"appending:write", "objects.core:_append"},
    "_insert": {"appending:write_held"},
    "_send": {"appending:_insert"},
    "_before": {"appending:write_held"},
    "_prepare": {"appending:write_held", "appending:_looked_at_anew"},
    "fill": {"objects.core:_result"},
    "_make": {"objects.core:_append"},
}
HOLDERS = {"appending:write", "objects.core:_append"}


def functions() -> list[tuple[str, ast.AST]]:
    """Every function of the package by module and name."""
    trees = {
        ".".join(path.relative_to(SOURCE).with_suffix("").parts): ast.parse(path.read_text())
        for path in SOURCE.rglob("*.py")
        if path.relative_to(SOURCE).parts[0] != "registry"  # that is SQL of another database
    }
    return [
        (f"{module}:{node.name}", node)
        for module, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def said(node: ast.AST) -> str:
    """The texts in a function, without its docstring."""
    texts = [one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    return "\n".join(text for text in texts if text != ast.get_docstring(node, clean=False))  # type: ignore[arg-type]


@pytest.mark.covers("A-34")
def test_every_place_that_writes_is_known_and_every_one_that_adds_rows_is_behind_the_lock() -> None:
    writing = {name for name, node in functions() if WRITES.search(said(node))}
    assert writing == ADDS_ROWS.keys() | OTHER.keys(), "a new one? say here why it needs no lock, or give it one"
    adding = {name for name, node in functions() if "INSERT INTO" in said(node)}
    assert adding == ADDS_ROWS.keys()
    for called, callers in CALLERS.items():
        found = {
            name
            for name, node in functions()
            for call in ast.walk(node)
            if isinstance(call, ast.Call) and called == getattr(call.func, "attr", getattr(call.func, "id", None))
        }
        assert found == callers, called
    for name, node in functions():
        if name in HOLDERS:
            first = min(
                one.lineno for one in ast.walk(node) if isinstance(one, ast.Attribute) and one.attr == "acquire"
            )
            held = next(one for one in ast.walk(node) if isinstance(one, ast.Try) and one.lineno > first)
            inside = {getattr(one, "attr", None) for part in held.body for one in ast.walk(part)}
            everywhere = {getattr(one, "attr", None) for one in ast.walk(node)}
            assert {"write_held", "_make"} & everywhere <= inside, name
            assert "release" in {getattr(one, "attr", None) for part in held.finalbody for one in ast.walk(part)}, name


@pytest.mark.slow
@pytest.mark.covers("A-34", "A-22")
def test_no_statement_ever_adds_rows_to_a_shared_table_without_its_lock(
    embedded: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, seen = Channel.command, []
    with Stores("blocking", embedded) as stores:
        store = stores.open().made

        async def spied(self: Channel, sql: str, *args: Any, **settings: Any) -> Any:
            for table in ("p_one", "p_two", "j_7_one"):
                if f"`{table}`" in sql.partition("SELECT")[0]:
                    held = (
                        store.locks.held(store._core._appenders[table]._key)
                        if table in store._core._appenders
                        else None
                    )
                    seen.append((table, sql.partition("`")[0].strip(), held is not None))
            return await plain(self, sql, *args, **settings)

        monkeypatch.setattr(Channel, "command", spied)
        one = store.create([1], "one")
        store.create([1], "one")
        store.insert(one, [2], one, token="t")
        store.insert("one", [2], token="t")
        store.concat([3], one, name="one")
        store.create([1], "one", job=7)
        store.table("one").append([{"value": 4}])
        store.copy(one, "two")
        store.drop("one")
    assert {(table, what) for table, what, held in seen if not held} == {
        ("p_two", "RENAME TABLE"),  # copy(), which says so
        ("p_one", "DROP TABLE IF EXISTS"),
    }
    assert sum(what == "INSERT INTO" and held for _, what, held in seen) >= 7
