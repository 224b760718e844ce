"""What a database complains of: of itself, or of one fragment."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, text

import takehold
from takehold.fragments import AsyncWorker, Counts, Folder, Fragment, Worker, reading, running
from tests.fragments.site import Background, Site, until, write

ALL = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE application_name LIKE 'takehold-ledger%' AND pid <> pg_backend_pid()"""


class OperationalError(Exception):
    """Named like those of drivers, and none of them."""


def elsewhere(_: Connection) -> None:
    """A store of the pipeline's own does not answer."""
    psycopg.connect("postgresql://127.0.0.1:1/nowhere").close()


def named(_: Connection) -> None:
    raise OperationalError("refused by the store")


def lost(_: Connection) -> None:
    raise takehold.HoldLost("a lock of the pipeline's own", key="k", reason="r")


def unavailable(_: Connection) -> None:
    raise takehold.BackendUnavailable("locks of the pipeline's own")


def slow(connection: Connection) -> None:
    connection.execute(text("SET LOCAL statement_timeout = 10"))
    connection.execute(text("SELECT pg_sleep(5)"))


def conflicting(connection: Connection) -> None:
    connection.execute(text("DO $$ BEGIN RAISE EXCEPTION 'in conflict' USING ERRCODE = '40001'; END $$"))


def wrapped(connection: Connection) -> None:
    try:
        conflicting(connection)
    except Exception as error:
        raise ValueError("the store said no") from error


def ended(connection: Connection) -> None:
    connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))


def written(site: Site, complain: Any, times: int) -> Counts:
    """A run in which the first so many writes of one fragment meet this."""
    count = 0

    def store(connection: Connection, results: Sequence[tuple[Fragment, str]]) -> None:
        nonlocal count
        if any(fragment.name == "two" for fragment, _ in results) and (count := count + 1) <= times:
            complain(connection)
        write(connection, results)

    site.document("a.md", one="1", two="2", three="3")
    pipeline = replace(site.recorder().pipeline(), write=store)
    return Worker(pipeline, site.corpus, site.url, concurrency=1, attempts=2).run()


@pytest.mark.parametrize("complain", [elsewhere, named, lost, unavailable, slow], ids=lambda one: one.__name__)
def test_what_a_write_raises_of_its_own_counts_as_an_attempt(server_site: Site, complain: Any) -> None:
    counts = written(server_site, complain, 1_000)
    assert (counts.done, counts.failed, counts.lost, counts.pending) == (2, 1, 0, 0)
    assert server_site.diary.extracted()["corpus/a.md#two"] == 2
    assert len(server_site.results()) == 2


@pytest.mark.parametrize("complain", [conflicting, wrapped, ended], ids=lambda one: one.__name__)
def test_trouble_of_the_ledgers_own_connection_is_no_attempt(server_site: Site, complain: Any) -> None:
    counts = written(server_site, complain, 2)
    assert (counts.done, counts.failed, counts.extracted) == (3, 0, 3)
    assert server_site.results() == server_site.expected()


def test_a_removal_that_fails_is_reported_and_tried_again_by_the_next_run(file_site: Site) -> None:
    file_site.document("a.md", one="1", two="2")
    file_site.run()
    file_site.document("a.md", one="1", three="3")
    pipeline = replace(file_site.recorder().pipeline(), remove=lambda *_: 1 / 0)
    counts = Worker(pipeline, file_site.corpus, file_site.url).run()
    assert (counts.done, counts.removed, counts.failed) == (1, 0, 1)
    [failure] = counts.failures
    assert (failure.identity, failure.error) == ("corpus/a.md#two", "ZeroDivisionError: division by zero")
    assert file_site.run().removed == 1
    assert file_site.results() == file_site.expected()


class Broken(Folder):
    """Breaks the server's connections between the reading of a document and the question what is known of it."""

    def __init__(self, site: Site, *after: Any) -> None:
        super().__init__(site.folder)
        self.after = list(after)

    def fragments(self, document: str) -> list[Fragment]:
        found = super().fragments(document)
        if self.after:
            self.after.pop()()
        return found


def go(site: Site, face: str, corpus: Broken) -> Counts:
    if face == "threads":
        return Worker(site.recorder().pipeline(), corpus, site.url).run()
    return asyncio.run(AsyncWorker(site.recorder().pipeline(asynchronous=True), corpus, site.url).run())


def test_a_lost_connection_while_the_corpus_is_read_does_not_end_the_run(
    server_site: Site, face: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "BATCH", 3)  # the first connects, the second finds it broken
    count = server_site.documents(2, 3)
    counts = go(server_site, face, Broken(server_site, lambda: server_site.query(ALL), lambda: None))
    assert (counts.done, counts.seen, counts.complete) == (count, count, True)
    assert any(getattr(record, "event", "") == "fragments.trouble" for record in caplog.records)
    assert server_site.results() == server_site.expected()


def test_a_restart_of_the_server_ends_no_replica(server_site: Site, postgres_server: Any, face: str) -> None:
    count = server_site.documents(2, 40)
    recorder = server_site.recorder(wait=0.02)
    replicas = [Background(lambda: server_site.run(face, recorder)) for _ in range(2)]
    until(lambda: len(server_site.diary.lines("end")) >= 10)
    postgres_server.restart()
    counts = [replica.join() for replica in replicas]
    assert [(one.failed, one.pending) for one in counts] == [(0, 0), (0, 0)]
    assert len(server_site.results()) == count
    assert server_site.results() == server_site.expected()


def test_a_server_that_stays_away_ends_the_run_with_our_error(
    server_site: Site, postgres_server: Any, face: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "MOST_TROUBLE", 0.2)
    server_site.documents(2, 3)
    try:
        with pytest.raises(takehold.BackendUnavailable, match=r"nothing went well for 0\.2 s"):
            go(server_site, face, Broken(server_site, postgres_server.down))
    finally:
        postgres_server.up()
