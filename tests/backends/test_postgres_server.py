"""`postgresql:` proves its server before it trusts it: poolers, standbys, settings, the lock table, the schema."""

from __future__ import annotations

import secrets
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

from takehold import BackendRefused, BackendUnavailable, Locks, UsageError
from takehold.backends.postgres.line import parse
from takehold.testing.faces import AsyncioFace, Face, eventually
from tests.backends.conftest import initialise
from tests.backends.onlooker import Onlooker, place_of, session_of
from tests.servers.fixtures import DATABASE
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import Postgres
from tests.servers.proxy import Proxy

pytestmark = pytest.mark.slow


def refusal(face: Face, error: type[Exception] = BackendRefused) -> str:
    """What an acquire on this face is refused with."""
    worker = face.worker()
    with pytest.raises(error) as caught:
        worker.acquire("k", timeout=5)
    face.close()
    assert not face.troubles
    return str(caught.value)


@pytest.fixture
def session_pooler(postgres_server: Postgres) -> Iterator[PgBouncer]:
    if reason := PgBouncer.missing():
        pytest.skip(reason)
    with PgBouncer.start(postgres_server, "session", pool_size=20) as pooler:
        yield pooler


@pytest.mark.covers("L-22")
class TestRefused:
    """Where session locks would exclude nobody they are refused, with a sentence that says what to use."""

    def test_a_pooler_in_transaction_mode_is_refused(self, colour: type[Face], bouncer: PgBouncer) -> None:
        # Twice: the first attempt must leave nothing that changes the second one's answer.
        for _ in range(2):
            said = refusal(colour(bouncer.url(DATABASE)))
            assert "pooler" in said
            assert f"lease+{bouncer.url(DATABASE)}" in said
            assert "?pooler=session" in said

    def test_a_pooler_in_session_mode_is_refused_too(self, colour: type[Face], session_pooler: PgBouncer) -> None:
        assert "?pooler=session" in refusal(colour(session_pooler.url(DATABASE)))

    def test_a_pooler_that_pools_transactions_is_refused_after_a_probe(
        self, colour: type[Face], bouncer: PgBouncer
    ) -> None:
        for _ in range(2):
            said = refusal(colour(bouncer.url(DATABASE) + "?pooler=session"))
            assert "pools transactions" in said
            assert "lease+" in said

    def test_a_pooler_in_session_mode_is_accepted_when_one_says_so(
        self, colour: type[Face], session_pooler: PgBouncer, fenced_url: str, onlooker: Onlooker
    ) -> None:
        face, direct = colour(session_pooler.url(DATABASE) + "?pooler=session"), colour(fenced_url)
        a, b = face.worker(), direct.worker(namespace=face.namespace)
        hold = a.acquire("k")
        assert not b.can_take("k")
        (record,) = face.who()
        assert (record.id, record.silent) == (hold.id, False)
        with b.acquire("other"):
            waiting = a.start_acquire("other", timeout=0.3)
            eventually(onlooker.waiting)
            assert isinstance(waiting.error(), TimeoutError)
        hold.release()
        assert b.can_take("k")
        face.close()
        direct.close()

    def test_giving_up_behind_a_pooler_cancels_our_own_wait_and_nobody_elses(
        self, asyncio_pooled: Face, fenced_url: str, onlooker: Onlooker
    ) -> None:
        a = asyncio_pooled.worker()
        with Locks(fenced_url, namespace=asyncio_pooled.namespace) as other, other.lock("k"):
            waiting = a.start_acquire("k", timeout=30)
            eventually(onlooker.waiting)
            at = time.monotonic()
            waiting.cancel()
            waiting.error()
            assert time.monotonic() - at < 0.9
            assert not onlooker.waiting()

    def test_a_standby_is_refused(self, colour: type[Face], standby_server: Postgres) -> None:
        assert "primary" in refusal(colour(standby_server.url(DATABASE)))

    def test_two_servers_behind_one_address_are_refused(
        self, colour: type[Face], proxy: Proxy, postgres_server: Postgres, tmp_path: Path
    ) -> None:
        """Locks of the one do not exclude those of the other: a balancer in the wrong place."""
        with Postgres.start(tmp_path, max_connections="20") as other:
            ports = [postgres_server.port, other.port]
            accept = proxy._carry

            async def carry(link: Any) -> None:
                proxy._target = ("127.0.0.1", ports[0])
                ports.reverse()
                await accept(link)

            proxy._carry = carry  # type: ignore[method-assign]
            said = refusal(colour(proxy.url(postgres_server.url())))
        assert "do not exclude" in said
        assert "lease+postgresql:" in said

    def test_functions_that_only_look_like_the_servers_are_not_called(
        self, colour: type[Face], own_database: Onlooker
    ) -> None:
        own_database.query("CREATE SCHEMA evil")
        own_database.query("CREATE FUNCTION evil.pg_try_advisory_lock(bigint) RETURNS bool RETURN true")
        own_database.query(f"ALTER DATABASE {own_database.database} SET search_path = evil, pg_catalog")
        face = colour(own_database.server.url(own_database.database))
        with face.worker().acquire("k") as hold:
            assert [key for key, *_ in own_database.locks()] == [place_of(hold)]
        face.close()


@pytest.fixture
def asyncio_pooled(session_pooler: PgBouncer) -> Iterator[Face]:
    face = AsyncioFace(session_pooler.url(DATABASE) + "?pooler=session")
    yield face
    face.close()


@pytest.mark.covers("L-23")
def test_settings_of_a_database_cost_no_hold(colour: type[Face], own_database: Onlooker) -> None:
    url = own_database.server.url(own_database.database)
    initialise(url)
    for setting in (
        "idle_in_transaction_session_timeout = '300ms'",
        "idle_session_timeout = '300ms'",
        "transaction_timeout = '300ms'",
        "statement_timeout = '300ms'",
        "lock_timeout = '200ms'",
        "default_transaction_isolation = 'serializable'",
        "default_transaction_read_only = on",
        "client_min_messages = 'debug5'",
    ):
        own_database.server.query(f"ALTER DATABASE {own_database.database} SET {setting}")
    face, other = colour(url), colour(url + "?reply=9")  # a desk of its own
    a, b, c = face.worker(), face.worker(), other.worker(namespace=face.namespace)
    alone, many = a.acquire("alone"), b.acquire("x", "y", "z")
    assert alone.fence
    waiting = c.start_acquire("alone", timeout=30)
    eventually(own_database.waiting)
    until = time.monotonic() + 1
    while time.monotonic() < until:
        pids = {pid for _, _, granted, pid in own_database.locks() if granted}
        states = {own_database.activity(pid)[0] for pid in pids}
        assert states == {"idle"}
    alone.check()
    many.check()
    assert face.who()
    alone.release()
    waiting.result().release()
    many.release()
    initialise(url, fence_from=5)
    face.close()
    other.close()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """A server with room for few locks."""
    folder = tmp_path_factory.mktemp("small")
    with Postgres.start(folder, max_locks_per_transaction="10", max_connections="20") as server:
        initialise(server.url())
        yield server


@pytest.mark.covers("L-24")
class TestBudget:
    """Nobody may fill the server's lock table: beyond it everybody is refused, also new connections."""

    def test_at_its_limit_a_process_is_refused_and_others_still_connect(
        self, colour: type[Face], small: Postgres
    ) -> None:
        face = colour(small.url())
        workers = face.workers(8)
        holds: list[Any] = []
        with pytest.raises(BackendRefused, match=r"limit is 40 of the 200.*max_locks_per_transaction"):
            holds.extend(workers[number % 8].acquire(f"k/{number:04}", timeout=5) for number in range(1000))
        assert len(holds) == 40
        assert small.query("SELECT 1") == [(1,)]
        holds.pop().release()
        holds.append(workers[0].acquire("again", timeout=5))
        for hold in holds:
            hold.release()
        face.close()

    def test_many_at_once_are_counted_together(self, colour: type[Face], small: Postgres) -> None:
        face = colour(small.url())
        calls = [worker.start_acquire(f"k/{n:04}", timeout=5) for n, worker in enumerate(face.workers(60))]
        outcomes = [call.error() if call.future.exception(20) else call.result() for call in calls]
        refused = [one for one in outcomes if isinstance(one, BackendRefused)]
        held: list[Any] = [one for one in outcomes if not isinstance(one, BaseException)]
        assert len(held) + len(refused) == 60
        assert 30 <= len(held) <= 40
        assert len(Onlooker(small, "postgres").locks()) == len(held)
        for one in held:
            one.release()
        face.close()

    def test_one_call_for_too_many_keys_is_refused_and_takes_none(self, colour: type[Face], small: Postgres) -> None:
        face = colour(small.url())
        a = face.worker()
        with pytest.raises(BackendRefused, match="limit is 40"):
            a.acquire(*(f"k/{number:04}" for number in range(41)), timeout=5)
        a.acquire(*(f"k/{number:04}" for number in range(40)), timeout=5).release()
        face.close()

    def test_the_url_may_say_how_many(self, colour: type[Face], fenced_url: str) -> None:
        face = colour(fenced_url + "?max_held=2")
        a = face.worker()
        with a.acquire("x", "y"), pytest.raises(BackendRefused, match="limit is 2 "):
            face.worker().acquire("z")
        a.acquire("z").release()
        face.close()

    def test_a_table_that_others_have_filled_refuses_before_it_is_full(
        self, colour: type[Face], small: Postgres
    ) -> None:
        face = colour(small.url())
        a, b = face.workers(2)
        with psycopg.connect(small.url(), autocommit=True) as greedy:
            hold = a.acquire(*(f"k/{number:04}" for number in range(30)), timeout=5)
            greedy.execute("SELECT pg_advisory_lock(n) FROM generate_series(1, 90) AS s(n)")

            def refused() -> str:
                try:
                    b.acquire("one", timeout=5).release()
                except BackendRefused as error:
                    return str(error)
                time.sleep(0.05)
                return ""

            assert "half of the 200" in eventually(refused, "refused", within=5)
            hold.release()
        face.close()


@pytest.mark.covers("L-26")
def test_a_full_lock_table_leaves_no_key_of_the_failed_statement(colour: type[Face], tmp_path: Path) -> None:
    with Postgres.start(tmp_path, max_locks_per_transaction="10", max_connections="10") as server:
        face = colour(server.url() + "?max_held=1000000")
        onlooker = Onlooker(server, "postgres")
        a, b = face.workers(2)
        with a.acquire("kept") as kept:
            session = session_of(kept)
            session.facts = replace(session.facts, capacity=10**9)  # a server that promises too much
            with pytest.raises(BackendRefused, match="lock table is full"):
                b.acquire(*(f"k/{number:04}" for number in range(5000)), timeout=5)
            kept.check()
            assert [key for key, *_ in onlooker.locks()] == [place_of(kept)]
        face.close()


@pytest.mark.covers("L-36")
class TestSchema:
    """Format 1, frozen: never change it, give it another number."""

    def test_the_sequence_is_what_it_was(self, own_database: Onlooker) -> None:
        initialise(own_database.server.url(own_database.database))
        assert own_database.query(
            "SELECT data_type::text, start_value, min_value, max_value, increment_by, cycle, cache_size, last_value"
            " FROM pg_sequences WHERE schemaname = 'takehold' AND sequencename = 'fence'"
        ) == [("bigint", 1, 1, 2**63 - 1, 1024, False, 1, None)]
        assert own_database.query("SELECT obj_description('takehold'::regnamespace)") == [("takehold format 1",)]
        assert own_database.query(
            "SELECT relname, relkind::text FROM pg_class WHERE relnamespace = 'takehold'::regnamespace"
        ) == [("fence", "S")]

    def test_every_role_may_draw_fences(self, own_database: Onlooker) -> None:
        initialise(own_database.server.url(own_database.database))
        role = f"app_{secrets.token_hex(4)}"
        own_database.query(f"CREATE ROLE {role} LOGIN")
        with Locks(own_database.server.url(own_database.database, role)) as locks, locks.lock("k") as hold:
            assert hold.fence == 1
        own_database.query(f"DROP ROLE {role}")

    def test_another_format_is_refused_and_both_are_named(self, colour: type[Face], own_database: Onlooker) -> None:
        url = own_database.server.url(own_database.database)
        initialise(url)
        own_database.query("COMMENT ON SCHEMA takehold IS 'takehold format 7'")
        said = refusal(colour(url))
        assert "format 7" in said
        assert "format 1" in said
        with pytest.raises(BackendRefused, match=r"format 7.*format 1"):
            initialise(url)


@pytest.mark.covers("L-5")
class TestFences:
    """A fence only grows."""

    def test_without_init_there_is_none_and_the_error_says_so(self, colour: type[Face], own_database: Onlooker) -> None:
        face = colour(own_database.server.url(own_database.database))
        with face.worker().acquire("k") as hold, pytest.raises(UsageError, match="takehold init"):
            _ = hold.fence
        face.close()

    def test_it_grows_over_init_again_and_over_a_crash_of_the_server(
        self, colour: type[Face], fenced_url: str, postgres_server: Postgres
    ) -> None:
        face = colour(fenced_url)
        a = face.worker()
        fences = []

        def draw() -> None:
            for _ in range(3):
                with a.acquire("k", timeout=10) as hold:
                    fences.append(hold.fence)

        draw()
        initialise(fenced_url)
        draw()
        initialise(fenced_url, fence_from=fences[-1] + 1_000_000)
        draw()
        assert fences[-3] >= fences[-4] + 1_000_000
        initialise(fenced_url, fence_from=1)
        draw()
        postgres_server.restart("kill")
        draw()
        assert fences == sorted(set(fences))
        face.close()

    def test_it_never_goes_back_while_somebody_moves_it_forward(self, fenced_url: str) -> None:
        stop = threading.Event()

        def move() -> None:
            while not stop.is_set():
                initialise(fenced_url, fence_from=1)

        mover = threading.Thread(target=move)
        mover.start()
        last = 0
        with Locks(fenced_url) as locks:
            until = time.monotonic() + 1
            while time.monotonic() < until:
                with locks.lock("k") as hold:
                    assert hold.fence > last
                    last = hold.fence
        stop.set()
        mover.join()


class TestUrls:
    """One server has many spellings."""

    def spellings(self, server: Postgres) -> list[Any]:
        url, socket = server.url(DATABASE), server.socket_url(DATABASE)
        rest = url.removeprefix("postgresql:")
        return [
            f"postgres:{rest}",
            f"postgresql+asyncpg:{rest}",
            f"postgresql+psycopg:{rest}",
            socket,
            f"postgresql:///{DATABASE}?host={server.folder}&port={server.port}&user=postgres",
            f"{url}?options=-c%20work_mem%3D123kB",
            f"{url}?connect_timeout=3&sslmode=prefer",
            sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:")),
            create_async_engine(url.replace("postgresql:", "postgresql+asyncpg:")),
        ]

    @pytest.mark.parametrize("number", range(9))
    def test_every_spelling_reaches_the_server(
        self, colour: type[Face], number: int, postgres_server: Postgres, fenced_url: str, onlooker: Onlooker
    ) -> None:
        face = colour(self.spellings(postgres_server)[number])
        with face.worker().acquire("k") as hold:
            assert [key for key, *_ in onlooker.locks()] == [place_of(hold)]
        face.close()

    @pytest.mark.parametrize("query", ["pooler=yes", "max_held=many", "reply=-1", "silence=0", "connect=nan"])
    def test_an_option_that_makes_no_sense_is_refused(self, query: str) -> None:
        with pytest.raises(UsageError, match=query.partition("=")[0]):
            Locks(f"postgresql://host/db?{query}")

    def test_what_is_not_ours_is_left_to_the_driver(self) -> None:
        assert parse("postgresql://u:p%20w@h1:1,h2:2/db?options=-c%20a%3Db&max_held=3")[0] == (
            "postgresql://u:p%20w@h1:1,h2:2/db?options=-c%20a%3Db"
        )
        assert parse("postgresql:///db?host=/run/pg")[0] == "postgresql:///db?host=/run/pg"


@pytest.mark.covers("L-32")
class TestErrors:
    """What cannot work says why, and keeps the password to itself."""

    def test_a_wrong_password_and_an_unknown_database(self, colour: type[Face], tmp_path: Path) -> None:
        with Postgres.start(tmp_path) as server:
            server.query("ALTER ROLE postgres PASSWORD 'right-one'")
            access = server.folder / "data" / "pg_hba.conf"
            access.write_text("local all all trust\nhost all all all scram-sha-256\n")
            server.query("SELECT pg_reload_conf()")
            url = server.url().replace("postgres@", "postgres:s3cret%21@")
            for wrong in (url, url.replace("postgres:s3cret%21@", "postgres@") + "?password=s3cret%21"):
                said = refusal(colour(wrong), BackendUnavailable)
                assert "password authentication failed" in said
                assert "s3cret" not in said
                assert "***" in said
                assert "s3cret" not in repr(Locks(wrong))
            right = url.replace("s3cret%21", "right-one").removesuffix("postgres") + "nowhere"
            said = refusal(colour(right), BackendUnavailable)
            assert 'database "nowhere" does not exist' in said
            assert "right-one" not in said

    def test_a_missing_driver_is_named_with_what_brings_it(
        self, colour: type[Face], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        driver = "asyncpg" if colour.name == "asyncio" else "psycopg"
        monkeypatch.setitem(sys.modules, driver, None)
        monkeypatch.delitem(sys.modules, f"takehold.backends._drivers.{driver}_wire", raising=False)
        said = refusal(colour("postgresql://nobody@127.0.0.1:1/db"), UsageError)
        assert f"{driver} is not installed" in said
        assert "pip install 'takehold[postgres]'" in said

    def test_a_server_that_is_down_is_told_within_the_deadline(self, colour: type[Face]) -> None:
        face = colour("postgresql://postgres@127.0.0.1:1/db")
        for timeout in (0, 0.5, 5):
            at = time.monotonic()
            with pytest.raises(BackendUnavailable, match=r"127\.0\.0\.1"):
                face.worker().acquire("k", timeout=timeout)
            assert time.monotonic() - at < 1.5
        face.close()
