"""`locks.within(session)` on SQLite: a hold that the session's own events release, after the commit."""

from __future__ import annotations

import gc
import sqlite3
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, sessionmaker

from takehold import HoldLost, Locks, LockTimeout, UsageError, WouldDeadlock, shared
from takehold.testing import busy
from takehold.testing.faces import eventually
from tests.lanes import scaled
from tests.locks.models import Counter
from tests.locks.places import begin_anew, disposed, finished, read, sqlite_engine, write


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.db"


@pytest.fixture(params=["", "BEGIN", "BEGIN IMMEDIATE"], ids=["driver", "begin", "immediate"])
def engine(request: pytest.FixtureRequest, path: Path) -> Iterator[Engine]:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
    connection.close()
    with disposed(sqlite_engine(path, request.param)) as made:
        begin_anew(made)
        yield made


@pytest.fixture
def locks(path: Path) -> Iterator[Locks]:
    with Locks(f"sqlite:///{path}") as made:
        yield made
        assert made.who() == []


class TestTheEnd:
    @pytest.mark.parametrize("end", ["commit", "rollback", "close"])
    def test_the_end_of_the_transaction_is_the_end_of_the_hold(self, locks: Locks, engine: Engine, end: str) -> None:
        released: list[str] = []
        locks.listen(lambda event: released.append(event.key) if event.kind == "released" else None)
        with Session(engine) as session:
            hold = locks.within(session).acquire("a", shared("b"))
            assert hold.active
            assert hold.fence
            assert locks.lock("a").try_acquire() is None
            write(session, 1)
            getattr(session, end)()
            assert "ended" in repr(hold)
            with locks.lock("a", "b", timeout=0):
                pass
        assert sorted(released) == ["a", "a", "b", "b"]  # ours once, and those of the with statement

    def test_a_session_that_does_nothing_releases_when_it_is_closed(self, locks: Locks, engine: Engine) -> None:
        with Session(engine) as session:
            locks.within(session).acquire("k")
        with locks.lock("k", timeout=0):
            pass

    @pytest.mark.covers("D-16")
    def test_it_is_released_after_the_commit_can_be_seen(self, locks: Locks, engine: Engine, path: Path) -> None:
        seen: list[int] = []

        def look(event: Any) -> None:
            if event.kind == "released":
                with disposed(create_engine(f"sqlite:///{path}")) as other, Session(other) as session:
                    seen.append(read(session))

        locks.listen(look)
        with Session(engine) as session:
            locks.within(session).acquire("k")
            write(session, 7)
            session.commit()
        assert seen == [7]

    def test_it_is_held_while_the_commit_runs(self, locks: Locks, engine: Engine) -> None:
        held: list[bool] = []
        event.listen(engine, "commit", lambda _: held.append(locks.lock("k").try_acquire() is None))
        with Session(engine) as session:
            locks.within(session).acquire("k")
            write(session, 7)
            session.commit()
        assert held == [True]

    def test_a_savepoint_does_not_release_it(self, locks: Locks, engine: Engine) -> None:
        with Session(engine) as session:
            hold = locks.within(session).acquire("k")
            for end in ("rollback", "commit"):
                nested = session.begin_nested()
                write(session, 3)
                getattr(nested, end)()
                assert hold.active
                assert locks.lock("k").try_acquire() is None
            session.commit()
            assert not hold.active

    def test_a_flush_that_fails_releases_it_with_its_rollback(self, locks: Locks, engine: Engine) -> None:
        with Session(engine) as session:
            hold = locks.within(session).acquire("k")
            session.add(Counter(id=1, number=0))
            with pytest.raises(IntegrityError):
                session.flush()
            assert not hold.active
            with locks.lock("k", timeout=0):
                pass
            session.rollback()

    def test_a_commit_on_another_thread_releases_it(self, locks: Locks, path: Path) -> None:
        """And the first thread, which serves somebody else by then, simply waits for it."""
        with (
            disposed(sqlite_engine(path, connect_args={"check_same_thread": False})) as engine,
            ThreadPoolExecutor(1) as first,
            Session(engine) as session,
        ):
            hold = first.submit(lambda: locks.within(session).acquire("k")).result(10)
            next_request = first.submit(lambda: locks.lock("k", timeout=60).acquire().release())
            eventually(lambda: [record for record in locks.who() if record.state == "waiting"])
            session.commit()
            assert not hold.active
            next_request.result(10)

    @pytest.mark.covers("L-18")
    def test_a_session_that_is_dropped_releases_it(self, locks: Locks, engine: Engine) -> None:
        session = Session(engine)
        locks.within(session).acquire("k")
        del session
        with pytest.warns(ResourceWarning, match="dropped while held"):
            gc.collect()
        with locks.lock("k", timeout=0):
            pass

    def test_a_commit_is_refused_when_the_hold_was_lost(self, locks: Locks, engine: Engine) -> None:
        with Session(engine) as session:
            hold = locks.within(session).acquire("k")
            write(session, 9)
            [record] = locks.who()
            assert locks.evict(record.id)
            assert not hold.active
            with pytest.raises(HoldLost, match="evicted"):
                session.commit()
            session.rollback()
            assert read(session) == 0


class TestSnapshots:
    @pytest.mark.covers("D-15")
    def test_an_open_transaction_is_refused(self, locks: Locks, engine: Engine) -> None:
        """Its reads would be older than the lock, or it would keep the holder from writing."""
        with Session(engine) as session:
            write(session, 1)
            with pytest.raises(UsageError, match="Commit or roll back first"):
                locks.within(session).acquire("k")
            with pytest.raises(UsageError, match="Commit or roll back first"):
                locks.within(session).try_acquire("k")
            assert read(session) == 1  # nothing was committed behind its back
            session.rollback()
            assert locks.within(session).acquire("k", timeout=0).active
            assert read(session) == 0

    @pytest.mark.covers("D-15")
    def test_a_read_is_fresh_after_the_lock(self, locks: Locks, engine: Engine, path: Path) -> None:
        """After a read, either the lock is refused or the next read sees what the last holder wrote."""
        with Session(engine) as session, disposed(create_engine(f"sqlite:///{path}")) as other:
            assert read(session) == 0
            try:
                locks.within(session).acquire("k")
            except UsageError:
                session.rollback()
                locks.within(session).acquire("k")
            session.rollback()
            with locks.lock("k"), Session(other) as holder:
                write(holder, 4)
                holder.commit()
            locks.within(session).acquire("k")
            assert read(session) == 4

    def test_waiting_keeps_nobody_from_writing(self, locks: Locks, engine: Engine, path: Path) -> None:
        """BEGIN IMMEDIATE comes after the lock, also inside `with session.begin()`: the holder can go on."""

        def wait() -> int:
            with Session(engine) as session, session.begin():
                locks.within(session).acquire("k", timeout=60)
                return read(session)

        with Session(engine), ThreadPoolExecutor(1) as pool:
            with (
                locks.lock("k"),
                disposed(create_engine(f"sqlite:///{path}", connect_args={"timeout": 0})) as other,
                Session(other) as holder,
            ):
                waiting = pool.submit(wait)
                eventually(lambda: [record for record in locks.who() if record.state == "waiting"])
                write(holder, 5)
                holder.commit()
            assert waiting.result(10) == 5

    def test_a_second_lock_after_a_write_is_refused(self, locks: Locks, engine: Engine) -> None:
        with Session(engine) as session:
            hold = locks.within(session).acquire("a")
            write(session, 1)
            assert locks.within(session).acquire("a").grants == hold.grants  # has it already
            with pytest.raises(UsageError, match="Commit or roll back first"):
                locks.within(session).acquire("b")


class TestWaiting:
    @pytest.mark.covers("L-1")
    def test_threads_lose_no_update(self, locks: Locks, engine: Engine) -> None:
        times = scaled(300)
        inside: list[int] = []
        most: list[int] = []

        def add() -> None:
            for _ in range(times):
                with Session(engine) as session:
                    locks.within(session).acquire("counter", timeout=60)
                    inside.append(1)
                    most.append(len(inside))
                    write(session, read(session) + 1)
                    inside.pop()
                    session.commit()

        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(add) for _ in range(4)]:
                done.result(60)
        assert max(most) == 1
        with Session(engine) as session:
            assert read(session) == 4 * times

    @pytest.mark.crash
    @pytest.mark.slow
    @pytest.mark.covers("L-1")
    def test_processes_lose_no_update(self, engine: Engine, path: Path) -> None:
        times = scaled(500)
        command = [sys.executable, "-m", "tests.locks.counting", f"sqlite:///{path}", f"sqlite:///{path}", str(times)]
        with ThreadPoolExecutor(3) as pool:
            for done in [pool.submit(finished, command) for _ in range(3)]:
                done.result(120)
        with Session(engine) as session:
            assert read(session) == 3 * times

    @pytest.mark.covers("L-7")
    def test_a_timeout_leaves_the_session_as_it_was(self, locks: Locks, engine: Engine) -> None:
        with Session(engine) as session:
            with busy(locks, "k"):
                for timeout in (0, 0.01):
                    with pytest.raises(LockTimeout, match="held by"):
                        locks.within(session).acquire("a", "k", timeout=timeout)
                assert locks.within(session).try_acquire("k") is None
            assert not session.in_transaction()
            assert locks.within(session).acquire("a", "k", timeout=0).active

    @pytest.mark.covers("L-4")
    def test_a_key_that_this_thread_holds_is_refused_at_once(self, locks: Locks, engine: Engine) -> None:
        with Session(engine) as session, locks.lock("k"):
            with pytest.raises(WouldDeadlock, match=r"taken at .* and asked for again at"):
                locks.within(session).acquire("k")
            assert locks.within(session).try_acquire("k") is None

    def test_two_transactions_in_opposite_order_are_told(self, path: Path, engine: Engine) -> None:
        with Locks(f"sqlite:///{path}", check_order="off") as locks, ThreadPoolExecutor(1) as pool:
            one, two = Session(engine), Session(engine)
            locks.within(one).acquire("a")
            locks.within(two).acquire("b")
            first = pool.submit(lambda: locks.within(one).acquire("b", timeout=60))
            eventually(lambda: [record for record in locks.who() if record.state == "waiting"])
            with pytest.raises(WouldDeadlock):
                locks.within(two).acquire("a", timeout=60)
            two.close()
            assert first.result(10).active
            one.close()

    def test_a_lock_inside_a_savepoint_is_refused_as_on_postgres(self, locks: Locks, engine: Engine) -> None:
        with Session(engine) as session, session.begin_nested(), pytest.raises(UsageError, match="begin_nested"):
            locks.within(session).acquire("k")


class TestWhichDatabase:
    def test_another_file_is_refused(self, locks: Locks, engine: Engine, tmp_path: Path) -> None:
        for url, why in ((f"sqlite:///{tmp_path}/other.db", "another database"), ("sqlite://", "in memory")):
            with disposed(create_engine(url)) as other, pytest.raises(UsageError, match=why):
                locks.within(Session(other))

    def test_the_same_file_by_another_name_is_the_same(self, locks: Locks, engine: Engine, path: Path) -> None:
        path.with_name("link.db").symlink_to(path)
        for name in (f"{path.parent}/./app.db", path.with_name("link.db")):
            with disposed(create_engine(f"sqlite:///{name}")) as other, Session(other) as session:
                assert locks.within(session).acquire("k", timeout=0).active

    @pytest.mark.parametrize("url", ["file:{}/locks", "memory:"])
    def test_any_directory_and_memory_will_do(self, engine: Engine, tmp_path: Path, url: str) -> None:
        with Locks(url.format(tmp_path)) as other:
            with Session(engine) as session:
                assert other.within(session).acquire("k").active
                assert other.lock("k").try_acquire() is None
            with other.lock("k", timeout=0):
                pass

    def test_locks_of_a_server_are_refused(self, engine: Engine) -> None:
        with (
            Session(engine) as session,
            pytest.raises(UsageError, match="not a sqlite session with Locks of postgresql"),
        ):
            Locks("postgresql://nowhere/app").within(session)

    def test_a_session_without_a_transaction_is_refused(self, locks: Locks, path: Path) -> None:
        """When the lock is asked for or, where only a connection can tell, with the first statement."""
        with disposed(sqlite_engine(path)) as engine:
            within = locks.within(Session(engine.execution_options(isolation_level="AUTOCOMMIT")))
            with pytest.raises(UsageError, match="autocommit"):
                within.acquire("k")
        with disposed(sqlite_engine(path, isolation_level="AUTOCOMMIT")) as engine, Session(engine) as session:
            locks.within(session).acquire("k")
            with pytest.raises(UsageError, match="autocommit"):
                session.execute(text("SELECT 1"))
            session.rollback()
            session.execute(text("SELECT 1"))
            with pytest.raises(UsageError, match="autocommit"):
                locks.within(session).acquire("k")

    def test_a_session_inside_the_transaction_of_a_connection_is_refused(self, locks: Locks, engine: Engine) -> None:
        with (
            engine.connect() as connection,
            connection.begin(),
            Session(connection) as session,
            pytest.raises(UsageError, match="Connection it is bound to"),
        ):
            locks.within(session).acquire("k")

    def test_a_session_that_may_not_begin_by_itself_is_told(self, locks: Locks, engine: Engine) -> None:
        with Session(engine, autobegin=False) as session:
            with pytest.raises(UsageError, match="autobegin"):
                locks.within(session).acquire("k")
            with session.begin():
                assert locks.within(session).acquire("k").active

    def test_every_sessionmaker_is_seen(self, locks: Locks, engine: Engine) -> None:
        """Also one of a class of its own, made before and after the first use."""

        class Own(Session):
            pass

        for make in (sessionmaker(engine), sessionmaker(engine, class_=Own)):
            with make.begin() as session:
                hold = locks.within(session).acquire("k")
            assert not hold.active
