"""`locks.within(session)` on asyncio: asyncpg and psycopg on Postgres, aiosqlite."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session

import takehold
from takehold import AsyncLocks, HoldLost, Locks, LockTimeout, UsageError, WouldDeadlock, advisory, shared
from takehold.locks._within import Within
from takehold.locks._within_async import AsyncWithin
from tests import parity
from tests.lanes import scaled
from tests.locks.places import begin_anew, disposed, read, sqlalchemy_url, waiters, write
from tests.servers.postgres import Postgres

pytestmark = pytest.mark.slow


@pytest.fixture(params=["postgresql+asyncpg", "postgresql+psycopg", "sqlite+aiosqlite"])
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Of the locks, and of the sessions."""
    dialect, _, driver = request.param.partition("+")
    if dialect == "sqlite":
        path = tmp_path / "app.db"
        with disposed(create_engine(f"sqlite:///{path}")) as engine:
            begin_anew(engine)
        yield f"sqlite:///{path}", f"sqlite+aiosqlite:///{path}"
        return
    url = request.getfixturevalue("postgres_url")
    with disposed(create_engine(sqlalchemy_url(url, "psycopg"))) as engine:
        begin_anew(engine)
    yield url, sqlalchemy_url(url, driver)


@asynccontextmanager
async def opened(urls: tuple[str, str], **options: Any) -> AsyncIterator[tuple[AsyncLocks, AsyncEngine]]:
    engine = create_async_engine(urls[1], **options)
    try:
        async with AsyncLocks(urls[0], check_order="off") as locks:
            yield locks, engine
    finally:
        await engine.dispose()


def on(urls: tuple[str, str], work: Callable[[AsyncLocks, AsyncEngine], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(30), opened(urls, **options) as (locks, engine):
            await work(locks, engine)

    asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


def test_both_faces_have_the_same_words() -> None:
    assert not parity.differences(Within, AsyncWithin)


@pytest.mark.parametrize("end", ["commit", "rollback", "close"])
def test_the_end_of_the_transaction_is_the_end_of_the_lock(urls: tuple[str, str], end: str) -> None:
    async def work(locks: AsyncLocks, engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session, AsyncSession(engine) as other:
            hold = await locks.within(session).acquire("a", shared("b"))
            assert hold.active
            assert await locks.within(other).try_acquire("a") is None
            assert await locks.lock("b").try_acquire() is None
            await session.run_sync(write, 1)
            await getattr(session, end)()
            assert "ended" in repr(hold)
            assert (await locks.within(other).acquire("a", "b", timeout=0)).active

    on(urls, work)


@pytest.mark.covers("L-1", "L-33")
def test_tasks_lose_no_update(urls: tuple[str, str]) -> None:
    times = scaled(1_000)
    inside = 0

    async def work(locks: AsyncLocks, engine: AsyncEngine) -> None:
        async def add() -> None:
            nonlocal inside
            for _ in range(times):
                async with AsyncSession(engine) as session:
                    await locks.within(session).acquire("counter", timeout=60)
                    inside += 1
                    assert inside == 1
                    await session.run_sync(write, await session.run_sync(read) + 1)
                    inside -= 1
                    await session.commit()

        await asyncio.gather(*(add() for _ in range(4)))
        async with AsyncSession(engine) as session:
            assert await session.run_sync(read) == 4 * times

    on(urls, work)


@pytest.mark.parametrize("keys", [["k"], ["a", "k", "z"]], ids=["one", "several"])
@pytest.mark.covers("L-6", "L-7")
def test_after_a_timeout_the_transaction_goes_on(urls: tuple[str, str], keys: list[str]) -> None:
    async def work(locks: AsyncLocks, engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as holder, AsyncSession(engine) as session:
            await locks.within(holder).acquire("k")
            if engine.dialect.name != "sqlite":
                await session.run_sync(write, 5)
            for timeout in (0.05, 0):
                with pytest.raises(LockTimeout, match="held by") as caught:
                    await asyncio.create_task(locks.within(session).acquire(*keys, timeout=timeout))
                assert caught.value.waited >= timeout
                assert __file__ in str(caught.value)
            await session.run_sync(write, 6)
            await session.commit()
            assert await session.run_sync(read) == 6
            for key in ("a", "z"):
                async with locks.lock(key, timeout=0):
                    pass

    on(urls, work)


@pytest.mark.covers("L-4")
def test_a_task_is_not_let_in_twice(urls: tuple[str, str]) -> None:
    """Whichever came first: the hold or the transaction."""

    async def work(locks: AsyncLocks, engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session:
            async with locks.lock("k"):
                with pytest.raises(WouldDeadlock, match=r"taken at .* and asked for again at"):
                    await locks.within(session).acquire("k")
                assert await locks.within(session).try_acquire("k") is None
            await locks.within(session).acquire("k")
            with pytest.raises(WouldDeadlock, match=r"taken at .* and asked for again at"):
                await locks.lock("k").acquire()
            with pytest.raises(WouldDeadlock):
                async with locks.lock("a", "k"):
                    pass
            assert await locks.lock("k").try_acquire() is None
            with pytest.raises(LockTimeout):
                await locks.lock("k", timeout=0).acquire()
            with pytest.raises(WouldDeadlock):
                await locks.lock(shared("k")).acquire()
            await (await locks.lock("other").acquire()).release()
            waiting = asyncio.create_task(locks.lock("k").acquire())  # another task: it simply waits
            await asyncio.sleep(0.05)
            await session.commit()
            await (await waiting).release()
            async with locks.lock("k"):
                pass
        assert not takehold.locks._base.in_transactions

    on(urls, work)


@pytest.mark.covers("L-9")
@pytest.mark.parametrize("keys", [["k"], ["a", "k"]], ids=["one", "several"])
def test_a_cancelled_wait_leaves_nothing(
    urls: tuple[str, str], keys: list[str], request: pytest.FixtureRequest
) -> None:
    """On Postgres SQLAlchemy gives up the connection, and with it goes the transaction."""
    server: Any = request.getfixturevalue("postgres_server") if urls[0].startswith("postgresql") else None

    async def work(locks: AsyncLocks, engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as holder:
            await locks.within(holder).acquire("k")
            session = AsyncSession(engine)
            waiting = asyncio.create_task(locks.within(session).acquire(*keys, timeout=60))
            if server is not None:
                await until(lambda: waiters(server) == 1)
            else:
                await until(lambda: len(locks._here()[1]._register.waits) == 1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await session.close()
            if server is not None:
                await until(lambda: len(server.advisory_locks()) == 1)
            async with locks.lock("a", timeout=0):
                pass
        async with AsyncSession(engine) as session:
            assert (await locks.within(session).acquire("k", timeout=5)).active

    on(urls, work)


def test_a_lock_inside_a_savepoint_is_refused(urls: tuple[str, str]) -> None:
    async def work(locks: AsyncLocks, engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session:
            hold = await locks.within(session).acquire("k")
            async with session.begin_nested() as nested:
                assert (await locks.within(session).acquire("k")).active
                with pytest.raises(UsageError, match="begin_nested"):
                    await locks.within(session).acquire("other")
                await nested.rollback()
            assert hold.active
            assert await locks.lock("k").try_acquire() is None

    on(urls, work)


def test_whoever_comes_next_reads_what_was_committed(urls: tuple[str, str]) -> None:
    async def work(locks: AsyncLocks, engine: AsyncEngine) -> None:
        async def next_one() -> int:
            async with AsyncSession(engine) as session:
                await locks.within(session).acquire("k", timeout=60)
                return await session.run_sync(read)

        async with AsyncSession(engine) as session:
            await locks.within(session).acquire("k")
            await session.run_sync(write, 8)
            seen = asyncio.create_task(next_one())
            await asyncio.sleep(0.1)
            assert not seen.done()
            await session.commit()
            assert await seen == 8

    on(urls, work)


@pytest.mark.parametrize("level", ["REPEATABLE READ", "AUTOCOMMIT"])
def test_a_transaction_that_cannot_keep_the_promise_is_refused(urls: tuple[str, str], level: str) -> None:
    if urls[0].startswith("sqlite") and level != "AUTOCOMMIT":
        pytest.skip("SQLite has no such level")

    async def work(locks: AsyncLocks, engine: AsyncEngine) -> None:
        async with AsyncSession(engine.execution_options(isolation_level=level)) as session:
            with pytest.raises(UsageError, match=r"snapshot|autocommit"):
                await locks.within(session).acquire("k")
            async with locks.lock("k", timeout=0):
                pass

    on(urls, work)


@pytest.mark.covers("D-15")
def test_an_open_transaction_on_sqlite_is_refused(urls: tuple[str, str]) -> None:
    async def work(locks: AsyncLocks, engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session:
            await session.run_sync(write, 1)
            if engine.dialect.name == "postgresql":
                assert (await locks.within(session).acquire("k")).active
            else:
                with pytest.raises(UsageError, match="Commit or roll back first"):
                    await locks.within(session).acquire("k")
            await session.rollback()
            assert (await locks.within(session).acquire("k")).active

    on(urls, work)


def test_a_commit_is_refused_when_the_hold_was_lost(tmp_path: Path) -> None:
    with disposed(create_engine(f"sqlite:///{tmp_path}/app.db")) as made:
        begin_anew(made)

    async def work(locks: AsyncLocks, engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session:
            await locks.within(session).acquire("k")
            await session.run_sync(write, 9)
            [record] = await locks.who()
            assert await locks.evict(record.id)
            with pytest.raises(HoldLost):
                await session.commit()
            await session.rollback()
            assert await session.run_sync(read) == 0

    on((f"sqlite:///{tmp_path}/app.db", f"sqlite+aiosqlite:///{tmp_path}/app.db"), work)


def test_another_database_is_refused(postgres_url: str, postgres_server: Postgres) -> None:
    postgres_server.database("elsewhere_asyncpg")

    async def work(locks: AsyncLocks, engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session:
            with pytest.raises(UsageError, match="another database"):
                await locks.within(session).acquire("k")

    on((postgres_url, sqlalchemy_url(postgres_server.url("elsewhere_asyncpg"), "asyncpg")), work)


def test_each_face_wants_its_own_session(urls: tuple[str, str]) -> None:
    async def work(locks: AsyncLocks, engine: AsyncEngine) -> None:
        scoped = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
        assert (await locks.within(scoped).acquire(advisory(5))).active
        await scoped.remove()
        with Locks(urls[0]) as blocking, Session(engine.sync_engine) as session:
            with pytest.raises(UsageError, match=r"use Locks\("):
                locks.within(session)  # type: ignore[arg-type]
            async with AsyncSession(engine) as other:
                with pytest.raises(UsageError, match=r"use AsyncLocks\("):
                    blocking.within(other)  # type: ignore[arg-type]
            with pytest.raises(UsageError, match="takes a SQLAlchemy AsyncSession"):
                locks.within(None)  # type: ignore[arg-type]

    on(urls, work)
