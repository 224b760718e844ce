"""`locks.within(session)` on Postgres: advisory locks of the session's own transaction."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import takehold
from takehold import Key, Locks, LockTimeout, UsageError, WouldDeadlock, advisory, shared
from takehold.runtime import Threads, run
from takehold.testing.faces import eventually
from tests.lanes import scaled
from tests.locks.places import begin_anew, disposed, finished, read, sqlalchemy_url, waiters, write
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import Postgres

pytestmark = pytest.mark.slow


@pytest.fixture(params=["psycopg", "psycopg2"])
def engine(request: pytest.FixtureRequest, postgres_url: str) -> Iterator[Engine]:
    with disposed(create_engine(sqlalchemy_url(postgres_url, request.param))) as made:
        begin_anew(made)
        yield made


@pytest.fixture
def locks(postgres_url: str) -> Iterator[Locks]:
    with Locks(postgres_url, label="within") as made:
        yield made


@pytest.fixture
def raw(postgres_url: str, engine: Engine) -> Iterator[psycopg.Connection[Any]]:
    """A program that does not use us."""
    with psycopg.connect(postgres_url, autocommit=True, application_name="by hand") as connection:
        yield connection


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as made:
        yield made


def free(raw: psycopg.Connection[Any], number: int) -> bool:
    """Whether a stranger can have the number; it is given back at once."""
    [got] = raw.execute("SELECT pg_try_advisory_lock(%s)", [number]).fetchone() or (None,)
    return bool(got and raw.execute("SELECT pg_advisory_unlock(%s)", [number]))


class TestExclusion:
    @pytest.mark.covers("L-1", "L-33")
    def test_a_transaction_and_a_session_hold_exclude_each_other(self, locks: Locks, engine: Engine) -> None:
        with Session(engine) as session:
            assert locks.within(session).acquire("k").active
            assert locks.lock("k").try_acquire() is None
            session.commit()
            with locks.lock("k", timeout=0):
                assert locks.within(session).try_acquire("k") is None
                assert locks.within(session).try_acquire("other") is not None

    @pytest.mark.covers("L-33")
    def test_a_raw_number_and_a_transaction_exclude_each_other(
        self, locks: Locks, engine: Engine, raw: psycopg.Connection[Any]
    ) -> None:
        number = -(2**63) + 7
        with Session(engine) as session:
            locks.within(session).acquire(advisory(number))
            assert not free(raw, number)
            session.commit()
            assert free(raw, number)
            for function in ("pg_advisory_lock", "pg_advisory_xact_lock"):
                with raw.transaction():
                    raw.execute(f"SELECT {function}({number})".encode())
                    assert locks.within(session).try_acquire(advisory(number)) is None
                raw.execute("SELECT pg_advisory_unlock_all()")
            assert locks.within(session).try_acquire(advisory(number)) is not None

    @pytest.mark.covers("L-1")
    def test_shared_keys_are_held_together(self, locks: Locks, engine: Engine) -> None:
        with Session(engine) as one, Session(engine) as two:
            assert locks.within(one).acquire(shared("k")).mode is takehold.Mode.SHARED
            assert locks.within(two).acquire("k", mode="shared", timeout=0).active
            assert locks.lock("k").try_acquire() is None
            with locks.lock(shared("k"), timeout=0):
                pass

    @pytest.mark.covers("L-20")
    def test_a_subtree_excludes_the_keys_below_it(self, locks: Locks, engine: Engine) -> None:
        with Session(engine) as session, Session(engine) as other:
            locks.within(session).acquire(Key("wh", "eu"), subtree=True)
            assert locks.within(other).try_acquire(Key("wh", "eu", 7)) is None
            assert locks.lock(Key("wh", "eu", 7)).try_acquire() is None
            assert locks.within(other).try_acquire(Key("wh", "us", 7)) is not None

    @pytest.mark.covers("L-33")
    def test_nobody_overlaps_and_nobody_reads_what_is_not_the_last(
        self, locks: Locks, engine: Engine, postgres_url: str, pool: ThreadPoolExecutor
    ) -> None:
        """Transactions, session holds and a program by hand, all adding to one number."""
        times = scaled(10_000) // 4
        number = advisory(1000)
        inside: list[int] = []
        most: list[int] = []

        def enter() -> None:
            inside.append(1)
            most.append(len(inside))

        def in_transactions() -> None:
            for _ in range(times):
                with Session(engine) as session:
                    locks.within(session).acquire(number, timeout=60)
                    enter()
                    write(session, read(session) + 1)
                    inside.pop()
                    session.commit()

        def in_holds() -> None:
            for _ in range(times):
                with locks.lock(number, timeout=60), Session(engine) as session:
                    enter()
                    write(session, read(session) + 1)
                    session.commit()
                    inside.pop()

        def by_hand() -> None:
            with psycopg.connect(postgres_url, autocommit=True) as connection:
                for _ in range(times):
                    connection.execute("SELECT pg_advisory_lock(1000)")
                    enter()
                    [value] = connection.execute("SELECT number FROM counter").fetchone() or (0,)
                    connection.execute("UPDATE counter SET number = %s", [value + 1])
                    inside.pop()
                    connection.execute("SELECT pg_advisory_unlock(1000)")

        for work in [pool.submit(one) for one in (in_transactions, in_transactions, in_holds, by_hand)]:
            work.result(120)
        assert max(most) == 1
        with Session(engine) as session:
            assert read(session) == 4 * times

    @pytest.mark.crash
    @pytest.mark.covers("L-1")
    def test_processes_lose_no_update(self, engine: Engine, postgres_url: str, pool: ThreadPoolExecutor) -> None:
        times = scaled(1_000)
        url = engine.url.render_as_string(hide_password=False)
        command = [sys.executable, "-m", "tests.locks.counting", postgres_url, url, str(times)]
        for done in [pool.submit(finished, command) for _ in range(3)]:
            done.result(120)
        with Session(engine) as session:
            assert read(session) == 3 * times


class TestTheEnd:
    @pytest.mark.parametrize("end", ["commit", "rollback", "close"])
    @pytest.mark.covers("D-22")
    def test_the_end_of_the_transaction_is_the_end_of_the_lock(self, locks: Locks, engine: Engine, end: str) -> None:
        with Session(engine) as session:
            hold = locks.within(session).acquire("a", "b")
            assert hold.active
            assert [str(key) for key in hold.keys] == ["a", "b"]
            getattr(session, end)()
            assert "ended" in repr(hold)
            with locks.lock("a", "b", timeout=0):
                pass

    @pytest.mark.covers("D-16")
    def test_whoever_comes_next_reads_what_was_committed(
        self, locks: Locks, engine: Engine, postgres_server: Postgres, pool: ThreadPoolExecutor
    ) -> None:
        def next_one() -> int:
            with Session(engine) as session:
                # It has read before it waits: at READ COMMITTED the next statement looks again.
                assert read(session) == 0
                locks.within(session).acquire("k", timeout=60)
                return read(session)

        with Session(engine) as session:
            locks.within(session).acquire("k")
            write(session, 1)
            seen = pool.submit(next_one)
            eventually(lambda: waiters(postgres_server) == 1)
            session.commit()
            assert seen.result(10) == 1

    def test_a_commit_on_another_thread_ends_it(self, locks: Locks, engine: Engine, pool: ThreadPoolExecutor) -> None:
        """As a web framework does: the handler on one thread of a pool, the commit on another."""
        session = Session(engine)
        hold = pool.submit(lambda: locks.within(session).acquire("k")).result(10)
        session.commit()
        assert not hold.active
        with locks.lock("k", timeout=0):
            pass
        session.close()

    def test_a_flush_that_fails_ends_it_with_its_transaction(self, locks: Locks, engine: Engine) -> None:
        with Session(engine) as session:
            hold = locks.within(session).acquire("k")
            with pytest.raises(DBAPIError):
                session.execute(text("INSERT INTO counter VALUES (1, 1)"))
            session.rollback()
            assert not hold.active
            assert locks.within(session).acquire("k").active

    def test_a_lost_connection_ends_it(self, locks: Locks, engine: Engine, postgres_server: Postgres) -> None:
        with Session(engine) as session:
            hold = locks.within(session).acquire("k")
            [pid] = session.execute(text("SELECT pg_backend_pid()")).one()
            postgres_server.query("SELECT pg_terminate_backend(%s, 2000)", pid)
            with pytest.raises(DBAPIError):
                read(session)
            assert not hold.active
            session.rollback()
            assert locks.within(session).acquire("k").active

    def test_a_session_that_is_dropped_leaves_nothing(
        self, locks: Locks, engine: Engine, postgres_server: Postgres
    ) -> None:
        session = Session(engine)
        hold = locks.within(session).acquire("k")
        assert takehold.locks._base.in_transactions
        del session, hold
        gc.collect()
        eventually(lambda: not postgres_server.advisory_locks())
        assert not takehold.locks._base.in_transactions


class TestSavepoints:
    def test_a_lock_inside_a_savepoint_is_refused(self, locks: Locks, engine: Engine) -> None:
        """It would go with ROLLBACK TO SAVEPOINT, and the transaction would go on without it."""
        with Session(engine) as session:
            with session.begin_nested(), pytest.raises(UsageError, match=r"before begin_nested\(\)"):
                locks.within(session).acquire("k")
            with session.connection().begin_nested(), pytest.raises(UsageError, match="savepoint"):
                locks.within(session).try_acquire("k")
            assert locks.within(session).acquire("k", timeout=0).active

    def test_a_lock_taken_before_outlives_the_savepoint(self, locks: Locks, engine: Engine) -> None:
        with Session(engine) as session:
            hold = locks.within(session).acquire("k")
            for end in ("rollback", "commit"):
                nested = session.begin_nested()
                assert locks.within(session).acquire("k").active  # has it already: nothing is taken
                getattr(nested, end)()
                assert hold.active
                assert locks.lock("k").try_acquire() is None

    def test_a_session_that_lives_on_a_savepoint_may_lock(self, locks: Locks, engine: Engine) -> None:
        """As test suites do: everything is rolled back in the end, and with it goes the lock."""
        with engine.connect() as connection, connection.begin() as outer:
            with Session(connection, join_transaction_mode="create_savepoint") as session:
                hold = locks.within(session).acquire("k")
                session.rollback()
                assert not hold.active
                with locks.lock("k", timeout=0):
                    pass
                assert locks.within(session).acquire("k").active
                session.commit()
            assert locks.lock("k").try_acquire() is None
            outer.rollback()
        with locks.lock("k", timeout=0):
            pass


class TestTimeouts:
    @pytest.mark.parametrize("keys", [["k"], ["a", "k", "z"]], ids=["one", "several"])
    @pytest.mark.covers("L-6", "L-10")
    def test_after_a_timeout_the_transaction_goes_on(self, locks: Locks, engine: Engine, keys: list[str]) -> None:
        with locks.lock("k"), Session(engine) as session, ThreadPoolExecutor(1) as thread:
            write(session, 5)
            for timeout in (0.05, 0):
                acquire = thread.submit(locks.within(session).acquire, *keys, timeout=timeout)
                with pytest.raises(LockTimeout) as caught:
                    acquire.result(10)
                assert caught.value.waited >= timeout
            assert locks.within(session).try_acquire(*keys) is None
            # All or nothing.
            for key in ("a", "z"):
                hold = locks.lock(key).try_acquire()
                assert hold is not None
                hold.release()
            assert read(session) == 5
            session.commit()
            assert read(session) == 5

    def test_settings_are_as_they_were(self, locks: Locks, engine: Engine, pool: ThreadPoolExecutor) -> None:
        """Also those that would have ended the wait too early, or with the wrong error."""
        show = text("SELECT current_setting('lock_timeout'), current_setting('statement_timeout')")

        with Session(engine) as session:
            session.execute(text("SET LOCAL lock_timeout = '200ms'"))
            session.execute(text("SET LOCAL statement_timeout = '400ms'"))
            with locks.lock("k"), pytest.raises(LockTimeout) as caught:
                pool.submit(locks.within(session).acquire, "k", timeout=0.7).result(10)
            assert caught.value.waited >= 0.7
            assert session.execute(show).one() == ("200ms", "400ms")
            hold = locks.lock("k").acquire()
            taken = pool.submit(locks.within(session).acquire, "k", timeout=60)
            threading.Timer(0.6, hold.release).start()
            assert taken.result(10).active
            assert session.execute(show).one() == ("200ms", "400ms")
            session.commit()
            assert session.execute(show).one() == ("0", "0")

    @pytest.mark.covers("L-7")
    def test_a_timeout_names_who_is_in_the_way(
        self, locks: Locks, engine: Engine, raw: psycopg.Connection[Any], pool: ThreadPoolExecutor
    ) -> None:
        def message(key: Any, locks: Locks = locks) -> str:
            with Session(engine) as session, pytest.raises(LockTimeout) as caught:
                locks.within(session).acquire(key, timeout=0)
            assert caught.value.owner is not None
            return str(caught.value)

        raw.execute("SELECT pg_advisory_lock(77)")
        assert "(by hand)" in message(advisory(77))
        # Also when the locks have no session of their own that could be asked.
        assert "(by hand)" in message(advisory(77), Locks(locks._backend.url + "?connect=4"))  # type: ignore[attr-defined]
        raw.execute("SELECT pg_advisory_unlock_all()")
        with locks.lock("k"):
            assert f"(within) at {__file__}:" in pool.submit(message, "k").result(10)
        with Session(engine) as session:
            locks.within(session).acquire("k")
            assert f"(within) at {__file__}:" in message("k")

    @pytest.mark.covers("L-9", "L-10")
    def test_a_race_between_timeout_and_release_leaves_no_lock(
        self, locks: Locks, engine: Engine, raw: psycopg.Connection[Any], pool: ThreadPoolExecutor
    ) -> None:
        """The release is tuned to the timeout; whoever was told no has nothing, and loses nothing."""
        told_no = 0
        with Session(engine) as session:
            for turn in range(scaled(1_000)):
                raw.execute("SELECT pg_advisory_lock(42)")
                asked = pool.submit(
                    locks.within(session).try_acquire if turn < 2 else _short(locks, session), advisory(42)
                )
                threading.Event().wait(0.0095 + (turn % 10) / 10_000)
                raw.execute("SELECT pg_advisory_unlock(42)")
                hold = asked.result(10)
                told_no += hold is None
                assert free(raw, 42) is (hold is None)
                if hold is not None:
                    session.commit()
        assert told_no

    @pytest.mark.covers("L-12")
    def test_waiting_inside_an_event_loop_is_refused(self, locks: Locks, engine: Engine) -> None:
        async def work(session: Session) -> None:
            assert locks.within(session).try_acquire("k") is None
            locks.within(session).acquire("k")

        with Session(engine) as holder, Session(engine) as session:
            locks.within(holder).acquire("k")
            with pytest.raises(UsageError, match="AsyncLocks"):
                asyncio.run(work(session))
            assert read(session) == 0


def _short(locks: Locks, session: Session) -> Any:
    def acquire(key: Any) -> Any:
        try:
            return locks.within(session).acquire(key, timeout=0.01)
        except LockTimeout:
            return None

    return acquire


class TestSnapshots:
    @pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
    @pytest.mark.parametrize("first", [True, False], ids=["first statement", "later"])
    @pytest.mark.parametrize("known", [True, False], ids=["known engine", "new engine"])
    def test_an_older_snapshot_is_refused(
        self, locks: Locks, engine: Engine, level: str, first: bool, known: bool
    ) -> None:
        if known:
            with Session(engine) as session:
                locks.within(session).acquire("k")
        within = engine.execution_options(isolation_level=level)
        with Session(within) as session:
            if not first:
                read(session)
            for keys in (["k"], ["a", "b"]):
                with pytest.raises(UsageError, match="snapshot"):
                    locks.within(session).acquire(*keys)
            assert read(session) == 0
        with Session(engine) as session:
            session.execute(text(f"SET TRANSACTION ISOLATION LEVEL {level}"))
            with pytest.raises(UsageError, match="READ COMMITTED"):
                locks.within(session).try_acquire("k")

    def test_a_refused_transaction_has_no_lock(self, locks: Locks, engine: Engine) -> None:
        with Session(engine) as session:
            locks.within(session).acquire("k")
        with Session(engine.execution_options(isolation_level="REPEATABLE READ")) as session:
            for keys in (["k"], ["j", "k"]):
                with pytest.raises(UsageError):
                    locks.within(session).acquire(*keys)
            with locks.lock("k", timeout=0):
                pass

    def test_without_the_refusal_a_lock_that_was_free_can_be_stale(
        self, engine: Engine, raw: psycopg.Connection[Any]
    ) -> None:
        """What is closed here: nobody waited, and still the holder before us is not seen."""
        with Session(engine.execution_options(isolation_level="REPEATABLE READ")) as session:
            session.execute(text("SELECT 1"))
            with raw.transaction():
                raw.execute("SELECT pg_advisory_xact_lock(5)")
                raw.execute("UPDATE counter SET number = 9")
            assert session.execute(text("SELECT pg_try_advisory_xact_lock(5)")).scalar_one() is True
            assert read(session) == 0

    def test_a_hold_around_the_transaction_is_fresh(
        self, locks: Locks, engine: Engine, raw: psycopg.Connection[Any]
    ) -> None:
        """What the refusal tells people to do."""
        raw.execute("UPDATE counter SET number = 9")
        with locks.lock("k"), Session(engine.execution_options(isolation_level="REPEATABLE READ")) as session:
            assert read(session) == 9


class TestAgain:
    @pytest.mark.covers("L-4")
    def test_a_key_that_this_thread_holds_is_refused_at_once(self, locks: Locks, engine: Engine) -> None:
        with locks.lock("k", "other"), Session(engine) as session:
            with pytest.raises(WouldDeadlock, match=r"'k' is already held .* taken at .* and asked for again at"):
                locks.within(session).acquire("a", "k")
            assert locks.within(session).try_acquire("k") is None
            with pytest.raises(LockTimeout):
                locks.within(session).acquire("k", timeout=0)
            assert locks.within(session).acquire("a", timeout=0).active

    def test_a_key_that_another_thread_holds_is_waited_for(
        self, locks: Locks, engine: Engine, postgres_server: Postgres, pool: ThreadPoolExecutor
    ) -> None:
        with Session(engine) as session:
            with locks.lock("k"):
                asked = pool.submit(locks.within(session).acquire, "k", timeout=60)
                eventually(lambda: waiters(postgres_server) == 1)
            assert asked.result(10).active

    def test_the_same_key_twice_in_one_transaction_is_one_lock(
        self, locks: Locks, engine: Engine, postgres_server: Postgres
    ) -> None:
        with Session(engine) as session:
            hold = locks.within(session).acquire("a", shared("b"))
            again = locks.within(session).acquire("a", shared("b"), "c")
            assert locks.within(session).acquire(shared("a"), timeout=0).grants == hold.grants[:1]
            assert again.grants[:2] == hold.grants
            assert len(postgres_server.advisory_locks()) == 3
            session.commit()
            assert not hold.active
            assert locks.within(session).acquire("a").active

    def test_shared_does_not_turn_into_exclusive(self, locks: Locks, engine: Engine) -> None:
        with Session(engine) as session:
            locks.within(session).acquire(shared("k"))
            with pytest.raises(UsageError, match="exclusively first"):
                locks.within(session).acquire("k")

    def test_two_transactions_in_opposite_order_do_not_wait_for_ever(
        self, locks: Locks, engine: Engine, postgres_server: Postgres, pool: ThreadPoolExecutor
    ) -> None:
        """The server sees the cycle. Who is refused goes on, and makes way by ending its transaction."""
        off = Locks(locks._backend, check_order="off")
        one, two = Session(engine), Session(engine)
        off.within(one).acquire("a")
        off.within(two).acquire("b")
        write(one, 3)
        first = pool.submit(off.within(one).acquire, "b", timeout=60)
        eventually(lambda: waiters(postgres_server) == 1)
        second = pool.submit(off.within(two).acquire, "a", timeout=60)
        eventually(lambda: first.done() or second.done())
        (loser, waits), (winner, session) = sorted([(first, one), (second, two)], key=lambda pair: not pair[0].done())
        with pytest.raises(WouldDeadlock, match="would deadlock, the server says"):
            loser.result(10)
        assert read(waits) in (0, 3)
        waits.rollback()
        assert winner.result(10).active
        session.close()
        waits.close()
        off.close()

    @pytest.mark.covers("L-21")
    def test_keys_in_both_orders_are_reported_before_they_deadlock(self, locks: Locks, engine: Engine) -> None:
        with Session(engine) as session:
            locks.within(session).acquire("first")
            locks.within(session).acquire("second")
            session.commit()
            locks.within(session).acquire("second")
            with pytest.warns(takehold.LockOrderWarning) as caught:
                locks.within(session).acquire("first")
            assert caught[0].filename == __file__


class TestWhichDatabase:
    def test_another_database_is_refused(self, locks: Locks, engine: Engine, postgres_server: Postgres) -> None:
        name = f"elsewhere_{engine.driver}"
        postgres_server.database(name)
        with disposed(create_engine(engine.url.set(database=name))) as other:
            for _ in range(2):
                with Session(other) as session, pytest.raises(UsageError, match="another database"):
                    locks.within(session).acquire("k")

    def test_a_standby_is_refused(self, locks: Locks, engine: Engine, standby_server: Postgres) -> None:
        url = engine.url.set(host=standby_server.host, port=standby_server.port)
        with disposed(create_engine(url)) as standby, Session(standby) as session, pytest.raises(UsageError):
            locks.within(session).acquire("k")

    def test_another_way_to_the_same_database_is_the_same(self, engine: Engine, postgres_server: Postgres) -> None:
        """By socket instead of TCP, with a password, with the name of a driver."""
        socket = postgres_server.socket_url("takehold_tests")
        password = engine.url.set(password="secret")  # everybody is let in
        with Locks(socket) as by_socket, Session(engine) as session:
            assert by_socket.within(session).acquire("k").active
        with Locks(password.render_as_string(hide_password=False)) as other, Session(engine) as session:
            assert other.within(session).acquire("k").active
        by_engine: Any = engine
        with Locks(by_engine) as own, Session(engine) as session:
            assert own.within(session).acquire("k").active

    def test_a_transaction_pooler_is_no_obstacle(self, locks: Locks, engine: Engine, bouncer: PgBouncer) -> None:
        """Session locks need a session of their own; a transaction's locks do not."""
        if engine.driver == "psycopg2":
            pytest.skip("once is enough")
        url = sqlalchemy_url(bouncer.url("takehold_tests"), "psycopg")
        with disposed(create_engine(url, connect_args={"prepare_threshold": None})) as pooled:
            for mine in (locks, Locks(bouncer.url("takehold_tests"))):
                with Session(pooled) as session, Session(engine) as other:
                    assert mine.within(session).acquire("k").active
                    assert locks.within(other).try_acquire("k") is None

    def test_a_session_without_a_transaction_is_refused(self, locks: Locks, engine: Engine) -> None:
        with (
            Session(engine.execution_options(isolation_level="AUTOCOMMIT")) as session,
            pytest.raises(UsageError, match="autocommit"),
        ):
            locks.within(session).acquire("k")

    def test_locks_of_another_kind_are_refused(self, engine: Engine) -> None:
        with Session(engine) as session, Locks("memory:") as memory, pytest.raises(UsageError, match="memory:"):
            memory.within(session)

    def test_an_unknown_database_is_refused_with_what_is_known(self, locks: Locks) -> None:
        driver = SimpleNamespace(paramstyle="format", version_info=(1, 4), apilevel="2.0", threadsafety=1)
        with (
            disposed(create_engine("mysql+mysqldb://here/app", module=driver)) as mysql,
            Session(mysql) as session,
            pytest.raises(UsageError, match=r"PostgreSQL sessions .* SQLite sessions .* not a mysql session"),
        ):
            locks.within(session)

    def test_only_a_session_is_a_session(self, locks: Locks, engine: Engine) -> None:
        with engine.connect() as connection:
            for wrong in (engine, connection, None, "k"):
                with pytest.raises(UsageError, match="takes a SQLAlchemy Session"):
                    locks.within(wrong)  # type: ignore[arg-type]
        with Session() as nowhere, pytest.raises(UsageError, match="one database"):
            locks.within(nowhere)

    def test_a_scoped_session_is_the_session_of_its_thread(self, locks: Locks, engine: Engine) -> None:
        scoped = scoped_session(sessionmaker(engine))
        hold = locks.within(scoped).acquire("k")
        assert hold.active
        scoped.remove()
        assert not hold.active


class TestFences:
    @pytest.fixture
    def fenced(self, postgres_url: str) -> None:
        run(Locks(postgres_url)._backend.init(Threads(), fence_from=None))

    def test_fences_grow_across_transactions_and_holds(self, fenced: None, postgres_url: str, engine: Engine) -> None:
        seen = []
        with Locks(postgres_url) as locks, Session(engine) as session:
            for _ in range(3):
                seen.append(locks.within(session).acquire("a", shared("b")).fence)
                session.commit()
                with locks.lock("a") as hold:
                    seen.append(hold.fence)
        assert seen == sorted(set(seen))

    def test_a_waiter_gets_its_fence_after_the_grant(
        self, fenced: None, postgres_url: str, engine: Engine, postgres_server: Postgres, pool: ThreadPoolExecutor
    ) -> None:
        with Locks(postgres_url) as locks, Session(engine) as session:
            with locks.lock("k") as hold:
                asked = pool.submit(locks.within(session).acquire, "k", timeout=60)
                eventually(lambda: waiters(postgres_server) == 1)
            assert asked.result(10).fence > hold.fence

    def test_a_transaction_that_only_reads_locks_without_a_fence(
        self, fenced: None, locks: Locks, engine: Engine
    ) -> None:
        with Session(engine) as session:
            session.execute(text("SET TRANSACTION READ ONLY"))
            hold = locks.within(session).acquire("k")
            with pytest.raises(UsageError, match="fence"):
                _ = hold.fence
            assert read(session) == 0

    def test_without_init_there_is_no_fence(self, engine: Engine, postgres_server: Postgres) -> None:
        url = postgres_server.database(f"unfenced_{engine.driver}")
        bare = create_engine(sqlalchemy_url(url, engine.driver))
        with disposed(bare), Locks(url) as locks, Session(bare) as session:
            hold = locks.within(session).acquire("k")
            with pytest.raises(UsageError, match="takehold init"):
                _ = hold.fence


def test_listeners_hear_of_it(locks: Locks, engine: Engine) -> None:
    heard: list[tuple[str, str]] = []
    locks.listen(lambda event: heard.append((event.kind, event.key)))
    with Session(engine) as session:
        locks.within(session).acquire("k")
        session.commit()
        assert locks.within(session).try_acquire("k")
    assert heard == [("acquired", "k"), ("released", "k")] * 2


def test_a_free_key_costs_one_statement_and_no_connection(
    locks: Locks, engine: Engine, postgres_server: Postgres
) -> None:
    sent: list[str] = []
    with Session(engine) as session:
        locks.within(session).acquire("first use of the engine")
        session.commit()
        event.listen(engine, "before_cursor_execute", lambda _c, _u, sql, *_: sent.append(sql.split()[0]))
        locks.within(session).acquire("k")
        assert sent == ["SELECT"]
        locks.within(session).acquire("k")
        assert sent == ["SELECT"]
        locks.within(session).acquire("l", "m", "n")
        assert sent == ["SELECT", "SAVEPOINT", "SELECT", "RELEASE"]


def test_who_shows_a_transaction_by_its_key(locks: Locks, engine: Engine) -> None:
    with Session(engine) as session:
        locks.within(session).acquire("k")
        [record] = locks.who("k")
    assert (record.key, record.state, record.mode, record.silent) == ("k", "held", "exclusive", True)


def test_a_closed_locks_object_is_refused(postgres_url: str, engine: Engine) -> None:
    locks = Locks(postgres_url)
    locks.close()
    with Session(engine) as session, pytest.raises(UsageError, match="closed"):
        locks.within(session).acquire("k")


def test_sqlalchemy_is_loaded_with_the_first_use() -> None:
    code = (
        "import takehold, sys; takehold.Locks('memory:'); takehold.AsyncLocks; assert 'sqlalchemy' not in sys.modules"
    )
    finished([sys.executable, "-I", "-c", code])


def test_without_sqlalchemy_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("takehold.locks._within")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sqlalchemy.orm", None)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with Locks("memory:") as locks, pytest.raises(UsageError, match=r"takehold\[sqlalchemy\]"):
        locks.within(object())  # type: ignore[arg-type]
