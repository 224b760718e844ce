"""Locksets: what the document shows, unchanged, and what it leaves to luck."""

from __future__ import annotations

import asyncio
import threading
import uuid
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import String, create_engine, event, func, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from takehold import BackendRefused, LockTimeout, NotHeld, UsageError, WouldDeadlock
from takehold.rows import get_locker, string_to_lock_id
from takehold.rows.locker import Locker
from takehold.testing.faces.vocabulary import eventually
from tests.rows.places import Place
from tests.rows.processes import run_processes

pytestmark = pytest.mark.slow
PATIENCE = 20.0


class Base(DeclarativeBase):
    """Of fleets."""


class Fleet(Base):
    """Has a name that nobody else has."""

    __tablename__ = "fleet"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(40))


@pytest.fixture(params=["a dialect's name", "a file"])
def locker(request: pytest.FixtureRequest, tmp_path: Path) -> Locker:
    """Both kinds that exclude: by memory, and by the lock directory of a file."""
    return get_locker("sqlite" if request.param == "a dialect's name" else f"sqlite:///{tmp_path}/app.db")


@pytest.fixture
def namespace() -> str:
    """One that no other test uses."""
    return f"table {uuid.uuid4()}"


# -- sets ----------------------------------------------------------------------------------------------------


@pytest.mark.covers("D-1", "D-31")
def test_a_namespace_has_one_pair_whoever_asks_for_it(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/app.db")
    with Session(engine) as session:
        pair = get_locker(session).get_lockset("a")
        awaited = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/app.db")
        assert get_locker(AsyncSession(awaited)).get_lockset("a")[1] is pair[1]
        assert get_locker(awaited).get_lockset("a")[1] is pair[1]
        assert get_locker(engine).get_lockset("a")[0] is pair[0]
        assert get_locker(engine.url).get_lockset("b")[1] is not pair[1]
        assert get_locker("sqlite").get_lockset("a")[1] is not pair[1]
        assert get_locker("sqlite").get_lockset("a")[1] is get_locker("sqlite").get_lockset("a")[1]


@pytest.mark.covers("D-31")
def test_a_lockset_is_a_set_of_text_numbers_and_uuids(locker: Locker, namespace: str) -> None:
    guard, keys = locker.get_lockset(namespace)
    some: set[str | int | uuid.UUID] = {7, "7", "a/b %", uuid.uuid4(), -1}
    with guard:
        assert not any(one in keys for one in some)
        for one in some:
            keys.add(one)
            keys.add(one)
    assert set(keys) == some
    assert len(keys) == len(some)
    assert 8 not in keys
    assert 7.0 not in keys
    other = locker.get_lockset(f"{namespace} other")[1]
    assert 7 not in other
    assert list(other) == []
    for one in some:
        keys.remove(one)
    keys.discard(7)
    assert list(keys) == []


@pytest.mark.covers("D-31")
def test_what_is_no_key_or_no_database_is_refused(locker: Locker, namespace: str) -> None:
    _, keys = locker.get_lockset(namespace)
    for wrong in (1.5, None, True, b"x"):
        with pytest.raises(UsageError, match="text, int or UUID"):
            keys.add(wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="empty"):
        keys.add("")
    with pytest.raises(UsageError, match="oracle"):
        get_locker("oracle")
    with pytest.raises(UsageError, match="memory:"):
        get_locker("sqlite", locks="file:/tmp/x")
    with pytest.raises(UsageError, match="Session"):
        get_locker(42)  # type: ignore[arg-type]


@pytest.mark.covers("D-7")
def test_a_key_of_another_task_is_neither_removed_nor_added_again(locker: Locker, namespace: str) -> None:
    _, keys = locker.get_lockset(namespace)
    strays = 0

    async def stranger() -> None:
        nonlocal strays
        for attempt in (keys.remove, keys.discard):
            with pytest.raises(NotHeld, match=r"not ours to remove.*test_locker\.py"):
                attempt(1)
            strays += 1
        with pytest.raises(LockTimeout, match="somebody else's"):
            keys.add(1)

    async def main() -> None:
        keys.add(1)
        await asyncio.create_task(stranger())
        assert 1 in keys
        assert keys.mine(1)
        keys.remove(1)
        assert 1 not in keys

    asyncio.run(main())
    assert strays == 2
    with pytest.raises(NotHeld, match="nobody has it"):
        keys.remove(1)


@pytest.mark.covers("D-7")
def test_a_key_of_another_thread_or_of_a_block_is_not_removed(locker: Locker, namespace: str) -> None:
    _, keys = locker.get_lockset(namespace)
    thread = threading.Thread(target=keys.add, args=(1,))
    thread.start()
    thread.join()
    with pytest.raises(NotHeld):
        keys.remove(1)
    assert 1 in keys
    with locker.lock_ctx(namespace, [2]):
        assert keys.mine(2)
        with pytest.raises(NotHeld, match="lock_ctx"):
            keys.remove(2)
        assert 2 in keys
    assert 2 not in keys
    # The thread has ended; let its key go in its name, so that nothing is left behind.
    _, hold, _ = locker.added.popitem()[1]  # type: ignore[attr-defined]
    hold.release()


# -- blocks --------------------------------------------------------------------------------------------------


@pytest.mark.covers("D-2", "D-6")
def test_the_same_key_serializes_and_different_keys_do_not(locker: Locker, namespace: str) -> None:
    inside: dict[int, int] = {1: 0, 2: 0}
    together = 0

    async def work(first: int, second: int) -> None:
        nonlocal together
        async with locker.lock_ctx(namespace, [first, second, first]):
            for key in {first, second}:
                inside[key] += 1
                assert inside[key] == 1
            await asyncio.sleep(0)
            together = max(together, sum(inside.values()))
            for key in {first, second}:
                inside[key] -= 1

    async def main() -> None:
        # Unsorted and twice in one request; a hundred that cross would deadlock in any other order.
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
            for _ in range(25):
                for keys in ((1, 2), (2, 1), (1, 1), (2, 2)):
                    group.create_task(work(*keys))

    asyncio.run(main())
    assert together == 2
    assert list(locker.get_lockset(namespace)[1]) == []


@pytest.mark.covers("D-2")
def test_threads_and_tasks_exclude_each_other(locker: Locker, namespace: str) -> None:
    order: list[str] = []
    entered, leave = threading.Event(), threading.Event()

    def thread() -> None:
        with locker.lock_ctx(namespace, [1]):
            order.append("thread in")
            entered.set()
            leave.wait(PATIENCE)
            order.append("thread out")

    async def task() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(0.05, leave.set)
        async with locker.lock_ctx(namespace, [1]):
            order.append("task in")

    started = threading.Thread(target=thread)
    started.start()
    assert entered.wait(PATIENCE)
    asyncio.run(task())
    started.join()
    assert order == ["thread in", "thread out", "task in"]


@pytest.mark.covers("D-4")
@pytest.mark.parametrize("end", ["success", "exception", "cancellation"])
def test_keys_go_however_the_block_ends(locker: Locker, namespace: str, end: str) -> None:
    _, keys = locker.get_lockset(namespace)

    async def holder(inside: asyncio.Event) -> None:
        async with locker.lock_ctx(namespace, [1, 2]):
            assert set(keys) == {1, 2}
            inside.set()
            if end == "cancellation":
                await asyncio.sleep(PATIENCE)
            if end == "exception":
                raise KeyError(end)

    async def main() -> None:
        inside = asyncio.Event()
        task = asyncio.create_task(holder(inside))
        await inside.wait()
        task.cancel() if end == "cancellation" else None
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        assert (outcome is None) == (end == "success")
        assert list(keys) == []

    asyncio.run(main())


@pytest.mark.covers("D-5")
def test_a_waiter_that_is_cancelled_leaves_the_holders_key(locker: Locker, namespace: str) -> None:
    _, keys = locker.get_lockset(namespace)

    async def waiter() -> None:
        async with locker.lock_ctx(namespace, [2, 1]):
            raise AssertionError("in, though it is held")

    async def main() -> None:
        async with locker.lock_ctx(namespace, [1]):
            waiting = asyncio.create_task(waiter())
            for _ in range(10):
                await asyncio.sleep(0.001)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            assert waiting.cancelled()
            assert set(keys) == {1}
        assert list(keys) == []

    asyncio.run(main())


@pytest.mark.covers("D-31")
def test_a_block_waits_no_longer_than_asked_and_never_for_itself(locker: Locker, namespace: str) -> None:
    _, keys = locker.get_lockset(namespace)

    async def main() -> None:
        keys.add(1)
        with pytest.raises(WouldDeadlock):
            async with locker.lock_ctx(namespace, [2, 1]):
                pass
        async with locker.lock_ctx(namespace, []):
            pass

        async def other() -> None:
            async with locker.lock_ctx(namespace, [1], timeout=0.01):
                pass

        with pytest.raises(LockTimeout):
            await asyncio.create_task(other())
        keys.remove(1)

    asyncio.run(main())
    with locker.lock_ctx(namespace, []), ExitStack() as stack:
        stack.enter_context(locker.lock_ctx(namespace, [1]))
        assert 1 in keys
    assert 1 not in keys


@pytest.mark.filterwarnings("ignore::takehold.LockOrderWarning")
def test_tasks_that_wait_for_each_others_keys_are_told(locker: Locker, namespace: str) -> None:
    _, keys = locker.get_lockset(namespace)

    async def cross(mine: int, theirs: int, both: asyncio.Barrier) -> str:
        keys.add(mine)
        await both.wait()
        try:
            async with locker.lock_ctx(namespace, [theirs]):
                return "in"
        except WouldDeadlock:
            return "told"
        finally:
            keys.remove(mine)

    async def main() -> list[str]:
        both = asyncio.Barrier(2)
        async with asyncio.timeout(PATIENCE):
            return list(await asyncio.gather(cross(1, 2, both), cross(2, 1, both)))

    assert sorted(asyncio.run(main())) == ["in", "told"]


# -- where row locks do the work -----------------------------------------------------------------------------


@pytest.mark.covers("D-9")
@pytest.mark.parametrize("dialect", ["postgresql", "mysql", "mariadb"])
def test_with_row_locks_a_lockset_excludes_nothing_and_says_so(dialect: str) -> None:
    guard, keys = get_locker(dialect).get_lockset("a")
    assert get_locker(dialect).get_lockset("a") == (guard, keys)

    async def main() -> None:
        async with guard, guard, get_locker(dialect).lock_ctx("a", [1]), get_locker(dialect).lock_ctx("a", [1]):
            keys.add(1)
            assert 1 not in keys
            assert list(keys) == []

    asyncio.run(main())
    with guard, guard, get_locker(dialect).lock_ctx("a", [1]):
        keys.remove(1)
        keys.discard(1)
    for shown in (repr(keys), repr(guard), repr(get_locker(dialect))):
        assert "excludes nothing" in shown


# -- processes -----------------------------------------------------------------------------------------------


def claim_in_turn(place: Place, number: int, count: int, processes: int) -> list[int]:
    """The claim loop of one process: what it got of the ids below count."""
    guard, keys = get_locker(place.engine).get_lockset("jobs")
    mine: list[int] = []
    while len(mine) < count:
        with guard:
            one = next((id_ for id_ in range(100) if id_ not in keys), None)
            assert one is not None
            keys.add(one)
            mine.append(one)
    # Whoever ends gives its keys back: stay until all have theirs.
    folder = Path(str(place.engine.url.database)).parent
    (folder / f"done-{number}").touch()
    eventually(lambda: len(list(folder.glob("done-*"))) == processes)
    return mine


@pytest.mark.covers("D-3", "D-8")
def test_processes_on_one_file_share_the_locksets(tmp_path: Path) -> None:
    place = Place.sqlite(tmp_path / "app.db")
    _, keys = get_locker(place.url).get_lockset("jobs")
    keys.add(3)
    claimed = [one for mine in run_processes(3, f"{__name__}:claim_in_turn", place, 8, 3) for one in mine]
    assert sorted(claimed) == [one for one in range(25) if one != 3]
    assert (tmp_path / "app.db.locks").is_dir()
    # They have ended, and their keys with them.
    assert set(keys) == {3}
    keys.remove(3)


def open_it(place: Place, number: int, locks: str | None) -> str:
    """What opening a locker says in another process."""
    try:
        return repr(get_locker(place.engine, locks=locks))
    except BackendRefused as error:
        return str(error)


@pytest.mark.covers("D-8")
def test_locksets_in_memory_are_for_the_only_process_on_a_file(tmp_path: Path) -> None:
    place = Place.sqlite(tmp_path / "alone.db")
    with Session(create_engine(place.url)) as session:
        locker = get_locker(session, locks="memory:")
        assert "this process only" in repr(locker)
        assert get_locker(session, locks="memory:") is locker
    for locks in (None, "memory:"):
        (said,) = run_processes(1, f"{__name__}:open_it", place, locks)
        assert "is in use by" in said, locks
        assert "Leave out locks=" in said
    shared = Place.sqlite(tmp_path / "shared.db")
    get_locker(shared.url)
    assert "app.db" not in run_processes(1, f"{__name__}:open_it", shared, None)[0]
    assert "only process" in run_processes(1, f"{__name__}:open_it", shared, "memory:")[0]


# -- the document's own blocks -------------------------------------------------------------------------------


class Database:
    """Stands for dstack's `get_db()`."""

    def __init__(self, place: Place) -> None:
        self.dialect_name = place.engine.dialect.name


@pytest.mark.covers("D-20")
def test_a_lock_id_is_the_documented_number() -> None:
    assert string_to_lock_id("migrations") == 8499576275731843811
    assert string_to_lock_id("fleet_names_main") == 5777583877725698351
    assert string_to_lock_id("fleet_names_main") != string_to_lock_id("fleet_names_other")


@pytest.mark.covers("D-3", "D-31")
def test_the_lockset_block_of_the_document_runs_as_it_is() -> None:
    get_lockset = get_locker("sqlite").get_lockset
    at_work, most = 0, 0

    async def claim() -> int | None:
        lock, lockset = get_lockset("my_table")
        async with lock:
            # select resource that is not in lockset
            resource = next((one for one in (1, 2, 3) if one not in lockset), None)
            if resource is None:
                return None
            lockset.add(resource)
        try:
            await process_resource(resource)
        finally:
            lockset.remove(resource)
        return resource

    async def process_resource(resource: int) -> None:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        while most < 3:
            await asyncio.sleep(0)
        at_work -= 1

    async def main() -> list[int | None]:
        async with asyncio.timeout(PATIENCE):
            return list(await asyncio.gather(claim(), claim(), claim()))

    assert sorted(asyncio.run(main()), key=str) == [1, 2, 3]
    assert list(get_lockset("my_table")[1]) == []


@pytest.mark.covers("D-19", "D-22", "D-31")
def test_the_unique_name_block_of_the_document_runs_as_it_is(place: Place) -> None:
    if place.name == "mariadb":
        pytest.skip("the document knows SQLite and Postgres; rows.unique_name knows MariaDB too")
    place.fresh(Base)

    class Project:
        name = f"main {uuid.uuid4()}"

    project = Project()

    def get_db() -> Database:
        return Database(place)

    async def create(session: AsyncSession) -> None:
        lock_namespace = f"fleet_names_{project.name}"
        if get_db().dialect_name == "sqlite":
            # Start new transaction to see committed changes after lock
            await session.commit()
        elif get_db().dialect_name == "postgresql":
            await session.execute(select(func.pg_advisory_xact_lock(string_to_lock_id(lock_namespace))))

        lock, _ = get_locker(get_db().dialect_name).get_lockset(lock_namespace)
        async with lock:
            # ... select taken names, use a unique name
            taken = set(await session.scalars(select(Fleet.name)))
            session.add(Fleet(name=next(name for n in range(99) if (name := f"fleet-{n}") not in taken)))
            await session.commit()

    async def main() -> list[str]:
        engine = place.new_async_engine()
        maker = async_sessionmaker(engine)

        async def creator() -> None:
            async with maker() as session:
                await create(session)

        async with asyncio.timeout(60):
            await asyncio.gather(*(creator() for _ in range(50)))
        async with maker() as session:
            names = list(await session.scalars(select(Fleet.name)))
        await engine.dispose()
        return names

    names = asyncio.run(main())
    assert len(names) == len(set(names)) == 50


@pytest.mark.covers("D-16", "D-17", "D-31")
@pytest.mark.parametrize("something", [True, False])
def test_the_exit_stack_block_of_the_document_lets_go_after_the_commit(place: Place, something: bool) -> None:
    place.fresh(Base)
    namespace, order = f"fleets {uuid.uuid4()}", []

    def get_db() -> Database:
        return Database(place)

    async def main() -> None:
        engine = place.new_async_engine()
        _, keys = get_locker(get_db().dialect_name).get_lockset(namespace)
        async with async_sessionmaker(engine)() as session:

            @event.listens_for(session.sync_session, "after_commit")
            def _(_: Any) -> None:
                order.append(("committed", 1 in keys))

            async with AsyncExitStack() as exit_stack:
                if something:
                    # The lock will be released only on stack exit, so it's ok.
                    await exit_stack.enter_async_context(get_locker(get_db().dialect_name).lock_ctx(namespace, [1]))
                    # ...
                session.add(Fleet(name="a"))
                await session.flush()
                # ...
                await session.commit()
            order.append(("left", 1 in keys))
        await engine.dispose()

    asyncio.run(main())
    assert order == [("committed", something and place.name == "sqlite"), ("left", False)]


@pytest.mark.covers("D-16")
def test_a_lock_let_go_before_the_commit_is_refused(locker: Locker, namespace: str, tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/rows.db")
    Base.metadata.create_all(engine)
    said = r"released at .*test_locker.py:\d+, Session from .*test_locker.py:\d+ has 1 uncommitted updates"
    with Session(engine) as session:
        session.add(Fleet(name="a"))
        with pytest.raises(UsageError, match=said), locker.lock_ctx(namespace, [1]):
            session.flush()
        session.commit()
    engine.dispose()
    eventually(lambda: 1 not in locker.get_lockset(namespace)[1])
