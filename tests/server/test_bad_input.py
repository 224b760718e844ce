"""Whatever is sent: a typed 4xx or success, never a 5xx, and never a file outside of the store."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from takehold.server import Serving
from tests.lanes import scaled
from tests.server.http import SCHEMA, VIEW, Answer, Http, change

ROOT = "/v1/main/namespaces"


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a canary beside the store: nothing but the store may change in it."""
    path = tmp_path_factory.mktemp("yard")
    (path / "canary").write_text("alive")
    return path


@pytest.fixture(scope="module")
def server(yard: Path) -> Iterator[Serving]:
    with Serving(f"{yard}/lake") as running:
        yield running
    assert sorted(one.name for one in yard.iterdir()) == ["canary", "lake", "lake.locks"]
    assert (yard / "canary").read_text() == "alive"


@pytest.fixture(scope="module")
def http(server: Serving) -> Iterator[Http]:
    with Http(server.uri) as client:
        client.namespace("n")
        client.table("n", "t")
        assert client.post(f"{ROOT}/n/views", VIEW).status == 200
        yield client


def refused(answer: Answer) -> bool:
    """Success, or an error of the specified form that is not the server's fault."""
    assert answer.status < 500, answer
    if answer.status >= 400 and answer.body:
        answer.error  # noqa: B018  it asserts
    return answer.status >= 400


NAMES = [
    "", " ", ".", "..", "...", "../../etc", "/etc/passwd", "a/../b", "%2e%2e", "..%2f", "a\\b", "C:\\x", "-", "--help",
    "*", "?", "a*b", "'", '"', "'; drop table x; --", "${jndi:x}", "{{x}}", "<script>", "a\nb", "a\r\nX: y", "a\tb",
    "\x00", "a\x00b", "\x01", "\x1b[31m", "\x7f", "\x80", "é", "e\u0301", "\u202e", "\u200b", "\ufeff", "\U0001f600",
    "CON", "NUL", "a.", ".hidden", ".takehold", ".tx", "catalog", "warehouse.bin", "A", "a", "ﬁ", "ß", "İ",
    "x" * 255, "x" * 256, "é" * 200, "x" * 5000, "a\x1fb", "\x1f", "a\x1f", "\ud800".encode("utf-8",
    "replace").decode(),
]  # fmt: skip


def corpus() -> list[str]:
    """The list, and mutations of it: the same ones on every run."""
    chance = random.Random(7)
    letters = "ab./\\%*\"'\x00\x1f\x7f\u202eé \n"
    made = ["".join(chance.choices(letters, k=chance.randint(1, 40))) for _ in range(scaled(300))]
    return NAMES + made


@pytest.mark.slow
def test_a_hostile_name_is_refused_or_a_name_like_any_other(http: Http) -> None:
    for name in corpus():
        in_path = quote(name, safe="")
        refused(http.get(f"{ROOT}/{in_path}"))
        refused(http.get(f"{ROOT}/n/tables/{in_path}"))
        refused(http.get(f"/v1/{in_path}/namespaces"))
        refused(http.get(f"{ROOT}?parent={in_path}"))
        # Deleting a namespace closes 16 shards, which takes its time on a disk.
        if name in NAMES and not refused(http.post(ROOT, {"namespace": [name]})):
            assert http.get(f"{ROOT}/{in_path}").json["namespace"] == [name]
            assert http.ask("DELETE", f"{ROOT}/{in_path}").status == 204
        if not refused(http.post(f"{ROOT}/n/tables", {"name": name, "schema": SCHEMA})):
            assert http.get(f"{ROOT}/n/tables/{in_path}").status == 200
            assert http.ask("DELETE", f"{ROOT}/n/tables/{in_path}").status == 204


def test_a_name_of_dots_leads_nowhere(http: Http) -> None:
    for name in ("..", ".", "../../x"):
        refused(http.post(ROOT, {"namespace": [name]}))
        refused(http.post("/v1/warehouses", {"name": name}))


LOCATIONS = [
    "/etc", "file:///etc", "file:/etc/x", "file:///", "http://127.0.0.1/x", "https://example.com/x", "s3://other/x",
    "ftp://x", "relative/path", "", "..", "memory:x", "file://host/etc", "file:///../x", "javascript:x", "\x00",
    "hdfs://x/y", "jar:file:///x", "FILE:///etc", "file:///etc\x00",
]  # fmt: skip


@pytest.fixture(scope="module")
def places(http: Http, yard: Path) -> list[str]:
    """Locations that are not inside the warehouse, some of which look as if they were."""
    inside = http.get("/v1/warehouses/main").json["location"]
    return [
        *LOCATIONS,
        f"file://{yard}/canary", f"file://{yard}/lake/../canary", f"{inside}/../../../canary", f"{inside}x/y",
        f"{inside}/", f"{inside}//x", f"{inside}/a/./b", f"{inside}/a/../b", f"{inside}/%2e%2e/x/../../..",
        f"file://{yard}/lake/catalog/warehouse.bin", f"file://{yard}/lake/catalog/x",
        f"{inside}/a\x00b", f"{inside}/a\nb", f"{inside}/\u202e",
    ]  # fmt: skip


def test_a_location_outside_of_the_warehouse_is_refused_everywhere(http: Http, places: list[str]) -> None:
    one = f"{ROOT}/n/tables/t"
    for number, place in enumerate(places):
        for extra in ({}, {"stage-create": True}):
            body = {"name": f"l{number}", "schema": SCHEMA, "location": place, **extra}
            assert http.post(f"{ROOT}/n/tables", body).status == 400, place
        for update in (
            {"action": "set-location", "location": place},
            {"action": "set-properties", "updates": {"write.metadata.path": place}},
            {"action": "set-properties", "updates": {"write.data.path": place}},
        ):
            assert http.post(one, {"updates": [update]}).status == 400, (place, update)
            several = {"table-changes": [{**change("n", "t"), "updates": [update]}]}
            assert http.post("/v1/main/transactions/commit", several).status == 400, (place, update)
        for route in ("register", "register-view"):
            register = {"name": f"r{number}", "metadata-location": place}
            assert http.post(f"{ROOT}/n/{route}", register).status in (400, 404), place


BODIES: list[bytes] = [
    b"", b"{", b"null", b"[]", b"1", b'"x"', b"{}", b'{"name":}', b"\xff\xfe", b'{"name":"\\ud800"}', b'{"a":NaN}',
    b'{"a":1e999}', b"{}{}", b"\x00", b'{"name":"x","schema":null}', b'{"name":"x","schema":[]}',
    b'{"name":"x","schema":{"type":"struct"}}', b'{"name":"x","schema":{"type":"struct","fields":[1]}}',
    b'{"name":"x","schema":{"type":"struct","fields":[{"id":"1","name":2,"required":3,"type":{}}]}}',
    b'{"name":["x"]}', b'{"name":1}', b'{"namespace":"x"}', b'{"namespace":[1]}', b'{"namespace":[[]]}',
    b'{"namespace":["x"],"properties":{"a":1}}', b'{"updates":{"a":"b"}}', b'{"updates":[1]}', b'{"updates":[{}]}',
    b'{"updates":[{"action":1}]}', b'{"updates":[{"action":"add-schema"}]}', b'{"requirements":[{}]}',
    b'{"requirements":[{"type":"assert-ref-snapshot-id"}]}', b'{"requirements":[{"type":["x"]}]}',
    b'{"updates":[{"action":"set-properties","updates":{"a":1}}]}',
    b'{"updates":[{"action":"add-snapshot","snapshot":1}]}',
    b'{"updates":[{"action":"set-snapshot-ref","ref-name":1}]}', b'{"source":1,"destination":2}',
    b'{"source":{"namespace":["n"],"name":"t"}}', b'{"table-changes":[{"identifier":{}}]}', b'{"removals":{}}',
    b'{"metadata-location":1,"name":"x"}', b'{"view-version":[],"name":"x","schema":{}}',
    b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"a":' * 500 + b"1" + b"}" * 500,
    b'{"properties":{' + b",".join(b'"%d":"x"' % n for n in range(20_000)) + b'},"name":"x"}',
]  # fmt: skip


def posts() -> list[str]:
    return [
        ROOT, f"{ROOT}/n/properties", f"{ROOT}/n/tables", f"{ROOT}/n/tables/t", f"{ROOT}/n/register", f"{ROOT}/n/views",
        f"{ROOT}/n/views/v", f"{ROOT}/n/register-view", f"{ROOT}/n/tables/t/metrics", "/v1/main/tables/rename",
        "/v1/main/views/rename", "/v1/main/transactions/commit", "/v1/warehouses", "/v1/oauth/tokens",
    ]  # fmt: skip


@pytest.mark.parametrize("path", posts())
def test_a_body_that_is_none_is_a_typed_400(http: Http, path: str) -> None:
    for body in BODIES:
        answer = http.post(path, body)
        assert answer.status < 500, (body[:200], answer)


@pytest.mark.slow
@given(body=st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**70) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([
        "action", "updates", "requirements", "type", "schema", "fields", "id", "name", "snapshot", "snapshot-id",
    "spec",
        "sort-order", "ref-name", "location", "schema-id", "table-changes", "identifier", "namespace", "removals",
        "uuid", "statistics", "view-version", "format-version", "spec-id", "ref",
    ]), inner, max_size=4), max_leaves=12,
), path=st.sampled_from(posts()))  # fmt: skip
def test_no_document_is_the_servers_fault(http: Http, body: Any, path: str) -> None:
    refused_or_done = http.post(path, orjson.dumps(body, default=str) if _fits(body) else b"{}")
    assert refused_or_done.status < 500, (path, body, refused_or_done)


ACTIONS = [
    "assign-uuid", "upgrade-format-version", "add-schema", "set-current-schema", "add-spec", "set-default-spec",
    "add-sort-order", "set-default-sort-order", "add-snapshot", "set-snapshot-ref", "remove-snapshots",
    "remove-snapshot-ref", "set-location", "set-properties", "remove-properties", "set-statistics", "remove-statistics",
    "set-partition-statistics", "remove-partition-statistics", "remove-partition-specs", "remove-schemas",
    "add-encryption-key", "remove-encryption-key", "add-view-version", "set-current-view-version",
]  # fmt: skip
MEMBERS = [
    "uuid", "format-version", "schema", "schema-id", "last-column-id", "spec", "spec-id", "spec-ids", "sort-order",
    "sort-order-id", "snapshot", "snapshot-id", "snapshot-ids", "ref-name", "type", "location", "updates", "removals",
    "statistics", "schema-ids", "encryption-key", "key-id", "view-version", "view-version-id", "partition-statistics",
]  # fmt: skip
VALUES: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers(-2, 3) | st.just(2**63) | st.sampled_from(["", "main", "branch", "x"])
    | st.lists(st.integers(-1, 3) | st.text(max_size=2), max_size=2)
    | st.dictionaries(st.sampled_from([*MEMBERS, "id", "fields", "name", "order-id", "timestamp-ms", "a"]),
                      st.none() | st.integers(-2, 3) | st.text(max_size=2) | st.lists(st.just({}), max_size=1),
    max_size=3)
)  # fmt: skip


@pytest.mark.slow
@given(updates=st.lists(
    st.builds(lambda action, rest: {"action": action, **rest}, st.sampled_from(ACTIONS),
              st.dictionaries(st.sampled_from(MEMBERS), VALUES, max_size=4)), max_size=3,
))  # fmt: skip
def test_no_update_is_the_servers_fault(http: Http, updates: list[dict[str, Any]]) -> None:
    for path in (f"{ROOT}/n/tables/t", f"{ROOT}/n/views/v"):
        answer = http.post(path, orjson.dumps({"updates": updates}))
        assert answer.status < 500, (updates, answer)


def _fits(value: Any) -> bool:
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError:
        return False
    return True


@pytest.mark.parametrize(
    "path",
    ["//", "/v1//namespaces", "/v1/main/namespaces/", "/v1/main/namespaces/%ff", "/v1/main/namespaces/%zz",
     "/v1/main/namespaces/" + "x/" * 50, "/v1/%2e%2e/namespaces", "/v1/../v1/config",
     "/v1/main/namespaces/n/tables/" + "x" * 9000,
     "/v1/config?warehouse=%ff", "/v1/config?" + "a=b&" * 200, "/v1/main/namespaces?pageSize=-1&pageToken=",
     "/v1/main/namespaces/n/tables/t?snapshots=%00", "/v1/main/namespaces/n/tables/t?purgeRequested=maybe"],
)  # fmt: skip
def test_a_path_that_is_none_is_a_typed_4xx(http: Http, path: str) -> None:
    for method in ("GET", "DELETE", "HEAD"):
        assert http.ask(method, path).status < 500


class TestSizes:
    def head(self, server: Serving, *lines: str) -> tuple[socket.socket, bytes]:
        parts = urlsplit(server.uri)
        sock = socket.create_connection((parts.hostname, parts.port or 0), timeout=30)
        sock.sendall("\r\n".join((f"POST {ROOT} HTTP/1.1", "Host: localhost", *lines, "", "")).encode())
        return sock, b""

    def test_a_body_of_100_mb_is_refused_before_it_is_read(self, server: Serving) -> None:
        sock, answer = self.head(server, f"Content-Length: {100 * 2**20}")
        with sock:
            while chunk := sock.recv(65536):
                answer += chunk
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b'"type":"PayloadTooLargeException","code":413' in answer

    def test_chunks_without_a_length_are_refused_when_they_become_too_many(self, server: Serving) -> None:
        sock, answer = self.head(server, "Transfer-Encoding: chunked")
        sent, chunk = 0, b"100000\r\n" + b" " * 2**20 + b"\r\n"
        with sock:
            try:
                while sent < 100 * 2**20:
                    sock.sendall(chunk)
                    sent += 2**20
            except OSError:
                pass  # it has hung up
            assert sent < 64 * 2**20
            try:
                while part := sock.recv(65536):
                    answer += part
            except OSError:
                pass
        assert answer == b"" or answer.startswith(b"HTTP/1.1 413 ")

    def test_a_head_of_a_megabyte_is_refused(self, server: Serving) -> None:
        with Http(server.uri) as http, suppress(OSError):  # it may have hung up before everything was sent
            assert http.get("/v1/config", X_Long="x" * 2**20).status == 431

    def test_a_client_that_stops_in_the_middle_of_a_body_harms_nobody(self, server: Serving, http: Http) -> None:
        sock, _ = self.head(server, "Content-Length: 1000")
        sock.sendall(b"{")
        sock.close()
        assert http.get("/v1/config").status == 200


@pytest.mark.slow
def test_a_flipped_bit_in_a_record_is_refused_and_nothing_is_guessed(tmp_path: Path) -> None:
    with Serving(f"{tmp_path}/lake") as server, Http(server.uri) as http:
        http.namespace("n")
        http.table("n", "t", properties={"a": "1"})
        before = http.get(f"{ROOT}/n/tables/t").json
    records = list(Path(tmp_path, "lake", "catalog").rglob("*.bin"))
    assert len(records) >= 4
    chance = random.Random(11)
    with Serving(f"{tmp_path}/lake") as server, Http(server.uri) as http:
        for path in records:
            whole = path.read_bytes()
            for _ in range(scaled(200)):
                place = chance.randrange(len(whole) * 8)
                damaged = bytearray(whole)
                damaged[place // 8] ^= 1 << (place % 8)
                path.write_bytes(damaged)
                answer = http.get(f"{ROOT}/n/tables/t")
                if answer.status == 200:
                    assert answer.json == before, (path, place)
                else:
                    assert answer.error in ((500, "ServiceFailureException"), (404, "NoSuchTableException")), answer
                changed = http.set("n", "t", b="2")
                if changed.status == 200:
                    assert changed.json["metadata"]["properties"]["a"] == "1"
                    path.write_bytes(whole) if path.read_bytes() == bytes(damaged) else None
                    whole = path.read_bytes()
                    before = http.get(f"{ROOT}/n/tables/t").json
                else:
                    path.write_bytes(whole)
        assert http.get(f"{ROOT}/n/tables/t").json == before


def test_nothing_was_written_outside_of_the_store(http: Http, yard: Path) -> None:
    assert sorted(os.listdir(yard)) == ["canary", "lake", "lake.locks"]
