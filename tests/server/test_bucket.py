"""A fleet: servers on one bucket of a real S3 server, with locks in Postgres; and clients that read the bucket."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from tests.lanes import PROVE
from tests.server.http import Http
from tests.server.replicas import Replica
from tests.server.test_crash import SECONDS, Field, check
from tests.servers.seaweedfs import SeaweedFS

pytestmark = [pytest.mark.slow, pytest.mark.crash]

ROWS = pa.schema([("id", pa.int64()), ("word", pa.string())])


@pytest.fixture
def fleet(s3_url: str, postgres_url: str) -> Iterator[list[Replica]]:
    """Two servers, four in `make prove`; the environment has the keys of the bucket."""
    replicas = [Replica(s3_url, "--locks", postgres_url, "--vend-credentials") for _ in range(4 if PROVE else 2)]
    threads = [threading.Thread(target=one.start) for one in replicas]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    yield replicas
    for one in replicas:
        one.kill()


@pytest.mark.covers("M-48")
def test_servers_on_a_bucket_act_as_one_although_they_are_killed(fleet: list[Replica]) -> None:
    with Http(fleet[0].uri) as http:
        http.namespace("n")
        for name in ("a", "b", "move0"):
            http.table("n", name)
    ground = Field(fleet, time.monotonic() + SECONDS)
    works = [ground.transact, ground.transact, ground.commit, ground.look, ground.create]
    threads = [threading.Thread(target=ground.run, args=(work, number)) for number, work in enumerate(works)]
    threads.append(threading.Thread(target=ground.move, args=("move",)))
    for thread in threads:
        thread.start()
    kills = 0
    while time.monotonic() < ground.until:
        time.sleep(1.5)
        victim = fleet[kills % len(fleet)]
        victim.kill()
        kills += 1
        victim.start()
    for thread in threads:
        thread.join()
    check(ground, fleet, kills)


def test_clients_read_and_write_a_bucket_with_the_keys_they_are_given(
    fleet: list[Replica], seaweedfs_server: SeaweedFS
) -> None:
    catalogs = [load_catalog("lake", type="rest", uri=one.uri, warehouse="main") for one in fleet]
    catalogs[0].create_namespace("shop")
    table = catalogs[0].create_table("shop.orders", ROWS)
    table.append(pa.table({"id": [1, 2], "word": ["x", "y"]}, schema=ROWS))
    found = catalogs[1].load_table("shop.orders").scan().to_arrow()
    assert sorted(found["id"].to_pylist()) == [1, 2]
    secret = seaweedfs_server.environment["AWS_SECRET_ACCESS_KEY"]
    with Http(fleet[0].uri) as http:
        path = "/v1/main/namespaces/shop/tables/orders"
        assert secret not in http.get(path).body.decode()
        asked = http.get(path, X_Iceberg_Access_Delegation="vended-credentials").json
        assert asked["config"]["s3.secret-access-key"] == secret
        assert asked["storage-credentials"][0]["config"] == asked["config"]
    assert secret not in str([one.lines for one in fleet])
    read_with_chdb(fleet[1].uri, seaweedfs_server, table.location())
    assert catalogs[0].load_table("shop.orders").scan().to_arrow().num_rows == 3


def read_with_chdb(uri: str, bucket: SeaweedFS, location: str) -> None:
    chdb: Any = pytest.importorskip("chdb")
    keys, place = bucket.environment, location.removeprefix("s3://").partition("/")[0]
    session = chdb.session.Session()
    try:
        session.query("SET allow_database_iceberg = 1")
        session.query("SET allow_insert_into_iceberg = 1")
        session.query(
            f"CREATE DATABASE ice ENGINE = DataLakeCatalog('{uri}/v1', '{keys['AWS_ACCESS_KEY_ID']}', "
            f"'{keys['AWS_SECRET_ACCESS_KEY']}') SETTINGS catalog_type = 'rest', vended_credentials = false, "
            f"warehouse = 'main', storage_endpoint = '{bucket.endpoint}/{place}'"
        )
        assert str(session.query("SELECT id FROM ice.`shop.orders` ORDER BY id", "CSV")).split() == ["1", "2"]
        session.query("INSERT INTO ice.`shop.orders` VALUES (3, 'z')")
    finally:
        session.close()
