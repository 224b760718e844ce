"""Idempotency keys: what is sent twice is answered twice and done once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from takehold import BackendUnavailable
from takehold.iceberg.stores import MemoryStore
from takehold.server.answers import Reply
from takehold.server.replays import DIRECTORY, Replays
from takehold.server.serving import Serving
from tests.server.http import SCHEMA, Http, change, key
from tests.server.inside import Inside

ROOT = "/v1/main/namespaces"


@pytest.fixture
def ns(http: Http) -> str:
    return http.namespace()


def appended(number: int) -> dict[str, Any]:
    """A commit that can be done once only."""
    requirement = {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None}
    snapshot = {
        "snapshot-id": number, "sequence-number": 1, "timestamp-ms": int(time.time() * 1000),
        "manifest-list": "s", "summary": {"operation": "append"}, "schema-id": 0,
    }  # fmt: skip
    updates = [
        {"action": "add-snapshot", "snapshot": snapshot},
        {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": number},
    ]
    return {"requirements": [requirement], "updates": updates}


class TestSentTwice:
    def test_a_commit_is_done_once(self, http: Http, ns: str) -> None:
        http.table(ns)
        one, body, sent = f"{ROOT}/{ns}/tables/t", appended(1), key()
        first = http.post(one, body, Idempotency_Key=sent)
        again = http.post(one, body, Idempotency_Key=sent)
        assert (first.status, again.status) == (200, 200)
        assert again.json == first.json
        assert http.post(one, body).status == 409  # without the key it is another one
        assert http.post(one, body, Idempotency_Key=key()).status == 409

    def test_everything_else_is_too(self, http: Http, ns: str) -> None:
        tables = f"{ROOT}/{ns}/tables"
        rename = {"source": {"namespace": [ns], "name": "a"}, "destination": {"namespace": [ns], "name": "b"}}
        sent: list[tuple[str, str, object, int]] = [
            ("POST", ROOT, {"namespace": [ns, "deep"]}, 200),
            ("DELETE", f"{ROOT}/{ns}%1Fdeep", None, 204),
            ("POST", f"{ROOT}/{ns}/properties", {"updates": {"a": "1"}, "removals": ["b"]}, 200),
            ("POST", tables, {"name": "a", "schema": SCHEMA}, 200),
            ("POST", "/v1/main/tables/rename", rename, 204),
            ("POST", "/v1/main/transactions/commit", {"table-changes": [change(ns, "b", a="1")]}, 204),
            ("POST", f"{tables}/b/unregister", {}, 200),
        ]
        for method, path, body, status in sent:
            once = key()
            first = http.ask(method, path, body, Idempotency_Key=once)
            again = http.ask(method, path, body, Idempotency_Key=once)
            assert (first.status, again.status) == (status, status), (path, first, again)
            assert again.body == first.body

    def test_a_definite_no_stays_no(self, http: Http, ns: str) -> None:
        sent = key()
        assert http.ask("DELETE", f"{ROOT}/{ns}/tables/t", Idempotency_Key=sent).status == 404
        http.table(ns)
        assert http.ask("DELETE", f"{ROOT}/{ns}/tables/t", Idempotency_Key=sent).error == (404, "NoSuchTableException")
        assert http.ask("HEAD", f"{ROOT}/{ns}/tables/t").status == 204

    def test_a_key_of_another_request_is_refused(self, http: Http, ns: str) -> None:
        sent = key()
        assert http.post(ROOT, {"namespace": [ns, "a"]}, Idempotency_Key=sent).status == 200
        refused = http.post(ROOT, {"namespace": [ns, "b"]}, Idempotency_Key=sent)
        assert refused.error == (422, "UnprocessableEntityException")

    @pytest.mark.parametrize("sent", ["x", "017F22E2-79B0-4CC3-98C4-DC0C0C07398F", "017F22E279B07CC398C4DC0C0C07398F"])
    def test_a_key_that_is_no_uuid_of_version_7_is_refused(self, http: Http, ns: str, sent: str) -> None:
        assert http.post(ROOT, {"namespace": [ns, "a"]}, Idempotency_Key=sent).error == (400, "BadRequestException")

    def test_a_long_answer_is_made_again_and_may_be_newer(self, http: Http, ns: str) -> None:
        http.table(ns)
        one, sent = f"{ROOT}/{ns}/tables/t", key()
        body = {"updates": [{"action": "set-properties", "updates": {"long": "x" * 100_000}}]}
        first = http.post(one, body, Idempotency_Key=sent)
        http.set(ns, "t", later="1")
        again = http.post(one, body, Idempotency_Key=sent)
        assert (first.status, again.status) == (200, 200)
        found = again.json["metadata"]["properties"]
        assert (len(found["long"]), found["later"]) == (100_000, "1")


@pytest.mark.slow
def test_duplicates_on_the_way_wait_for_the_same_answer(server: Serving, ns: str, http: Http) -> None:
    http.table(ns)
    body, sent = appended(1), key()
    answers = []

    def ask() -> None:
        with Http(server.uri) as own:
            answers.append(own.post(f"{ROOT}/{ns}/tables/t", body, Idempotency_Key=sent))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.status for one in answers] == [200] * 8
    assert len({one.json["metadata-location"] for one in answers}) == 1


@pytest.mark.slow
def test_a_restarted_server_remembers(tmp_path: Path) -> None:
    body, sent = appended(1), key()
    with Serving(f"{tmp_path}/lake") as server, Http(server.uri) as http:
        http.namespace("n")
        http.table("n")
        first = http.post(f"{ROOT}/n/tables/t", body, Idempotency_Key=sent)
    with Serving(f"{tmp_path}/lake") as server, Http(server.uri) as http:
        assert http.post(f"{ROOT}/n/tables/t", body, Idempotency_Key=sent).json == first.json


# -- crashes between an operation and its record ---------------------------------------------------------------


class Forgetful(MemoryStore):
    """Fails every write of a finished record, as a server that dies before it; what is committed stays."""

    failing = True

    async def put_new(self, path: str, data: bytes) -> str:
        self._fail(path, data)
        return await super().put_new(path, data)

    async def put_if(self, path: str, data: bytes, tag: str) -> str:
        self._fail(path, data)
        return await super().put_if(path, data, tag)

    def _fail(self, path: str, data: bytes) -> None:
        if self.failing and path.startswith(DIRECTORY) and orjson.loads(data)["state"] == "finished":
            raise BackendUnavailable("the server died here")


def forgetting(first: list[tuple[str, str, object]], method: str, path: str, body: object) -> Iterator[Any]:
    """Do something, lose its record, and send it again to another server, ten seconds later."""

    async def run() -> list[Any]:
        store = Forgetful()
        one = Inside(store)
        await one.catalog.create_warehouse("main")
        for how in first:
            assert (await one.ask(*how)).status < 300
        sent = key()
        done = await one.ask(method, path, body, sent)
        store.failing = False
        for name in await store.list(DIRECTORY):
            found = await store.get(name)
            assert found is not None
            record = orjson.loads(found.data)
            assert record["state"] == "started"
            await store.put(name, orjson.dumps({**record, "at": record["at"] - 60}))
        two = Inside(store)
        again = await two.ask(method, path, body, sent)
        third = await two.ask(method, path, body, sent)
        return [done, again, third, two]

    yield from asyncio.run(run())


NS: tuple[str, str, object] = ("POST", ROOT, {"namespace": ["n"]})
TABLE: tuple[str, str, object] = ("POST", f"{ROOT}/n/tables", {"name": "a", "schema": SCHEMA})
RENAME = {"source": {"namespace": ["n"], "name": "a"}, "destination": {"namespace": ["n"], "name": "b"}}
CHANGES = {"table-changes": [{**change("n", "a"), **appended(7)}]}


@pytest.mark.parametrize(
    ("first", "again"),
    [
        ([NS, TABLE], ("POST", f"{ROOT}/n/tables/a", appended(7))),
        ([NS, TABLE], ("POST", "/v1/main/transactions/commit", CHANGES)),
        ([NS], TABLE),
        ([], NS),
        ([NS], ("DELETE", f"{ROOT}/n", None)),
        ([NS, TABLE], ("DELETE", f"{ROOT}/n/tables/a", None)),
        ([NS, TABLE], ("POST", "/v1/main/tables/rename", RENAME)),
    ],
    ids=["commit", "transaction", "create table", "create namespace", "drop namespace", "drop table", "rename"],
)
def test_a_crash_before_the_record_is_written_repeats_nothing(first: Any, again: Any) -> None:
    done, repeated, third, _ = forgetting(first, *again)
    assert done.status in (200, 204)
    assert repeated.status == done.status
    assert third.status == done.status


def test_two_servers_do_not_do_it_at_once() -> None:
    async def run() -> tuple[Reply, Reply]:
        store = Forgetful()
        one, two = Inside(store), Inside(store)
        await one.catalog.create_warehouse("main")
        sent = key()
        await one.ask(*NS, sent)  # its record says that it was started
        return await two.ask(*NS, sent), await one.ask("GET", f"{ROOT}/n")

    refused, there = asyncio.run(run())
    assert (refused.status, there.status) == (503, 200)


def test_records_are_swept_when_nobody_may_use_them_any_more() -> None:
    async def run() -> list[int]:
        store = MemoryStore()
        inside = Inside(store)
        await inside.catalog.create_warehouse("main")
        await inside.ask(*NS, key())
        counts = [await Replays(store, 1800).sweep()]
        counts.append(await Replays(store, -1.0).sweep())
        return [*counts, len(await store.list(DIRECTORY))]

    assert asyncio.run(run()) == [0, 1, 0]


def test_what_is_damaged_is_refused_and_not_done_twice() -> None:
    async def run() -> tuple[Reply, Reply]:
        store = MemoryStore()
        inside = Inside(store)
        await inside.catalog.create_warehouse("main")
        sent = key()
        await store.put(f"{DIRECTORY}/{sent}", b"{")
        return await inside.ask(*NS, sent), await inside.ask("GET", f"{ROOT}/n")

    refused, there = asyncio.run(run())
    assert (refused.status, there.status) == (500, 404)
