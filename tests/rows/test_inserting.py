"""One object, once: `insert_once` and `get_or_insert`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import CheckConstraint, Engine, ForeignKey, String, UniqueConstraint, event, func, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship, sessionmaker

from takehold import Conflict, UsageError, rows
from takehold.rows.dialects import Trouble, trouble_of
from takehold.testing.faces.vocabulary import eventually
from tests.lanes import PROVE
from tests.rows.faces import Face, Handle, Steps
from tests.rows.places import Place
from tests.rows.processes import run_processes

pytestmark = pytest.mark.slow

PROCESSES, NAMES = 20 if PROVE else 6, 100


class Base(DeclarativeBase):
    """Of the tables here."""


class Shop(Base):
    __tablename__ = "shop"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(40), unique=True)
    mail: Mapped[str | None] = mapped_column(String(40), unique=True)
    size: Mapped[int] = mapped_column(CheckConstraint("size >= 0"), default=0)


class Shelf(Base):
    __tablename__ = "shelf"
    __table_args__ = (UniqueConstraint("shop_id", "number"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    shop_id: Mapped[int] = mapped_column(ForeignKey("shop.id"))
    number: Mapped[int]
    label: Mapped[str] = mapped_column(String(40), default="")
    shop: Mapped[Shop] = relationship()


@contextlib.contextmanager
def insertions(engine: Engine) -> Iterator[list[str]]:
    """The INSERT statements that the engine sends meanwhile."""
    seen: list[str] = []

    def note(_: Any, __: Any, statement: str, *rest: Any) -> None:
        if statement.startswith("INSERT"):
            seen.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    yield seen
    event.remove(engine, "before_cursor_execute", note)


def names(place: Place) -> list[str]:
    """What another session sees: only what is committed."""
    with place.maker() as session:
        return sorted(session.scalars(select(Shop.name)))


def with_own_begin(engine: Engine) -> Engine:
    """SQLite as SQLAlchemy's documentation makes it, with a BEGIN of its own: then a SELECT begins a snapshot."""

    @event.listens_for(engine, "connect")
    def _(connection: Any, _: Any) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def _(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine


# -- once ------------------------------------------------------------------------------------------------------


@pytest.mark.covers("N-10", "N-22")
def test_a_duplicate_is_skipped_and_the_transaction_keeps_its_other_work(
    face: Face, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.fresh(Base)
    caplog.set_level(logging.INFO, "takehold.rows")
    with face.session() as s:
        assert s.run(rows.insert_once, Shop(name="a")) is True
        s.commit()
        s.add(Shop(name="before"))
        pending = Shop(name="pending")
        s.add(pending)
        assert s.run(rows.insert_once, Shop(name="a", size=4)) is False
        assert pending in s.session
        s.add(Shop(name="after"))
        assert s.run(rows.insert_once, Shop(name="b")) is True
        s.commit()
    assert caplog.messages == ["Skipping duplicate shop: name='a'"]
    assert names(place) == ["a", "after", "b", "before", "pending"]


@pytest.mark.covers("N-10")
def test_what_was_inserted_once_goes_with_the_transaction(face: Face, place: Place) -> None:
    """As `sqlite3` begins, the release of a first savepoint would commit."""
    place.fresh(Base)
    with face.session() as s:
        assert s.run(rows.insert_once, Shop(name="a"))
        assert s.run(rows.get_or_insert, Shop, name="b").created
        if place.name != "sqlite":  # whose writer would have to wait
            assert names(place) == []
        s.rollback()
        assert s.run(rows.get_or_insert, Shop, name="c").created
        s.rollback()
    assert names(place) == []


@pytest.mark.covers("N-10")
@pytest.mark.parametrize("wrong", [{"number": None}, {"shop_id": 99}], ids=["null", "parent"])
def test_other_violations_are_raised_and_the_transaction_goes_on(
    face: Face, place: Place, wrong: dict[str, Any]
) -> None:
    place.fresh(Base)
    with face.session() as s:
        s.add(shop := Shop(name="a"))
        s.flush()
        failures: list[Callable[[], object]] = [
            lambda: s.run(rows.insert_once, Shelf(**{"shop_id": shop.id, "number": 1} | wrong)),
            lambda: s.run(rows.insert_once, Shop(name="b", size=-1)),
            lambda: s.run(rows.get_or_insert, Shop, name="b", defaults={"size": -1}),
        ]
        for fail in failures:
            with pytest.raises(DBAPIError) as caught:
                fail()
            assert trouble_of(caught.value) is Trouble.OTHER
        s.commit()
    assert names(place) == ["a"]


@pytest.mark.covers("N-10")
def test_an_object_that_was_added_before_is_taken_and_one_that_is_stored_refused(face: Face, place: Place) -> None:
    place.fresh(Base)
    with face.session() as s:
        s.run(rows.insert_once, first := Shop(name="a"))
        s.add(again := Shop(name="a"))
        assert s.run(rows.insert_once, again) is False
        with pytest.raises(UsageError, match="in the database already"):
            s.run(rows.insert_once, first)
        with pytest.raises(UsageError, match=r"brings .* along"):
            s.run(rows.insert_once, Shelf(shop=Shop(name="z"), number=1))
        s.commit()
    assert names(place) == ["a"]


@pytest.mark.covers("N-10")
def test_an_error_of_what_was_pending_is_not_taken_for_a_duplicate(face: Face, place: Place) -> None:
    place.fresh(Base)
    with face.session() as s:
        s.run(rows.insert_once, Shop(name="a"))
        s.commit()
        s.add(Shop(name="a"))
        with pytest.raises(IntegrityError):
            s.run(rows.insert_once, Shop(name="b"))


# -- the one that is there, or a new one -----------------------------------------------------------------------


@pytest.mark.covers("N-11")
def test_what_is_there_is_returned_without_an_insert_and_what_is_not_is_inserted(face: Face, place: Place) -> None:
    place.fresh(Base)
    with face.session() as s, insertions(face.engine) as seen:
        shop, created = s.run(rows.get_or_insert, Shop, name="a", defaults={"size": 3})
        assert created
        assert (shop.id, shop.size) == (1, 3)
        assert len(seen) == 1
        s.commit()
        got = s.run(rows.get_or_insert, Shop, name="a", defaults={"size": 9})
        assert not got.created
        s.refresh(got.obj)
        assert (got.obj.id, got.obj.size) == (1, 3)
        assert len(seen) == 1
        shelf = s.run(rows.get_or_insert, Shelf, shop=shop, number=4)
        assert s.run(rows.get_or_insert, Shelf, number=4, shop_id=1) == (shelf.obj, False)
        s.commit()


@pytest.mark.covers("N-11")
def test_a_key_that_is_not_unique_is_refused(face: Face, place: Place) -> None:
    place.fresh(Base)
    with face.session() as s:
        with pytest.raises(UsageError, match=r"no unique key on \(number\): two callers could both insert"):
            s.run(rows.get_or_insert, Shelf, number=4)
        with pytest.raises(UsageError, match="equals no other None"):
            s.run(rows.get_or_insert, Shop, mail=None)
        with pytest.raises(UsageError, match="no attribute 'nam'"):
            s.run(rows.get_or_insert, Shop, nam="a")


@pytest.mark.covers("N-11")
def test_a_duplicate_of_another_key_is_an_error(face: Face, place: Place) -> None:
    place.fresh(Base)
    with face.session() as s:
        s.run(rows.get_or_insert, Shop, name="a", defaults={"mail": "x"})
        s.commit()
        with pytest.raises(IntegrityError):
            s.run(rows.get_or_insert, Shop, name="b", defaults={"mail": "x"})
        s.add(Shop(name="goes on"))
        s.commit()
    assert names(place) == ["a", "goes on"]


@pytest.mark.covers("N-11", "N-12")
@pytest.mark.parametrize("read_before", [False, True], ids=["at once", "in an older snapshot"])
def test_who_comes_second_gets_the_winners_object(face: Face, place: Place, read_before: bool) -> None:
    """Under READ COMMITTED, and under the REPEATABLE READ of MariaDB."""
    if place.name == "sqlite":
        pytest.skip("has one writer at a time")
    place.fresh(Base)

    def second(s: Handle) -> tuple[int, bool]:
        if read_before:
            s.scalars(select(Shop))
        s.add(Shop(name="other work"))
        shop, created = s.run(rows.get_or_insert, Shop, name="a")
        found = shop.id, created
        s.commit()
        return found

    with face.session() as s:
        shop, created = s.run(rows.get_or_insert, Shop, name="a")
        assert created
        waiting = face.start(second)
        eventually(lambda: place.waiters() == 1)
        expected = shop.id
        s.commit()
        assert waiting.result(20) == (expected, False)
    assert names(place) == ["a", "other work"]


@pytest.mark.covers("N-12", "N-23")
@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_snapshot_that_is_older_than_the_winner_is_run_again(face: Face, place: Place, isolation: str) -> None:
    """On PostgreSQL; the unit needs no `duplicates=True`."""
    if place.name == "sqlite":
        pytest.skip("has one writer at a time")
    place.fresh(Base)
    attempts: list[int] = []

    @face.function
    def work(session: Any) -> Steps:
        yield session.execute(select(Shop.id))  # the snapshot
        if not attempts and place.name == "postgresql":
            with place.maker.begin() as winner:
                winner.add(Shop(name="a"))
        attempts.append(1)
        shop, created = yield rows.get_or_insert(session, Shop, name="a")
        return [shop.id, created]

    _, created = face.call(rows.transaction, face.maker, work, isolation=isolation, delay=0.01)
    expected = (2, False) if place.name == "postgresql" else (1, True)
    assert (len(attempts), created) == expected
    assert names(place) == ["a"]


@pytest.mark.covers("N-12")
def test_the_conflict_of_an_old_snapshot_names_itself(face: Face, place: Place) -> None:
    if place.name != "postgresql":
        pytest.skip("the others see the winner")
    place.fresh(Base)
    with face.session() as s:
        s.run(lambda session: session.connection(execution_options={"isolation_level": "REPEATABLE READ"}))
        s.scalars(select(Shop))
        with place.maker.begin() as winner:
            winner.add(Shop(name="a"))
        with pytest.raises(Conflict, match="since this transaction began") as caught:
            s.run(rows.get_or_insert, Shop, name="a")
        assert trouble_of(caught.value.__cause__ or caught.value) is Trouble.DUPLICATE


@pytest.mark.covers("N-12")
def test_where_every_write_is_checked_against_the_snapshot_the_first_in_a_transaction_still_sees_the_winner(
    face: Face, place: Place
) -> None:
    """MariaDB 11.6 and newer have this setting by default."""
    if place.name != "mariadb":
        pytest.skip("a setting of MariaDB")
    place.fresh(Base)

    @event.listens_for(face.engine, "connect")
    def _(connection: Any, _: Any) -> None:
        cursor = connection.cursor()
        cursor.execute("SET SESSION innodb_snapshot_isolation = ON")
        cursor.close()

    def second(s: Handle) -> bool:
        return bool(s.run(rows.get_or_insert, Shop, name="a").created)

    with face.session() as s:
        assert s.scalar(text("SELECT @@innodb_snapshot_isolation")) == 1
        s.run(rows.get_or_insert, Shop, name="a")
        waiting = face.start(second)
        eventually(lambda: place.waiters() == 1)
        s.commit()
        assert waiting.result(20) is False


@pytest.mark.covers("N-12")
def test_on_sqlite_only_a_snapshot_that_has_been_read_is_too_old_to_write_on(place: Place) -> None:
    if place.name != "sqlite":
        pytest.skip("of SQLite")
    place.fresh(Base)
    engine = with_own_begin(place.new_engine())
    try:
        with Session(engine) as session:
            session.scalars(select(Shop)).all()
            with place.maker.begin() as winner:
                winner.add(Shop(name="a"))
            with pytest.raises(DBAPIError) as caught:
                rows.get_or_insert(session, Shop, name="b")
            assert trouble_of(caught.value) is Trouble.DEADLOCK
        with sessionmaker(engine).begin() as session:
            session.add(Shop(name="z"))
            assert rows.get_or_insert(session, Shop, name="b").created
        assert names(place) == ["a", "b", "z"]
    finally:
        engine.dispose()


# -- many ------------------------------------------------------------------------------------------------------


def everybody(place: Place, number: int) -> dict[str, int]:
    """In a process of its own: the id of every name, in its own order, each in a transaction of its own."""
    found = {}
    with place.maker() as session:
        for name in random.Random(number).sample(range(NAMES), NAMES):
            shop, _ = rows.get_or_insert(session, Shop, name=f"{name:03}")
            found[shop.name] = shop.id
            session.commit()
    return found


def everybody_begun(place: Place, number: int) -> dict[str, int]:
    """The same where a SELECT begins a snapshot, in blocks that commit."""
    found = {}
    engine = with_own_begin(place.new_engine())
    for name in random.Random(number).sample(range(NAMES), NAMES):
        with sessionmaker(engine).begin() as session:
            shop, _ = rows.get_or_insert(session, Shop, name=f"{name:03}")
            found[shop.name] = shop.id
    engine.dispose()
    return found


def everybody_async(place: Place, number: int) -> dict[str, int]:
    """The same on the other face."""

    async def work() -> dict[str, int]:
        found = {}
        engine = place.new_async_engine()
        async with async_sessionmaker(engine)() as session:
            for name in random.Random(number).sample(range(NAMES), NAMES):
                shop, _ = await rows.get_or_insert(session, Shop, name=f"{name:03}")
                found[shop.name] = shop.id
                await session.commit()
        await engine.dispose()
        return found

    return asyncio.run(work())


@pytest.mark.covers("N-11", "N-12", "N-22")
@pytest.mark.parametrize("how", ["everybody", "everybody_async", "everybody_begun"])
def test_processes_that_ask_for_the_same_names_get_one_row_each_and_no_error(place: Place, how: str) -> None:
    if how == "everybody_begun" and place.name != "sqlite":
        pytest.skip("the others always begin")
    place.fresh(Base)
    found = run_processes(PROCESSES, f"{__name__}:{how}", place)
    assert all(one == found[0] for one in found)
    assert len(set(found[0].values())) == NAMES
    with place.maker() as session:
        assert session.scalar(select(func.count()).select_from(Shop)) == NAMES
