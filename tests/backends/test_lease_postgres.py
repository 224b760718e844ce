"""Leases in a real Postgres: behind a real pooler, over connections that are cut, held up and parted."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from takehold import AsyncLocks, BackendRefused, BackendUnavailable, Hold, HoldLost, Locks
from takehold.backends.lease.postgres_schema import SCHEMA
from takehold.testing import Taker
from takehold.testing.faces import eventually
from tests.backends.lease_table import KEY, TTL, LeaseTable, lost_at
from tests.lanes import scaled
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import Postgres
from tests.servers.proxy import Proxy

pytestmark = pytest.mark.slow


@pytest.fixture
def table(postgres_url: str) -> Iterator[LeaseTable]:
    """The table past every proxy; a test must leave no row in it."""
    made = LeaseTable(f"lease+{postgres_url}")
    yield made
    eventually(lambda: made.rows() == 0, "no row is left", within=5)


# -------------------------------------------------------------------------------------------- behind a pooler


@pytest.mark.crash
@pytest.mark.covers("L-1", "L-22")
def test_behind_a_pooler_in_transaction_mode_processes_of_both_faces_exclude_each_other(
    bouncer: PgBouncer, table: LeaseTable, tmp_path: Path
) -> None:
    """Two server connections for five clients with two connections each: every statement may go to the other one."""
    url = f"lease+{bouncer.url('takehold_tests')}?ttl=5"
    number, rounds, inside = tmp_path / "number", scaled(500), [0]
    number.write_text("0")
    command = [sys.executable, "-m", "takehold.testing.taker", url, KEY, "--count", str(number)]
    others = [subprocess.Popen([*command, "--rounds", str(rounds)]) for _ in range(2)]

    def count() -> None:
        inside[0] += 1
        assert inside[0] == 1
        number.write_text(str(int(number.read_text()) + 1))
        inside[0] -= 1

    def threads() -> None:
        with Locks(url, timeout=60) as locks:
            for _ in range(rounds):
                with locks.lock(KEY):
                    count()

    async def tasks() -> None:
        async with AsyncLocks(url, timeout=60) as locks:
            for _ in range(rounds):
                async with locks.lock(KEY):
                    count()

    blocking = threading.Thread(target=threads)
    blocking.start()
    asyncio.run(tasks())
    blocking.join()
    assert [other.wait(60) for other in others] == [0, 0]
    assert int(number.read_text()) == 4 * rounds


def test_through_the_pooler_everything_is_seen_and_evicted(bouncer: PgBouncer, table: LeaseTable) -> None:
    url = f"lease+{bouncer.url('takehold_tests')}?ttl=5"
    with Locks(url) as locks, Taker(table.to(ttl=5), KEY, label="direct") as direct:
        (record,) = locks.who(KEY)
        assert (record.owner.pid, record.owner.label, record.fence) == (direct.pid, "direct", direct.fence)
        assert locks.evict(record.id)
        assert direct.says("lost") == KEY
        with locks.lock(KEY, timeout=5) as hold:
            assert hold.fence > direct.fence
        direct.tell("end")
        assert direct.wait() == 0


# ----------------------------------------------------------------------------------------- connections that fail


@pytest.mark.covers("L-13")
def test_a_session_survives_a_cut_connection(proxy: Proxy, postgres_url: str, table: LeaseTable, others: Locks) -> None:
    with Locks(f"lease+{proxy.url(postgres_url)}?ttl=5") as through, through.lock(KEY) as hold:
        for _ in range(3):
            proxy.reset()
            through.lock("more", timeout=5).acquire().release()
            time.sleep(0.3)
        assert proxy.resets >= 3
        time.sleep(5)
        hold.check()
        assert others.lock(KEY).try_acquire() is None


@pytest.mark.parametrize("face", ["threads", "asyncio"])
@pytest.mark.covers("L-9", "L-10")
def test_a_statement_whose_reply_was_lost_is_done_once(
    proxy: Proxy, postgres_url: str, table: LeaseTable, face: str
) -> None:
    """Reply by reply, of an acquire and of a release: the row is there once, then it is not."""
    url = f"lease+{proxy.url(postgres_url)}?ttl=10"

    def threads() -> None:
        with Locks(url, timeout=10) as locks:
            locks.lock("warm up").acquire().release()
            for number in range(10):
                proxy.drop_reply()
                hold = locks.lock(f"k{number}").acquire()
                assert table.rows() == 1
                proxy.drop_reply()
                hold.release()
                assert table.rows() == 0

    async def tasks() -> None:
        async with AsyncLocks(url, timeout=10) as locks:
            await (await locks.lock("warm up").acquire()).release()
            for number in range(10):
                proxy.drop_reply()
                hold = await locks.lock(f"k{number}").acquire()
                assert table.rows() == 1
                proxy.drop_reply()
                await hold.release()
                assert table.rows() == 0

    if face == "threads":
        threads()
    else:
        asyncio.run(tasks())


@pytest.mark.covers("L-16")
def test_parted_from_the_server_the_holder_knows_before_anybody_else_has_the_key(
    proxy: Proxy, postgres_url: str, others: Locks
) -> None:
    with Locks(f"lease+{proxy.url(postgres_url)}?ttl={TTL}") as parted:
        hold = parted.lock(KEY).acquire()
        times = lost_at(hold)
        time.sleep(TTL / 2)  # some heartbeats
        proxy.hold()
        began = time.monotonic()
        with others.lock(KEY) as other:
            taken = time.monotonic()
            assert len(times) == 1
            assert times[0] < taken
            assert hold.lost
            assert taken - began < TTL + 1
            assert other.fence > hold.fence
        with pytest.raises(BackendUnavailable):
            parted.lock("k2", timeout=0.5).acquire()
        proxy.resume()
        parted.lock("k2", timeout=10).acquire().release()


@pytest.mark.covers("L-16", "L-13")
def test_parted_from_the_server_an_asyncio_block_ends_with_its_trust(
    proxy: Proxy, postgres_url: str, others: Locks
) -> None:
    async def body() -> float:
        async with AsyncLocks(f"lease+{proxy.url(postgres_url)}?ttl={TTL}") as parted:
            began = time.monotonic()
            with pytest.raises(HoldLost, match="heartbeat"):  # noqa: PT012 - the body is what is cancelled
                async with parted.lock(KEY):
                    proxy.hold()
                    await asyncio.sleep(60)
            proxy.resume()
            return time.monotonic() - began

    assert TTL / 2 < asyncio.run(body()) < TTL
    others.lock(KEY).acquire().release()


@pytest.mark.crash
@pytest.mark.covers("L-13", "L-32")
def test_a_restart_of_the_server_costs_no_hold(postgres_server: Postgres, table: LeaseTable) -> None:
    with Locks(table.to(ttl=15)) as locks, locks.lock(KEY) as hold:
        postgres_server.restart("immediate")
        locks.lock("more", timeout=10).acquire().release()
        time.sleep(1.5)
        hold.check()
        assert [record.key for record in locks.who()] == [KEY]


# ------------------------------------------------------------------------------------------------ two at once


@pytest.mark.covers("L-19", "L-26")
def test_batches_with_crossing_keys_never_deadlock_in_the_server(postgres_server: Postgres, table: LeaseTable) -> None:
    ask = "SELECT deadlocks FROM pg_stat_database WHERE datname = 'takehold_tests'"
    before = postgres_server.query(ask)
    keys, inside = [f"k{number}" for number in range(12)], dict.fromkeys(range(12), 0)
    wrong: list[str] = []

    def work(locks: Locks, seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(scaled(400)):
            chosen = rng.sample(range(12), rng.randrange(1, 7))
            with locks.lock(*(keys[number] for number in chosen), timeout=60):
                for number in chosen:
                    inside[number] += 1
                    if inside[number] != 1:
                        wrong.append(keys[number])
                for number in chosen:
                    inside[number] -= 1

    made = [Locks(table.to(ttl=5 + number), check_order="off") for number in range(4)]
    threads = [
        threading.Thread(target=work, args=(locks, seed))
        for seed, locks in enumerate([one for one in made for _ in "ab"])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for locks in made:
        locks.close()
    assert wrong == []
    time.sleep(1)  # the server tells its statistics late
    assert postgres_server.query(ask) == before


def test_two_that_find_the_same_dead_owner_do_not_both_get_its_key(table: LeaseTable) -> None:
    made = [Locks(table.to(ttl=20 + number)) for number in range(6)]
    for locks in made:
        locks.open()
    for _ in range(scaled(200)):
        dead = made[0].lock(KEY).acquire()
        table.sql("UPDATE {}lease_session SET expires = beat WHERE ttl = 20")
        barrier, got = threading.Barrier(5), list[Hold]()

        def grab(locks: Locks) -> None:
            barrier.wait()  # noqa: B023 - used before the next round
            if (hold := locks.lock(KEY).try_acquire()) is not None:
                got.append(hold)  # noqa: B023

        threads = [threading.Thread(target=grab, args=(locks,)) for locks in made[1:]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(got) <= 1
        for hold in got:
            assert hold.fence > dead.fence
            hold.release()
        eventually(lambda: dead.lost)  # noqa: B023
        made[0].open()
    for locks in made:
        locks.close()


# ------------------------------------------------------------------------------------------------- what is refused


def test_a_server_whose_transactions_are_not_read_committed_is_refused(postgres_url: str, table: LeaseTable) -> None:
    with pytest.raises(BackendRefused, match=r"READ COMMITTED.*REPEATABLE READ"):
        Locks(f"lease+{postgres_url}?options=-cdefault_transaction_isolation%3Drepeatable%5C%20read").open()


def test_a_standby_is_refused(standby_server: Postgres) -> None:
    with pytest.raises(BackendRefused, match="standby"):
        Locks(f"lease+{standby_server.url('takehold_tests')}").open()


def test_who_may_not_make_the_table_is_told_who_should_and_who_may_use_it_can(postgres_server: Postgres) -> None:
    url = postgres_server.database("fresh")
    postgres_server.query("DROP SCHEMA IF EXISTS takehold CASCADE", database="fresh")
    if not postgres_server.query("SELECT 1 FROM pg_roles WHERE rolname = 'guest'"):
        postgres_server.query("CREATE ROLE guest LOGIN")
    guest = f"lease+{postgres_server.url('fresh', 'guest')}"
    with pytest.raises(BackendRefused, match="takehold init lease\\+postgresql://guest@"):
        Locks(guest).open()
    Locks(f"lease+{url}").open().close()
    for grant in (
        "USAGE ON SCHEMA takehold",
        "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA takehold",
        "USAGE ON ALL SEQUENCES IN SCHEMA takehold",
    ):
        postgres_server.query(f"GRANT {grant} TO guest", database="fresh")
    with Locks(guest) as locks, locks.lock(KEY) as hold:
        assert hold.fence > 0


def test_many_that_come_first_at_once_make_one_table(postgres_server: Postgres) -> None:
    url = postgres_server.database("crowd")
    for _ in range(3):
        postgres_server.query("DROP SCHEMA IF EXISTS takehold CASCADE", database="crowd")
        failed: list[BaseException] = []

        def come(number: int) -> None:
            try:
                with Locks(f"lease+{url}?ttl={5 + number}") as locks:
                    locks.lock(f"k{number}").acquire().release()
            except BaseException as error:  # noqa: BLE001 - counted
                failed.append(error)  # noqa: B023

        threads = [threading.Thread(target=come, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []


@pytest.mark.covers("L-36")
def test_the_columns_of_the_table_are_frozen(postgres_server: Postgres, table: LeaseTable, others: Locks) -> None:
    others.open()
    found = table.sql(
        "SELECT table_name, string_agg(column_name || ' ' || data_type, ', ' ORDER BY ordinal_position) "
        "FROM information_schema.columns WHERE table_schema = 'takehold' AND table_name LIKE 'lease%' "
        "GROUP BY table_name ORDER BY table_name"
    )
    stamp = "timestamp with time zone"
    later = "batch bigint, answer text, board text, evict ARRAY"
    about = "hold text, text text, namespace text, implied boolean, label text, site text, party bigint"
    assert found == [
        ("lease", f"key bigint, fence bigint, session text, shared boolean, revoked boolean, since {stamp}, {about}"),
        ("lease_format", "number integer"),
        (
            "lease_session",
            f"name text, host text, pid integer, ttl double precision, beat {stamp}, expires {stamp}, {later}",
        ),
        (
            "lease_waiter",
            f"key bigint, session text, ticket bigint, shared boolean, since {stamp}, expires {stamp}, {about}",
        ),
    ]
    step = table.sql("SELECT seqincrement, seqcache FROM pg_sequence WHERE seqrelid = 'takehold.lease_fence'::regclass")
    assert step == [(2048, 1)]
    assert "INCREMENT BY 2048" in SCHEMA


def test_a_server_that_is_not_there_is_told_within_the_deadline(postgres_url: str) -> None:
    with Proxy(1) as nowhere:
        nowhere.refuse()
        began = time.monotonic()
        with pytest.raises(BackendUnavailable, match="no lock session"):
            Locks(f"lease+{nowhere.url(postgres_url)}").lock(KEY, timeout=1).acquire()
        assert time.monotonic() - began < 5


def test_fences_grow_although_the_server_was_killed(postgres_url: str) -> None:
    """The row and the fence are on disk before they are granted."""
    with Postgres.start(fsync="on", synchronous_commit="off") as server:
        fences = []
        for _ in range(3):
            with Locks(f"lease+{server.url()}?ttl=20") as locks, locks.lock(KEY, timeout=20) as hold:
                fences.append(hold.fence)
                server.restart("kill")
                hold.check()
        assert fences == sorted(set(fences))
        with psycopg.connect(server.url()) as connection:
            assert connection.execute("SHOW synchronous_commit").fetchone() == ("off",)
