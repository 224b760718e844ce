"""A hold that is let go before the commit is reported, with both lines; one that is let go after it is not."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event, select, update
from sqlalchemy.orm import Session

from takehold import AsyncLocks, Locks, UsageError, rows
from tests.rows.faces import AsyncFace, Face, Handle
from tests.rows.models import Base, Parent
from tests.rows.places import Place

pytestmark = pytest.mark.slow
LOCKS = "memory:release before commit"


@pytest.fixture
def s(face: Face, place: Place) -> Iterator[Handle]:
    """A session on two parents, in which nothing has happened yet."""
    place.fresh(Base)
    with face.session() as handle:
        handle.add(Parent(name="a"), Parent(name="b"))
        handle.commit()
        yield handle


def holding(s: Handle, during: Callable[[Any], Any], after: Callable[[Any], Any] | None = None) -> Any:
    """Do one thing under a lock and another behind it, in one task or thread."""

    async def awaited(session: Any) -> None:
        locks = AsyncLocks(LOCKS)
        async with locks.lock("orders/1"):
            await during(session)
        if after is not None:
            await after(session)

    def called(session: Any) -> None:
        with Locks(LOCKS).lock("orders/1"):
            during(session)
        if after is not None:
            after(session)

    return s.run(awaited if isinstance(s.face, AsyncFace) else called)


def change(session: Any) -> Any:
    """One statement."""
    return session.execute(update(Parent).where(Parent.id == 1).values(number=1))


@pytest.mark.covers("D-33")
def test_a_flush_that_is_not_committed_when_the_hold_goes_is_reported_with_both_lines(s: Handle) -> None:
    def flush(session: Any) -> Any:
        session.add_all([Parent(name="c"), Parent(name="d")])
        return session.flush()

    said = (
        rf"orders/1: released at {re.escape(__file__)}:\d+, Session from {re.escape(__file__)}:\d+ "
        "has 2 uncommitted updates"
    )
    with pytest.raises(UsageError, match=said):
        holding(s, flush)
    s.rollback()
    # It was let go nevertheless.
    with Locks(LOCKS).lock("orders/1", timeout=0):
        pass


@pytest.mark.covers("D-33")
def test_a_bulk_update_counts_too(s: Handle) -> None:
    with pytest.raises(UsageError, match=rf"Session from {re.escape(__file__)}:\d+ has 1 uncommitted updates"):
        holding(s, change)


@pytest.mark.covers("D-33")
def test_a_hold_inside_of_an_except_block_is_reported_too(s: Handle) -> None:
    try:
        raise LookupError  # what somebody else's failure left us with
    except LookupError:
        with pytest.raises(UsageError, match="uncommitted"):
            holding(s, change)


@pytest.mark.covers("D-33")
@pytest.mark.parametrize("end", ["commit", "rollback", "close"])
def test_nothing_is_reported_when_the_transaction_ended_first(s: Handle, end: str) -> None:
    @s.face.function
    def work(session: Any) -> Any:
        yield change(session)
        yield getattr(session, end)()

    holding(s, work)
    holding(s, work)


@pytest.mark.covers("D-33")
def test_a_savepoint_is_not_the_end(s: Handle) -> None:
    @s.face.function
    def work(session: Any) -> Any:
        nested = session.begin_nested()
        yield nested if inspect.isawaitable(nested) else None
        yield change(session)
        yield session.get_nested_transaction().commit()

    with pytest.raises(UsageError, match="1 uncommitted updates"):
        holding(s, work)


@pytest.mark.covers("D-33")
def test_what_was_written_before_or_after_the_hold_or_by_others_is_not_its_business(s: Handle, face: Face) -> None:
    s.run(change)

    def nothing(session: Any) -> Any:
        return session.get(Parent, 2)

    holding(s, nothing)
    s.commit()
    holding(s, nothing, change)
    with face.session() as other:
        holding(other, nothing)
    s.rollback()


@pytest.mark.covers("D-33")
def test_a_session_of_another_thread_is_not_its_business(place: Place) -> None:
    place.fresh(Base)
    with place.maker() as other, Locks(LOCKS).lock("orders/1"):
        other.add(Parent(name="a"))
        writer = threading.Thread(target=other.flush)
        writer.start()
        writer.join()
        assert other.scalar(select(Parent.name)) == "a"


@pytest.mark.covers("D-33")
def test_who_lets_go_as_soon_as_it_is_committed_is_in_time(place: Place) -> None:
    place.fresh(Base)
    hold = Locks(LOCKS).lock("orders/1").acquire()
    with place.maker() as session:
        event.listen(session, "after_commit", lambda _: hold.release())
        session.add(Parent(name="a"))
        session.commit()
    assert hold.released


@pytest.mark.covers("D-33")
def test_a_block_that_fails_raises_its_own_error(s: Handle) -> None:
    @s.face.function
    def work(session: Any) -> Any:
        yield change(session)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        holding(s, work)


@pytest.mark.covers("D-33")
def test_a_release_by_hand_is_reported_once(s: Handle) -> None:
    @s.face.function
    def work(session: Any) -> Any:
        locks: Any = AsyncLocks(LOCKS) if isinstance(s.face, AsyncFace) else Locks(LOCKS)
        acquired = locks.lock("orders/1").acquire()
        hold = (yield acquired) if inspect.isawaitable(acquired) else acquired
        yield change(session)
        reports = 0
        for _ in range(2):
            try:
                given = hold.release()
                yield given if inspect.isawaitable(given) else None
            except UsageError:
                reports += 1
        return reports

    assert s.run(work) == 1


@pytest.mark.covers("D-33")
def test_the_dependency_that_commits_after_the_handler_is_caught(place: Place) -> None:
    """As FastAPI runs it: the session of the dependency lives around the handler."""
    place.fresh(Base)

    @contextmanager
    def get_session() -> Iterator[Session]:
        with place.maker() as session:
            session.begin()
            yield session
            session.commit()

    def handler(session: Session) -> None:
        with Locks(LOCKS).lock("orders/1"):
            session.add(Parent(name="a"))
            session.flush()

    def request() -> None:
        with get_session() as session:
            handler(session)

    began = inspect.getsourcelines(get_session)[1] + 3
    with pytest.raises(UsageError, match=rf"Session from {re.escape(__file__)}:{began} has 1 uncommitted"):
        request()


@pytest.mark.covers("D-33")
def test_outside_of_pytest_it_is_a_warning(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.fresh(Base)
    with place.maker() as session:
        session.add(Parent(name="a"))
        monkeypatch.delenv("PYTEST_CURRENT_TEST")
        said = "released at .*1 uncommitted updates"
        with pytest.warns(rows.UnprotectedWrite, match=said) as told, Locks(LOCKS).lock("orders/1"):
            session.flush()
        assert told[0].filename == __file__
        session.rollback()


def test_keys_within_the_transaction_are_never_let_go_too_early(place: Place) -> None:
    place.fresh(Base)
    if place.name != "sqlite":
        pytest.skip("the server lets go of them there")
    with Locks(place.url) as locks, place.maker() as session:
        locks.within(session).acquire("orders/1")
        session.add(Parent(name="a"))
        session.flush()
        session.commit()


def test_without_rows_nobody_is_told() -> None:
    code = (
        "import takehold, takehold.locks as l; assert l.on_release is None; import takehold.rows; assert l.on_release"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
