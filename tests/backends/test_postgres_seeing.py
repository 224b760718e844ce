"""`postgresql:` shows who holds and who waits, also programs that do not use us, and shares numbers with them."""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from takehold import HoldLost, Key, Locks, LockTimeout, advisory
from takehold.testing import Taker
from takehold.testing.faces import Face, Steps, eventually
from takehold.testing.witness import Witness
from tests.backends.onlooker import Onlooker, place_of, session_of
from tests.lanes import scaled

pytestmark = pytest.mark.slow


@pytest.fixture
def raw(fenced_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A program that knows nothing of us."""
    with psycopg.connect(fenced_url, autocommit=True, application_name="reports") as connection:
        yield connection


@pytest.mark.covers("L-28")
class TestWho:
    """`who` is the truth of the whole database."""

    @pytest.mark.crash
    def test_holders_and_waiters_of_several_processes_are_listed_by_their_text(self, pg: Face) -> None:
        a = pg.worker(label="api")
        with (
            a.acquire("orders/1") as hold,
            Taker(pg.url, "orders/2", namespace=pg.namespace, label="job") as job,
            Taker(pg.url, "orders/1", namespace=pg.namespace, label="late", wait=True) as late,
            Taker(pg.url, "orders/1", namespace=f"{pg.namespace}-other") as elsewhere,
        ):
            pg.until_waiting("orders/1")
            found = {(r.key, r.namespace, r.state): r for r in pg.who("orders/*")}
            assert set(found) == {
                ("orders/1", pg.namespace, "held"),
                ("orders/2", pg.namespace, "held"),
                ("orders/1", pg.namespace, "waiting"),
                ("orders/1", f"{pg.namespace}-other", "held"),
            }
            mine = found["orders/1", pg.namespace, "held"]
            assert (mine.id, mine.fence, mine.owner.pid, mine.owner.label) == (hold.id, hold.fence, os.getpid(), "api")
            theirs = found["orders/2", pg.namespace, "held"]
            assert (theirs.owner.pid, theirs.owner.label, theirs.fence) == (job.pid, "job", job.fence)
            waiting = found["orders/1", pg.namespace, "waiting"]
            assert (waiting.owner.pid, waiting.owner.label) == (late.pid, "late")
            assert waiting.blocked_by == (hold.id,)
            assert found["orders/1", f"{pg.namespace}-other", "held"].owner.pid == elsewhere.pid
            assert not any(record.silent for record in found.values())

    @pytest.mark.parametrize("number", [1, -1, 2**40 + 7, -(2**63), 2**63 - 1])
    def test_a_lock_of_another_program_is_shown_with_its_whole_number(
        self, pg: Face, raw: psycopg.Connection[Any], number: int
    ) -> None:
        raw.execute("SELECT pg_advisory_lock(%s)", [number])
        (record,) = pg.worker().who(f"#{number}")
        assert (record.key, record.state, record.mode, record.silent) == (f"#{number}", "held", "exclusive", True)
        assert record.owner.label == "reports"
        assert record.owner.pid == raw.info.backend_pid
        raw.execute("SELECT pg_advisory_unlock(%s)", [number])
        assert pg.worker().who(f"#{number}") == []

    def test_waiters_of_other_programs_and_ours_name_each_other(
        self, pg: Face, raw: psycopg.Connection[Any], onlooker: Onlooker
    ) -> None:
        number = pg.number()
        a, b = pg.workers(2)
        raw.execute("SELECT pg_advisory_lock(%s)", [number])
        waiting = a.start_acquire(advisory(number, "migrations"), timeout=30)
        pg.until_waiting(f"#{number} migrations")
        records = {record.state: record for record in pg.who()}
        assert records["waiting"].blocked_by == (records["held"].id,)
        raw.execute("SELECT pg_advisory_unlock(%s)", [number])
        hold = waiting.result()
        blocked = threading.Thread(target=raw.execute, args=("SELECT pg_advisory_lock_shared(%s)", [number]))
        blocked.start()
        eventually(lambda: onlooker.waiting(number))
        records = {record.state: record for record in b.who(f"#{number}*")}
        assert (records["held"].id, records["held"].silent) == (hold.id, False)
        assert (records["waiting"].silent, records["waiting"].mode) == (True, "shared")
        assert records["waiting"].blocked_by == (hold.id,)
        hold.release()
        blocked.join()
        raw.execute("SELECT pg_advisory_unlock_all()")

    def test_locks_of_other_databases_and_of_two_numbers_are_not_mistaken(
        self, pg: Face, raw: psycopg.Connection[Any], own_database: Onlooker
    ) -> None:
        number = pg.number() & 0x7FFFFFFF7FFFFFFF
        raw.execute("SELECT pg_advisory_lock(%s, %s)", [number >> 32, number & 0xFFFFFFFF])
        with psycopg.connect(own_database.server.url(own_database.database), autocommit=True) as other:
            other.execute("SELECT pg_advisory_lock(%s)", [number])
            assert pg.worker().who(f"#{number}") == []
            assert pg.worker().can_take(advisory(number))
        raw.execute("SELECT pg_advisory_unlock_all()")

    @pytest.mark.crash
    def test_a_frozen_owner_is_shown_as_silent_and_soon(self, pg: Face) -> None:
        a = pg.worker()
        with Taker(pg.url, "k", namespace=pg.namespace) as taker, a.acquire("other"):
            taker.stop()
            at = time.monotonic()
            (record,) = a.who("k")
            assert time.monotonic() - at < 1.5
            assert (record.key, record.owner.pid, record.silent) == ("k", taker.pid, True)
            with pytest.raises(LockTimeout):
                a.acquire("k", timeout=0)
            assert a.who("k", stuck_after=3600) == []
            taker.cont()
            eventually(lambda: not a.who("k")[0].silent)

    def test_keys_of_every_length_and_alphabet_are_shown(self, pg: Face) -> None:
        a = pg.worker()
        keys = ["\x01" * 1000, "\U0001f600" * 250, "q" * 1024, '"\\{}%', "a\u0000b".replace("\0", "\t")]
        with a.acquire(*keys, Key("part", 1)):
            shown = {record.key for record in pg.who()}
            assert {key for key in keys if key[0] != "\x01"} <= shown
            assert len(shown) == len(keys) + 1

    def test_thousands_of_holds_are_listed_in_parts(self, pg: Face) -> None:
        keys = [f"orders/{number:05}/some/longer/text" for number in range(1500)]
        with pg.worker().acquire(*keys):
            eventually(lambda: sorted(record.key for record in pg.who()) == keys, "all of them")
            with Locks(pg.url + "?reply=9") as other:  # from another desk, over the wire
                eventually(lambda: len(other.who("orders/*")) == 1500, "all of them")

    def test_nonsense_on_our_channel_costs_nothing(
        self, pg: Face, raw: psycopg.Connection[Any], onlooker: Onlooker, caplog: pytest.LogCaptureFixture
    ) -> None:
        a = pg.worker()
        with a.acquire("k") as hold:
            token = session_of(hold).line.token
            for text in (
                "", "nonsense", "5", "[]", '"q"', "{}", '{"q": "who"}', '{"q": "chain", "n": 1, "to": "x"}',
                '{"q": "chain", "n": 1, "to": "x", "keys": 5}', '{"a": 1}', '{"a": [], "lines": 1}',
                json.dumps({"q": "who", "n": 1, "to": "x" * 100}), '{"q": "evict", "n": 1, "to": "x"}',
                '{"q": "unknown", "n": 1, "to": "x"}', '{"q": {}, "n": {}, "to": 5}',
            ):  # fmt: skip
                for channel in ("takehold", f"takehold_{token}"):
                    raw.execute("SELECT pg_notify(%s, %s)", [channel, text])
            time.sleep(0.2)
            hold.check()
            (record,) = pg.who()
            assert not record.silent
            assert len(onlooker.sessions("takehold-ear%")) == 1


@pytest.mark.covers("L-29")
class TestEvict:
    """Exactly one hold ends."""

    @pytest.mark.crash
    def test_an_owner_that_answers_gives_up_exactly_that_hold(self, pg: Face, onlooker: Onlooker) -> None:
        a = pg.worker()
        with Taker(pg.url, "one", namespace=pg.namespace) as taker:
            taker.tell("then two")
            taker.says("asking")
            taker.says("holding")
            (record,) = pg.holders("one")
            before = onlooker.sessions()
            assert a.do(lambda locks: locks.evict(record.id)) is True
            assert taker.says("lost", within=2) == "one"
            assert a.can_take("one")
            assert not a.can_take("two")
            assert set(before) <= set(onlooker.sessions())

    @pytest.mark.crash
    def test_a_silent_owner_is_ended_only_when_one_says_so(self, pg: Face) -> None:
        a = pg.worker()
        with Taker(pg.url, "k", namespace=pg.namespace) as taker:
            taker.stop()
            (record,) = a.who("k")
            assert a.do(lambda locks: locks.evict(record.id, timeout=0.3)) is False
            assert not a.can_take("k")
            assert a.do(lambda locks: locks.evict(record.id, terminate=True, timeout=0.3)) is True
            a.acquire("k", timeout=2).release()
            taker.cont()
            assert taker.lost_or_dead("k")

    def test_a_program_that_does_not_use_us_is_ended_only_when_one_says_so(self, pg: Face, fenced_url: str) -> None:
        a, number = pg.worker(), pg.number()
        with psycopg.connect(fenced_url, autocommit=True) as victim:
            victim.execute("SELECT pg_advisory_lock(%s)", [number])
            (record,) = a.who(f"#{number}")
            assert a.do(lambda locks: locks.evict(record.id, timeout=0.2)) is False
            assert a.do(lambda locks: locks.evict(record.id, terminate=True, timeout=0.2)) is True
            a.acquire(advisory(number), timeout=2).release()
            with pytest.raises(psycopg.OperationalError):
                victim.execute("SELECT 1")

    def test_an_id_that_is_not_true_any_more_ends_nobody(self, pg: Face, raw: psycopg.Connection[Any]) -> None:
        a, number, other = pg.worker(), pg.number(), pg.number()
        raw.execute("SELECT pg_advisory_lock(%s)", [number])
        (record,) = a.who(f"#{number}")
        raw.execute("SELECT pg_advisory_unlock(%s)", [number])
        raw.execute("SELECT pg_advisory_lock(%s)", [other])
        assert a.do(lambda locks: locks.evict(record.id, terminate=True)) is True
        assert raw.execute("SELECT 1").fetchone() == (1,)
        raw.execute("SELECT pg_advisory_unlock_all()")

    def test_an_id_never_names_a_later_hold(self, pg: Face) -> None:
        a, seen = pg.worker(), set()
        for _ in range(200):
            with a.acquire("k") as hold:
                assert hold.id not in seen
                seen.add(hold.id)
            del hold

    def test_the_owner_of_an_evicted_hold_is_told(self, pg: Face) -> None:
        a = pg.worker()
        with a.acquire("other") as other:
            hold = pg.worker().acquire("k")
            with Locks(pg.url + "?reply=9") as stranger:
                assert stranger.evict(hold.id) is True
            assert hold.wait_lost(2)
            with pytest.raises(HoldLost, match="evicted"):
                hold.check()
            other.check()


@pytest.mark.covers("L-30")
def test_a_hold_of_another_program_can_be_stuck_too(pg: Face, raw: psycopg.Connection[Any]) -> None:
    number = pg.number()
    raw.execute("SELECT pg_advisory_lock(%s)", [number])
    a = pg.worker()
    eventually(lambda: a.who(f"#{number}", stuck_after=0.2))
    assert a.who(f"#{number}", stuck_after=3600) == []
    raw.execute("SELECT pg_advisory_unlock(%s)", [number])


@pytest.mark.covers("L-33")
class TestNumbers:
    """`advisory(n)` is that number, for everybody."""

    @pytest.mark.parametrize(
        ("take", "give"),
        [
            ("SELECT pg_advisory_lock(%s)", "SELECT pg_advisory_unlock(%s)"),
            ("SELECT pg_try_advisory_lock(%s)", "SELECT pg_advisory_unlock(%s)"),
            ("SELECT pg_advisory_xact_lock(%s)", "COMMIT"),
            ("SELECT pg_advisory_lock_shared(%s)", "SELECT pg_advisory_unlock_shared(%s)"),
        ],
    )
    @pytest.mark.parametrize("number", [None, -(2**63), 2**63 - 1, 0])
    def test_a_hand_written_lock_excludes_ours_and_is_excluded(
        self, pg: Face, raw: psycopg.Connection[Any], take: str, give: str, number: int | None
    ) -> None:
        number = pg.number() if number is None else number
        key, a = advisory(number), pg.worker()

        def ours() -> bool:
            return a.can_take(key)

        if "xact" in take:
            raw.execute("BEGIN")
        raw.execute(take, [number])
        assert not ours()
        assert a.can_take(key, mode="shared") is ("shared" in take)
        raw.execute(give, [number] if "%s" in give else None)
        assert ours()
        with a.acquire(key) as hold:
            assert place_of(hold) == number
            assert raw.execute("SELECT pg_try_advisory_lock(%s)", [number]).fetchone() == (False,)
            assert raw.execute("SELECT pg_try_advisory_lock_shared(%s)", [number]).fetchone() == (False,)

    @pytest.mark.crash
    def test_ours_and_hand_written_ones_never_overlap(self, pg: Face, fenced_url: str) -> None:
        number, count, witness = pg.number(), scaled(10_000) // 8, Witness()

        def ours(locks: Any) -> Steps:
            for _ in range(count):
                hold = yield locks.lock(advisory(number), timeout=60).acquire()
                witness.enter()
                yield
                witness.leave()
                yield hold.release()

        # A desk of its own: for the server as good as a process of its own.
        another = pg.worker(pg._make(fenced_url + "?reply=9", namespace=secrets.token_hex(4)))
        workers = [*pg.workers(4), another]
        calls = [worker.start(ours) for worker in workers]
        threads = [
            threading.Thread(target=by_hand, args=(fenced_url, kind, number, count, witness))
            for kind in ("wait", "try", "xact")
        ]
        for thread in threads:
            thread.start()
        for call in calls:
            call.result(120)
        for thread in threads:
            thread.join()
        another.close()
        assert witness.entered == 8 * count
        assert witness.most_writers == 1


def by_hand(url: str, kind: str, number: int, count: int, witness: Witness) -> None:
    """A program with locks of its own making."""
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(count):
            if kind == "xact":
                with connection.transaction():
                    connection.execute("SELECT pg_advisory_xact_lock(%s)", [number])
                    witness.enter()
                    witness.leave()
                continue
            if kind == "wait":
                connection.execute("SELECT pg_advisory_lock(%s)", [number])
            while kind == "try":
                if connection.execute("SELECT pg_try_advisory_lock(%s)", [number]).fetchone() == (True,):
                    break
                time.sleep(0.0005)
            witness.enter()
            witness.leave()
            connection.execute("SELECT pg_advisory_unlock(%s)", [number])
