"""Fixtures of the real servers. A server starts with the first test that asks for it and ends with the run."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.servers.azurite import Azurite
from tests.servers.clickhouse import ClickHouse
from tests.servers.mariadb import MariaDB
from tests.servers.network import Namespace
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import Postgres
from tests.servers.proxy import Proxy
from tests.servers.seaweedfs import SeaweedFS

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

DATABASE = "takehold_tests"


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """The server all tests share. A test may restart it; one that takes it down for good starts its own."""
    with Postgres.start(tmp_path_factory.mktemp("postgres")) as server:
        server.database(DATABASE)
        yield server


@pytest.fixture(scope="session")
def standby_server(postgres_server: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """A hot standby of ``postgres_server``. A test that promotes one starts its own."""
    with postgres_server.standby(tmp_path_factory.mktemp("standby")) as server:
        yield server


@pytest.fixture(scope="session")
def bouncer(postgres_server: Postgres) -> Iterator[PgBouncer]:
    """PgBouncer in front of ``postgres_server``, in transaction mode with two server connections."""
    if reason := PgBouncer.missing():
        pytest.skip(reason)
    with PgBouncer.start(postgres_server) as pooler:
        yield pooler


@pytest.fixture(scope="session")
def mariadb_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDB]:
    """The MariaDB all tests share. A test may restart it; one that takes it down for good starts its own."""
    if reason := MariaDB.missing():
        pytest.skip(reason)
    with MariaDB.start(tmp_path_factory.mktemp("mariadb")) as server:
        server.database(DATABASE)
        yield server


@pytest.fixture
def mariadb_url(mariadb_server: MariaDB) -> str:
    """The database all tests share, as ``mysql://``."""
    if not mariadb_server.running:
        mariadb_server.up()
    return mariadb_server.url(DATABASE)


@pytest.fixture(scope="session")
def clickhouse_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouse]:
    """The ClickHouse all tests share. A test may restart it; one that takes it down for good starts its own."""
    if reason := ClickHouse.missing():
        pytest.skip(reason)
    with ClickHouse.start(tmp_path_factory.mktemp("clickhouse")) as server:
        yield server


@pytest.fixture
def clickhouse_database(clickhouse_server: ClickHouse) -> Iterator[str]:
    """The name of a new database; afterwards its queries are cancelled and it is dropped."""
    if not clickhouse_server.running:
        clickhouse_server.up()
    name = f"t_{uuid.uuid4().hex[:12]}"
    clickhouse_server.database(name)
    yield name
    if clickhouse_server.running:
        clickhouse_server.evict(name)
        clickhouse_server.query(f"DROP DATABASE IF EXISTS {name} SYNC")


@pytest.fixture
def clickhouse_url(clickhouse_server: ClickHouse, clickhouse_database: str) -> str:
    """The new database of this test, as ``clickhouse://``."""
    return clickhouse_server.url(clickhouse_database)


@pytest.fixture
def clickhouse_client(clickhouse_server: ClickHouse, clickhouse_database: str) -> Iterator[Client]:
    """A blocking client in the new database of this test; its threads may share it."""
    with closing(clickhouse_server.client(database=clickhouse_database)) as client:
        yield client


@pytest.fixture(scope="module")
def clickhouse_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ClickHouse, ClickHouse]]:
    """Two servers that are the replicas of cluster ``pair``."""
    if reason := ClickHouse.missing():
        pytest.skip(reason)
    with ClickHouse.pair(tmp_path_factory.mktemp("pair")) as servers:
        yield servers


@pytest.fixture(scope="session")
def seaweedfs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    """The S3 server all tests share. A test may restart it; one that takes it down for good starts its own."""
    if reason := SeaweedFS.missing():
        pytest.skip(reason)
    with SeaweedFS.start(tmp_path_factory.mktemp("seaweedfs")) as server:
        server.bucket("takehold-tests")
        yield server


@pytest.fixture
def s3_url(seaweedfs_server: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new prefix in the bucket all tests share, as ``s3://``; the environment has the credentials."""
    if not seaweedfs_server.running:
        seaweedfs_server.up()
    for name, value in seaweedfs_server.environment.items():
        monkeypatch.setenv(name, value)
    return seaweedfs_server.url(f"takehold-tests/{uuid.uuid4().hex[:12]}")


@pytest.fixture(scope="session")
def azurite_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    """The Azure Blob Storage all tests share; what it has is lost when it goes down."""
    if reason := Azurite.missing():
        pytest.skip(reason)
    with Azurite.start(tmp_path_factory.mktemp("azurite")) as server:
        server.container("takehold-tests")
        yield server


@pytest.fixture
def azure_url(azurite_server: Azurite, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new prefix in the container all tests share, as ``az://``; the environment has the credentials."""
    for name, value in azurite_server.environment.items():
        monkeypatch.setenv(name, value)
    return azurite_server.url(f"takehold-tests/{uuid.uuid4().hex[:12]}")


@pytest.fixture(scope="session")
def _namespace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Namespace]:
    if reason := Namespace.missing():
        pytest.skip(reason)
    with Namespace.start(tmp_path_factory.mktemp("namespace")) as made:
        yield made


@pytest.fixture
def namespace(_namespace: Namespace) -> Iterator[Namespace]:
    """A PostgreSQL (``namespace.server``) behind a network that a test can part; it is healed afterwards."""
    yield _namespace
    _namespace.heal()


@pytest.fixture
def postgres_url(postgres_server: Postgres) -> Iterator[str]:
    """The database all tests share; a test that leaves an advisory lock behind fails."""
    if not postgres_server.running:
        postgres_server.up()
    yield postgres_server.url(DATABASE)
    if not postgres_server.running:
        return
    left = postgres_server.advisory_locks()
    deadline = time.monotonic() + 2  # a session that was cut off ends a little later than its client
    while left and time.monotonic() < deadline:
        time.sleep(0.02)
        left = postgres_server.advisory_locks()
    if left:
        postgres_server.evict_holders()  # the next test is not to suffer
        pytest.fail("advisory locks are left in pg_locks:\n" + "\n".join(map(str, left)), pytrace=False)


@pytest.fixture
def proxy(postgres_server: Postgres, postgres_url: str) -> Iterator[Proxy]:
    """A proxy to ``postgres_server``; ``proxy.url(postgres_url)`` goes through it. Closed before locks are counted."""
    with Proxy(postgres_server.port) as made:
        yield made
