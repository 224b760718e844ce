"""Other clients as their users have them: DuckDB, Polars, iceberg-js. What is missing is skipped, and says why."""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.catalog import load_catalog

from takehold.server import Serving
from tests.server.http import Http

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

EXTENSIONS = ("httpfs", "avro", "iceberg")


def extensions() -> list[Path]:
    """DuckDB's extensions are wheels, so nothing is fetched while the tests run."""
    found: list[Path] = []
    for name in EXTENSIONS:
        module = pytest.importorskip(f"duckdb_extension_{name}")
        found += Path(module.__file__ or "").parent.rglob("*.duckdb_extension")
    return found


@pytest.fixture(scope="session")
def duck(server: Serving) -> Iterator[DuckDBPyConnection]:
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        for path in extensions():
            connection.execute(f"LOAD '{path}'")
        connection.execute(
            f"ATTACH 'main' AS ice (TYPE ICEBERG, ENDPOINT '{server.uri}', AUTHORIZATION_TYPE 'none', "
            "ACCESS_DELEGATION_MODE 'none')"
        )
        yield connection


@pytest.fixture
def ns(http: Http) -> str:
    return http.namespace(f"c{secrets.token_hex(4)}")


def answered(http: Http, operation: str, status: int) -> float:
    """How often the server has given this answer."""
    wanted = f'takehold_http_requests_total{{operation="{operation}",status="{status}"}} '
    lines = http.get("/metrics").body.decode().splitlines()
    return next((float(line.removeprefix(wanted)) for line in lines if line.startswith(wanted)), 0.0)


@pytest.mark.slow
def test_duckdb_makes_writes_changes_and_drops_tables(duck: DuckDBPyConnection, http: Http, ns: str) -> None:
    duck.execute(f"CREATE TABLE ice.{ns}.a (id BIGINT, word VARCHAR)")
    duck.execute(f"INSERT INTO ice.{ns}.a VALUES (1, 'x'), (2, 'y')")
    duck.execute(f"CREATE TABLE ice.{ns}.b AS SELECT * FROM ice.{ns}.a")
    duck.execute(f"UPDATE ice.{ns}.a SET word = 'z' WHERE id = 1")
    duck.execute(f"DELETE FROM ice.{ns}.a WHERE id = 2")
    duck.execute(f"ALTER TABLE ice.{ns}.a ADD COLUMN more INTEGER")
    assert duck.execute(f"SELECT * FROM ice.{ns}.a").fetchall() == [(1, "z", None)]
    assert duck.execute(f"SELECT id FROM ice.{ns}.b ORDER BY id").fetchall() == [(1,), (2,)]
    duck.execute(f"DROP TABLE ice.{ns}.b")
    assert http.get(f"/v1/main/namespaces/{ns}/tables").json["identifiers"] == [{"namespace": [ns], "name": "a"}]


@pytest.mark.slow
def test_a_transaction_of_duckdb_over_two_tables_is_one_commit(duck: DuckDBPyConnection, http: Http, ns: str) -> None:
    for name in ("a", "b"):
        duck.execute(f"CREATE TABLE ice.{ns}.{name} (id BIGINT)")
    before = answered(http, "commitTransaction", 204)
    duck.execute("BEGIN")
    for name in ("a", "b"):
        duck.execute(f"INSERT INTO ice.{ns}.{name} VALUES (7)")
    assert http.get(f"/v1/main/namespaces/{ns}/tables/a").json["metadata"].get("snapshots", []) == []
    duck.execute("COMMIT")
    assert answered(http, "commitTransaction", 204) == before + 1
    for name in ("a", "b"):
        assert duck.execute(f"SELECT id FROM ice.{ns}.{name}").fetchall() == [(7,)]


@pytest.mark.slow
def test_duckdb_and_pyiceberg_read_what_the_other_wrote(duck: DuckDBPyConnection, server: Serving, ns: str) -> None:
    duck.execute(f"CREATE TABLE ice.{ns}.t (id BIGINT)")
    duck.execute(f"INSERT INTO ice.{ns}.t VALUES (1)")
    table = load_catalog("lake", **server.properties).load_table((ns, "t"))
    found = table.scan().to_arrow()
    assert found["id"].to_pylist() == [1]
    table.append(found)
    assert duck.execute(f"SELECT count(*) FROM ice.{ns}.t").fetchall() == [(2,)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*polars_iceberg.*")
def test_polars_writes_and_reads(server: Serving, ns: str) -> None:
    polars: Any = pytest.importorskip("polars")
    frame = polars.DataFrame({"id": [1, 2], "word": ["x", "y"]})
    table = load_catalog("lake", **server.properties).create_table((ns, "t"), frame.to_arrow().schema)
    frame.write_iceberg(table, mode="append")
    assert polars.scan_iceberg(table).sort("id").collect().rows() == [(1, "x"), (2, "y")]


JAVASCRIPT = """
import { IcebergRestCatalog } from 'iceberg-js'
const [uri, ns] = process.argv.slice(2)
const catalog = new IcebergRestCatalog({ baseUrl: uri, catalogName: 'main', auth: { type: 'none' } })
const schema = { type: 'struct', 'schema-id': 0,
                 fields: [{ id: 1, name: 'id', type: 'long', required: true }] }
await catalog.createTable({ namespace: [ns] }, { name: 't', schema })
await catalog.updateTable({ namespace: [ns], name: 't' }, { properties: { owner: 'me' } })
const seen = await catalog.listTables({ namespace: [ns] })
const loaded = await catalog.loadTable({ namespace: [ns], name: 't' })
await catalog.dropTable({ namespace: [ns], name: 't' })
console.log(JSON.stringify({ seen, uuid: loaded['table-uuid'] ?? loaded.metadata['table-uuid'] }))
"""


@pytest.fixture(scope="session")
def javascript(tmp_path_factory: pytest.TempPathFactory) -> Path:
    node, npm = shutil.which("node"), shutil.which("npm")
    if not node or not npm:
        pytest.skip("iceberg-js needs node and npm")
    folder = tmp_path_factory.mktemp("javascript")
    command = [
        npm,
        "install",
        "--no-audit",
        "--no-fund",
        "--fetch-retries=0",
        "--fetch-timeout=20000",
        "iceberg-js@1.0.0",
    ]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("npm did not answer within a minute")
    if done.returncode:
        pytest.skip(f"npm cannot install iceberg-js: {done.stderr.strip().splitlines()[-1:]}")
    (folder / "script.mjs").write_text(JAVASCRIPT)
    return folder


@pytest.mark.slow
def test_iceberg_js_makes_changes_lists_and_drops_a_table(javascript: Path, server: Serving, ns: str) -> None:
    command = ["node", "script.mjs", server.uri, ns]
    done = subprocess.run(command, cwd=javascript, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["seen"]["identifiers"] == [{"namespace": [ns], "name": "t"}]
    assert told["uuid"]
