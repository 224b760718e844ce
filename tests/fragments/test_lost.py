"""Claims that are lost: by an ended session, by an operator, by a kill. No result is lost, doubled or halved."""

from __future__ import annotations

import time
from typing import Any

import pytest

import takehold
from takehold.fragments.ledger import Claim, Ledger
from takehold.fragments.ledger.place import place_of
from tests.fragments.site import Background, Gate, Site, counts_of, until

HOLDERS = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted"


@pytest.mark.covers("R-19")
def test_a_replica_that_lost_its_lock_session_in_an_open_write_does_not_commit(server_site: Site, face: str) -> None:
    """Its transaction is open and has written; another one claims, writes and commits; then the first goes on."""
    server_site.document("a.md", one="1")
    gate = Gate()
    first = Background(lambda: server_site.run(face, server_site.recorder(writing=gate)))
    assert gate.reached.wait(20)
    server_site.query(HOLDERS)
    other = server_site.replica()
    counts = counts_of(other)
    assert (counts["done"], counts["extracted"]) == (1, 1)
    assert server_site.results() == server_site.expected()
    gate.open.set()
    late = first.join()
    assert (late.done, late.elsewhere, late.lost) == (0, 1, 1)
    assert server_site.results() == server_site.expected()
    assert server_site.diary.extracted() == {"corpus/a.md#one": 2}


@pytest.mark.covers("R-19")
def test_an_evicted_claim_does_not_commit_although_nobody_else_came(site: Site) -> None:
    site.document("a.md", one="1")
    gate = Gate()
    running = Background(lambda: site.run(recorder=site.recorder(during=gate)))
    assert gate.reached.wait(20)
    with takehold.Locks(site.url) as locks:
        [record] = locks.who("fragment/*")
        assert locks.evict(record.id)
        gate.open.set()
        counts = running.join()
    # Offered again, and extracted again: the work of the first is lost, nothing else.
    assert (counts.lost, counts.done, counts.extracted) == (1, 1, 2)
    assert site.results() == site.expected()


@pytest.mark.covers("R-19")
def test_a_fence_that_is_not_the_newest_is_refused_by_the_database_alone(site: Site) -> None:
    """Whatever a replica believes of its locks: two ledgers, and nobody tells the first that it was lost."""
    site.document("a.md", one="1")
    [fragment] = site.corpus.fragments("a.md")
    pipeline = site.recorder().pipeline()
    ledgers = [Ledger(place_of(site.url), pipeline) for _ in range(2)]
    ledgers[0].prepare()

    def claim(fence: int) -> Claim:
        return Claim(fragment.identity, fragment.corpus, fragment.document, fragment.hash, fence)

    older, newer, late = claim(5), claim(6), claim(4)
    assert ledgers[0].claim(older).result() is True
    assert ledgers[1].claim(newer).result() is True
    with pytest.raises(takehold.HoldLost, match="a claim with fence 6 came after ours, 5"):
        ledgers[0].write(older, fragment, "late").result()
    with pytest.raises(takehold.HoldLost):
        ledgers[0].fail(older, ValueError()).result()
    with pytest.raises(takehold.HoldLost):
        ledgers[0].remove(older).result()
    assert site.results() == {}
    ledgers[1].write(newer, fragment, "1").result()
    assert ledgers[0].claim(late).result() is False
    # Not a second time either, whatever the fence.
    with pytest.raises(takehold.Conflict):
        ledgers[1].write(newer, fragment, "twice").result()
    assert site.results() == {fragment.identity: {"1"}}
    for ledger in ledgers:
        ledger.close()


@pytest.mark.covers("R-14")
def test_a_second_finished_run_of_one_content_cannot_be_recorded(site: Site) -> None:
    from sqlalchemy.exc import IntegrityError

    site.document("a.md", one="1")
    site.run()
    with pytest.raises(IntegrityError):
        site.query("INSERT INTO takehold_fragment_runs SELECT * FROM takehold_fragment_runs")


@pytest.mark.crash
@pytest.mark.covers("R-7", "R-8")
def test_what_a_killed_replica_had_is_done_by_the_next_run(site: Site, face: str) -> None:
    count = site.documents(1, 6)
    process = site.replica(face, wait=30, concurrency=2)
    until(lambda: len(site.diary.lines("begin")) == 2)
    process.kill()
    process.wait()
    counts = site.run(face, concurrency=2)
    assert (counts.done, counts.lost) == (count, 0)
    assert site.results() == site.expected()
    assert sum(site.diary.extracted().values()) == count + 2


@pytest.mark.crash
@pytest.mark.covers("R-8")
def test_what_a_killed_replica_had_written_by_half_is_rolled_back(site: Site) -> None:
    """Killed in the middle of its write: the transaction is open, and results are in it."""
    site.document("a.md", one="1")
    process = site.replica("hanging")
    until(lambda: site.diary.lines("written"))
    process.kill()
    process.wait()
    assert site.results() == {}
    assert site.run().done == 1
    assert site.results() == site.expected()


@pytest.mark.covers("R-7")
def test_keys_are_free_after_a_failed_extraction(site: Site, face: str) -> None:
    site.document("a.md", one="FAIL")
    site.run(face, attempts=1)
    with takehold.Locks(site.url) as locks:
        assert locks.who() == []


@pytest.mark.covers("R-13")
def test_without_a_server_it_is_an_error_and_nothing_is_extracted(site: Site, face: str) -> None:
    site.document("a.md", one="1")
    site.url = "postgresql://postgres@127.0.0.1:1/nowhere"
    with pytest.raises(takehold.BackendUnavailable):
        site.run(face)
    assert not site.diary.extracted()


@pytest.mark.covers("R-13")
@pytest.mark.parametrize("url", ["memory:", "file:/tmp/x", "mysql://a@b/c", "sqlite:///:memory:", None, "nothing"])
def test_a_url_without_a_ledger_is_refused(file_site: Site, url: Any) -> None:
    file_site.url = url
    with pytest.raises(takehold.UsageError, match="fragments need a database"):
        file_site.worker()


@pytest.mark.covers("R-13")
def test_a_role_that_may_not_make_fences_is_told_what_to_run(server_site: Site, postgres_server: Any) -> None:
    server_site.document("a.md", one="1")
    postgres_server.database("takehold_bare")
    postgres_server.query("DROP SCHEMA IF EXISTS takehold CASCADE", database="takehold_bare")
    if not postgres_server.query("SELECT 1 FROM pg_roles WHERE rolname = 'clerk'"):
        postgres_server.query("CREATE ROLE clerk LOGIN")
    postgres_server.query("REVOKE CREATE ON DATABASE takehold_bare FROM PUBLIC")
    server_site.url = postgres_server.url("takehold_bare", "clerk")
    with pytest.raises(takehold.UsageError, match="takehold init"):
        server_site.run()


@pytest.mark.covers("R-17")
def test_a_pooler_in_the_way_is_refused_with_a_sentence(server_site: Site, bouncer: Any, face: str) -> None:
    server_site.document("a.md", one="1")
    server_site.url = bouncer.url("takehold_fragments")
    with pytest.raises(takehold.BackendRefused, match="pooler"):
        server_site.run(face)
    assert not server_site.diary.extracted()


@pytest.mark.covers("R-17")
def test_through_that_pooler_the_lease_table_works(server_site: Site, bouncer: Any) -> None:
    count = server_site.documents(1, 10)
    server_site.url = "lease+" + bouncer.url("takehold_fragments") + "?ttl=5"
    assert server_site.run().done == count
    assert server_site.run().unchanged == count
    assert server_site.results() == server_site.expected()


@pytest.mark.covers("R-3")
def test_both_keys_are_asked_for_in_one_round_trip(server_site: Site, postgres_server: Any) -> None:
    from takehold.fragments.fragment import locks_of
    from tests.servers.proxy import Proxy

    server_site.document("a.md", one="1")
    [fragment] = server_site.corpus.fragments("a.md")
    keys = locks_of(fragment.identity, fragment.hash)
    with (
        Proxy(postgres_server.port) as proxy,
        takehold.Locks(server_site.url) as other,
        takehold.Locks(proxy.url(server_site.url)) as locks,
    ):
        for held in (False, True):
            hold = other.lock(*keys).acquire() if held else None
            proxy.delay(0.4)
            began = time.monotonic()
            got = locks.lock(*keys).try_acquire()
            took = time.monotonic() - began
            proxy.delay(0)
            assert (got is None) is held
            assert 0.8 <= took < 1.6, held  # two round trips take that long at least
            for one in (got, hold):
                if one is not None:
                    one.release()
