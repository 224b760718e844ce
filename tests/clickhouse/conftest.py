"""The databases, places and faces that the tests of ClickHouse run on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clickhouse.registries import Face
from tests.clickhouse.stores import Place, Stores
from tests.servers.postgres import Postgres

EMPTIED = "takehold_registry"


@pytest.fixture
def emptied_url(postgres_url: str, postgres_server: Postgres) -> Iterator[str]:
    """An empty database of PostgreSQL. A new one for every test would take half a second each."""
    yield postgres_server.database(EMPTIED)
    postgres_server.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", EMPTIED)
    postgres_server.query("DROP SCHEMA IF EXISTS public, takehold CASCADE", database=EMPTIED)
    postgres_server.query("CREATE SCHEMA public", database=EMPTIED)


@pytest.fixture(params=["sqlite", "postgresql"])
def sql_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty SQL database of this test's own."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'registry.db'}"
    return str(request.getfixturevalue("emptied_url"))


@pytest.fixture(params=["blocking", "asyncio"])
def face(request: pytest.FixtureRequest) -> Iterator[Face]:
    """Makes registries of one face; they are closed in the end."""
    with Face(request.param) as made:
        yield made


@pytest.fixture
def embedded(tmp_path: Path) -> Place:
    """The engine inside this process and SQLite, empty."""
    return Place(f"chdb:///{tmp_path / 'chdb'}", f"sqlite:///{tmp_path / 'registry.db'}")


@pytest.fixture
def distributed(clickhouse_url: str, emptied_url: str) -> Place:
    """A ClickHouse server and PostgreSQL, empty."""
    return Place(clickhouse_url, emptied_url)


@pytest.fixture(params=["embedded", "distributed"])
def place(request: pytest.FixtureRequest) -> Place:
    """The one and the other."""
    found: Place = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=["blocking-embedded", "asyncio-distributed"])
def stores(request: pytest.FixtureRequest) -> Iterator[Stores]:
    """Opens stores of each face at one place; they are closed in the end."""
    face, _, where = request.param.partition("-")
    with Stores(face, request.getfixturevalue(where)) as made:
        yield made


everywhere = pytest.mark.parametrize(
    "stores",
    ["blocking-embedded", "blocking-distributed", "asyncio-embedded", "asyncio-distributed"],
    indirect=True,
)
"""For a test that goes through everything: each face at each place."""


@pytest.fixture
def store(stores: Stores) -> Any:
    """An open store."""
    return stores.open()
