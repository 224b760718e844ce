"""`lock_rows`: what it sends, whom it keeps out, and what it does after a deadlock."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import ForeignKey, String, Uuid, event, func, select, text, update
from sqlalchemy.exc import DBAPIError, NotSupportedError
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    contains_eager,
    joinedload,
    mapped_column,
    relationship,
    selectinload,
)

from takehold import Conflict, LockTimeout, UsageError, rows
from takehold.rows import locking
from takehold.rows.dialects import Trouble, trouble_of
from takehold.testing.faces.vocabulary import eventually
from tests.lanes import scaled
from tests.rows.faces import AsyncFace, Face, Handle, Steps
from tests.rows.models import Base, Child, Pair, Parent, Tag
from tests.rows.places import Place
from tests.rows.rivals import add_parents, rival

pytestmark = pytest.mark.slow

CLAUSE = {"sqlite": "", "postgresql": " FOR NO KEY UPDATE OF parent", "mariadb": " FOR UPDATE"}
STRONG = {"sqlite": "", "postgresql": " FOR UPDATE OF parent", "mariadb": " FOR UPDATE"}


@contextmanager
def statements(face: Face) -> Iterator[list[tuple[str, list[Any]]]]:
    """What is sent meanwhile: text in one line, and parameters."""
    sent: list[tuple[str, list[Any]]] = []

    def hear(_c: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, _many: bool) -> None:
        values = parameters.values() if isinstance(parameters, dict) else parameters
        sent.append((" ".join(statement.split()), list(values)))

    event.listen(face.engine, "before_cursor_execute", hear)
    yield sent
    event.remove(face.engine, "before_cursor_execute", hear)


def is_free(face: Face, model: type[Any], value: Any) -> bool:
    """Whether another session can lock the row now."""
    with face.session() as s:
        try:
            return bool(s.run(rows.lock_rows, model, value, nowait=True))
        except LockTimeout:
            return False


def begins_with_its_first_read(engine: Any) -> None:
    """Make a SQLite engine send BEGIN itself, as SQLAlchemy's documentation has it: a read makes a snapshot."""

    @event.listens_for(engine, "connect")
    def _(connection: Any, _record: Any) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def _(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")


# -- what is sent --------------------------------------------------------------------------------------------


@pytest.mark.covers("N-1", "N-2", "D-10", "D-11", "D-13")
def test_ids_are_sorted_once_each_and_locked_in_that_order(face: Face, place: Place) -> None:
    place.fresh(Base)
    add_parents(place)
    with face.session() as s, statements(face) as sent:
        found = s.run(rows.lock_rows, Parent, [3, 1, 3, 2])
        [(statement, parameters)] = sent
        assert [parent.id for parent in found] == [1, 2, 3]
    assert parameters == [1, 2, 3]
    assert " WHERE parent.id IN (" in statement
    assert statement.endswith(f" ORDER BY parent.id{CLAUSE[place.name]}")


@pytest.mark.covers("N-2", "N-5")
def test_one_value_is_compared_and_an_iterable_is_a_list(face: Face, place: Place) -> None:
    place.fresh(Base)
    add_parents(place)
    with face.session() as s, statements(face) as sent:
        assert [one.name for one in s.run(rows.lock_rows, Parent, "b", field="name")] == ["b"]
        assert [one.name for one in s.run(rows.lock_rows, Parent, iter(["c"]), field="name")] == ["c"]
        assert [one.id for one in s.run(rows.lock_rows, Parent, 4)] == [4]
        texts = [statement for statement, _ in sent if statement.endswith(CLAUSE[place.name]) and "note" in statement]
    assert [" IN (" in one.replace("parent.id IN (", "") for one in texts] == [False, True, False]
    assert all("parent.name = " in one or "parent.id = " in one for one in (texts[0], texts[2]))


@pytest.mark.covers("N-1")
@pytest.mark.parametrize("values", [[], (), iter([]), {}, [None], None])
def test_no_values_are_no_statement_and_no_rows(face: Face, place: Place, values: Any) -> None:
    with face.session() as s, statements(face) as sent:
        assert s.run(rows.lock_rows, Parent, values) == []
        assert not s.session.in_transaction()
    assert sent == []


@pytest.mark.covers("D-11", "D-30")
def test_deleting_takes_the_full_lock(face: Face, place: Place) -> None:
    place.fresh(Base)
    add_parents(place)
    with face.session() as s, statements(face) as sent:
        s.run(rows.lock_rows, Parent, [1], deleting=True)
        assert sent[-1][0].endswith(f"ORDER BY parent.id{STRONG[place.name]}")


@pytest.mark.covers("D-13")
def test_many_values_are_locked_in_chunks_that_keep_the_order(
    face: Face, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.fresh(Base)
    add_parents(place)
    monkeypatch.setattr(locking, "CHUNK", 4)
    with face.session() as s, statements(face) as sent:
        found = s.run(rows.lock_rows, Parent, range(10, 0, -1))
        assert [one.id for one in found] == list(range(1, 11))
        assert [parameters for _, parameters in sent] == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]


@pytest.mark.covers("D-13")
def test_text_is_locked_in_the_same_order_within_a_chunk_and_across(face: Face, place: Place) -> None:
    place.fresh(Base)
    with face.session() as s:
        s.add(*(Tag(name=name) for name in ["b", "é", "a", "Z"]))
        s.commit()
        with statements(face) as sent:
            found = s.run(rows.lock_rows, Tag, ["a", "b", "Z", "é"], field="name")
        names = [one.name for one in found]
    if place.name == "postgresql":  # the test's database has this order anyway; others sort as a language does
        assert 'ORDER BY tag.name COLLATE "C" FOR' in sent[0][0]
    # InnoDB locks in the order of its index, whatever is asked for.
    assert names == (["a", "b", "é", "Z"] if place.name == "mariadb" else ["Z", "a", "b", "é"])


@pytest.mark.covers("N-5")
def test_lock_is_lock_rows() -> None:
    assert rows.lock is rows.lock_rows


class Own(DeclarativeBase):
    """Tables with other keys."""


class Device(Own):
    """Known by a UUID."""

    __tablename__ = "device"
    id: Mapped[UUID] = mapped_column(Uuid, primary_key=True)


class Seat(Own):
    """Known by two numbers."""

    __tablename__ = "seat"
    line: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    place: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class Animal(Own):
    """Rows in two tables, for some."""

    __tablename__ = "animal"
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(String(10))
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "animal"}  # noqa: RUF012 - as SQLAlchemy has it


class Dog(Animal):
    """One with a table of its own."""

    __tablename__ = "dog"
    id: Mapped[int] = mapped_column(ForeignKey("animal.id"), primary_key=True)
    name: Mapped[str] = mapped_column(String(10))
    __mapper_args__ = {"polymorphic_identity": "dog"}  # noqa: RUF012


@pytest.mark.covers("N-1")
def test_values_are_of_the_type_of_the_column_however_they_are_written(face: Face, place: Place) -> None:
    place.fresh(Own)
    first, second = UUID(int=1), UUID(int=2)
    with face.session() as s:
        s.add(Device(id=first), Device(id=second))
        s.commit()
        found = s.run(rows.lock_rows, Device, [second, str(first), str(second).upper()])
        assert [one.id for one in found] == [first, second]
        assert not is_free(face, Device, str(first))
        with pytest.raises(UsageError, match="'x' is no UUID"):
            s.run(rows.lock_rows, Device, "x")


def test_a_key_of_two_columns_is_locked_by_one_of_them(face: Face, place: Place) -> None:
    place.fresh(Own)
    with face.session() as s:
        s.add(Seat(line=1, place=1), Seat(line=1, place=2), Seat(line=2, place=1))
        s.commit()
        assert len(s.run(rows.lock_rows, Seat, 1, field="line")) == 2
        with face.session() as other:
            with pytest.raises(LockTimeout):
                other.run(rows.lock_rows, Seat, 2, field="place", nowait=True)
            other.rollback()
            assert len(other.run(rows.lock_rows, Seat, 2, field="line", nowait=True)) == 1


def test_a_row_of_a_subclass_is_the_row_of_its_base(face: Face, place: Place) -> None:
    place.fresh(Own)
    with face.session() as s:
        s.add(Dog(id=1, name="Rex"), Animal(id=2))
        s.commit()
        assert s.run(rows.lock_rows, Dog, [1])[0].name == "Rex"
        assert not is_free(face, Animal, 1)
        assert is_free(face, Animal, 2)


def test_what_cannot_be_locked_is_refused_with_a_sentence(face: Face, place: Place) -> None:
    with face.session() as s:
        for wrong, options, sentence in (
            (Parent, {"field": "nmae"}, "Parent has no column 'nmae' to lock by; it has id, name"),
            (Parent, {"field": "children"}, "no column 'children'"),
            (Parent, {"of": Tag}, r"of= takes relationships of Parent \(children\)"),
            (Parent, {"of": Child.parent}, "of= takes relationships"),
            (Base.metadata, {}, "takes a mapped class"),
            (Parent, {"attempts": 0}, "attempts= is 1 or more"),
        ):
            with pytest.raises(UsageError, match=sentence):
                s.run(rows.lock_rows, wrong, [1], **options)
    with pytest.raises(UsageError, match="takes a SQLAlchemy Session"):
        rows.lock_rows("no session", Parent, [1])  # type: ignore[call-overload]


# -- whom it keeps out ---------------------------------------------------------------------------------------


@pytest.mark.covers("D-10", "D-2")
def test_a_locked_row_keeps_others_out_until_the_end_of_the_transaction(face: Face, place: Place) -> None:
    place.fresh(Base)
    add_parents(place)
    with face.session() as s:
        for end in (s.commit, s.rollback):
            s.run(rows.lock_rows, Parent, [1, 2])
            assert [is_free(face, Parent, one) for one in (1, 2, 3)] == [False, False, True]
            end()
            assert is_free(face, Parent, 1)


@pytest.mark.covers("D-14", "D-15")
def test_who_waited_reads_what_the_holder_has_written(face: Face, place: Place) -> None:
    place.fresh(Base)
    add_parents(place, 1)
    rounds = scaled(100)

    def body(s: Handle, number: int) -> None:
        for _ in range(rounds):
            [parent] = s.run(rows.lock_rows, Parent, 1)
            parent.number += 1  # not atomic: read here, written at the commit
            s.commit()

    face.workers(4, body)
    with face.session() as s:
        assert s.scalar(select(Parent.number)) == 4 * rounds


def test_a_row_is_the_same_by_whatever_field_it_is_found(face: Face, place: Place) -> None:
    place.fresh(Base)
    add_parents(place)
    with face.session() as s:
        assert [one.id for one in s.run(rows.lock_rows, Parent, ["c", "a", "zz"], field="name")] == [1, 3]
        assert [is_free(face, Parent, one) for one in (1, 2, 3)] == [False, True, False]


@pytest.mark.covers("D-14")
def test_objects_that_were_loaded_before_the_lock_are_refreshed(face: Face, place: Place) -> None:
    place.fresh(Base)
    add_parents(place)
    with face.session() as s:
        parent = s.get(Parent, 1)
        with place.maker.begin() as other:
            other.execute(update(Parent).values(number=7))
        assert s.scalars(select(Parent).where(Parent.id == 1)) == [parent]
        assert parent.number == 0
        assert s.run(rows.lock_rows, Parent, [1]) == [parent]
        assert parent.number == 7


@pytest.mark.covers("D-14")
def test_what_a_lock_would_overwrite_is_refused_where_nothing_flushes_it(face: Face, place: Place) -> None:
    place.fresh(Base)
    add_parents(place)
    with face.session(autoflush=False) as s:
        s.get(Parent, 1).number = 5
        with pytest.raises(UsageError, match="Flush first"):
            s.run(rows.lock_rows, Parent, [2])
        s.rollback()
        assert len(s.run(rows.lock_rows, Parent, [1, 2])) == 2


@pytest.mark.covers("D-14", "D-18")
def test_a_change_from_before_the_lock_is_refused_and_one_under_it_is_kept(face: Face, place: Place) -> None:
    """It would be flushed by the lock itself, over what somebody else has written since."""
    place.fresh(Base)
    add_parents(place)
    with face.session() as s:
        s.get(Parent, 1).number += 1
        with pytest.raises(UsageError, match="was changed before it is locked"):
            s.run(rows.lock_rows, Parent, [1, 2])
        s.rollback()
        s.run(rows.lock_rows, Parent, [1])[0].number += 1
        assert [one.number for one in s.run(rows.lock_rows, Parent, [1, 2])] == [1, 0]


@pytest.mark.covers("D-15")
def test_a_snapshot_older_than_the_lock_is_refused_and_nothing_is_committed(face: Face, place: Place) -> None:
    if place.name != "sqlite":
        pytest.skip("row locks read what is current")
    place.fresh(Base)
    add_parents(place)
    begins_with_its_first_read(face.engine)
    change = update(Parent).where(Parent.id == 1).values(number=Parent.number + 1)
    with face.session() as s:
        assert s.scalar(select(Parent.number).where(Parent.id == 1)) == 0
        with place.maker.begin() as other:
            other.execute(change)
        assert s.scalar(select(Parent.number).where(Parent.id == 1)) == 0, "stale, without a lock"
        with pytest.raises(UsageError, match=r"older than the lock.*Commit or roll back first"):
            s.run(rows.lock_rows, Parent, [1])
        s.rollback()
        assert s.run(rows.lock_rows, Parent, [1])[0].number == 1
        s.execute(update(Parent).where(Parent.id == 1).values(number=50))
        with pytest.raises(UsageError, match="Commit or roll back first"):
            s.run(rows.lock_rows, Parent, [2])
        s.rollback()
        assert s.scalar(select(Parent.number).where(Parent.id == 1)) == 1


@pytest.mark.covers("D-11")
def test_a_child_is_inserted_while_its_parent_is_locked_unless_for_deleting(face: Face, place: Place) -> None:
    if place.name != "postgresql":
        pytest.skip("only Postgres has FOR NO KEY UPDATE")
    place.fresh(Base)
    add_parents(place)

    def insert(s: Handle) -> None:
        s.add(Child(parent_id=1))
        s.commit()

    with face.session() as s:
        s.run(rows.lock_rows, Parent, [1])
        face.start(insert).result(20)
        s.rollback()
        s.run(rows.lock_rows, Parent, [1], deleting=True)
        waiting = face.start(insert)
        eventually(lambda: place.waiters() == 1)
        assert not waiting.done()
        s.commit()
        waiting.result(20)


# -- related rows --------------------------------------------------------------------------------------------


@pytest.mark.covers("D-12")
def test_a_lock_over_a_left_join_fails_and_four_ways_around_it_work(face: Face, place: Place) -> None:
    if place.name != "postgresql":
        pytest.skip("only Postgres refuses it")
    place.fresh(Base)
    add_parents(place, 2)
    with place.maker.begin() as session:
        session.add(Child(parent_id=1))
    loud = select(Parent).options(joinedload(Parent.children)).order_by(Parent.id).with_for_update()
    with face.session() as s:
        with pytest.raises((NotSupportedError, DBAPIError), match="nullable side of an outer join"):
            s.execute(loud)
        s.rollback()
        # FOR UPDATE OF the main table
        found = s.run(rows.lock_rows, Parent, [1, 2], options=joinedload(Parent.children))
        assert [len(one.children) for one in found] == [1, 0]
        s.rollback()
        # select-in load
        found = s.run(rows.lock_rows, Parent, [1, 2], options=selectinload(Parent.children))
        assert [len(one.children) for one in found] == [1, 0]
        s.rollback()
        # lock, then select again
        s.run(rows.lock_rows, Parent, [1, 2])
        again = select(Parent).options(joinedload(Parent.children)).order_by(Parent.id)
        found = s.run(lambda session: session.execute(again.execution_options(populate_existing=True)))
        assert [len(one.children) for one in found.unique().scalars()] == [1, 0]
        s.rollback()
        # inner join, which finds only parents with children
        inner = select(Parent).join(Parent.children).options(contains_eager(Parent.children)).with_for_update()
        found = s.run(lambda session: session.execute(inner))
        assert [one.id for one in found.unique().scalars()] == [1]


@pytest.mark.covers("D-30")
@pytest.mark.parametrize("load", [joinedload, selectinload])
def test_options_load_related_rows_which_may_be_absent_and_are_not_locked(face: Face, place: Place, load: Any) -> None:
    place.fresh(Base)
    add_parents(place, 2)
    with place.maker.begin() as session:
        session.add(Child(id=5, parent_id=1, label="old"))
    with face.session() as s:
        stale = s.get(Parent, 1, options=[load(Parent.children)])
        assert [one.label for one in stale.children] == ["old"]
        s.commit()
        with place.maker.begin() as session:
            session.add(Child(id=6, parent_id=1, label="new"))
        found = s.run(rows.lock_rows, Parent, [2, 1], options=[load(Parent.children)])
        assert [[child.label for child in one.children] for one in found] == [["old", "new"], []]
        assert found[0] is stale
        assert is_free(face, Child, 5)
        assert not is_free(face, Parent, 1)


@pytest.mark.covers("D-30")
@pytest.mark.parametrize("named", [Child, Parent.children, [Parent, Parent.children]])
def test_related_rows_are_locked_when_they_are_named(face: Face, place: Place, named: Any) -> None:
    place.fresh(Base)
    add_parents(place, 3)
    with place.maker.begin() as session:
        session.add_all([Child(id=5, parent_id=1), Child(id=6, parent_id=2)])
    with face.session() as s:
        found = s.run(rows.lock_rows, Parent, [1, 3], of=named, options=joinedload(Parent.children))
        assert [[child.id for child in one.children] for one in found] == [[5], []]
        assert not is_free(face, Child, 5)
        if place.name != "mariadb":  # InnoDB scans a table as small as this one, and locks what it meets
            assert is_free(face, Child, 6)
        assert [is_free(face, Parent, one) for one in (1, 2, 3)] == [False, True, False]


class Eager(DeclarativeBase):
    """Of a model that joins by itself."""


class Owner(Eager):
    """Is joined."""

    __tablename__ = "owner"
    id: Mapped[int] = mapped_column(primary_key=True)


class Thing(Eager):
    """Joins its owner whenever it is loaded."""

    __tablename__ = "thing"
    id: Mapped[int] = mapped_column(primary_key=True)
    owner_id: Mapped[int | None] = mapped_column(ForeignKey("owner.id"))
    owner: Mapped[Owner | None] = relationship(lazy="joined")


@pytest.mark.covers("D-30")
def test_what_a_model_joins_by_itself_is_loaded_and_not_locked(face: Face, place: Place) -> None:
    place.fresh(Eager)
    with face.session() as s:
        s.add(Thing(id=1, owner=Owner(id=1)), Thing(id=2))
        s.commit()
        found = s.run(rows.lock_rows, Thing, [1, 2])
        assert [one.owner and one.owner.id for one in found] == [1, None]
        assert is_free(face, Owner, 1)


# -- in one order --------------------------------------------------------------------------------------------


@pytest.mark.covers("N-3", "D-6")
def test_two_workers_that_want_the_same_rows_in_either_order_never_deadlock(face: Face, place: Place) -> None:
    place.fresh(Base)
    add_parents(place, 2)

    def body(s: Handle, number: int) -> None:
        for _ in range(scaled(1000)):
            s.run(rows.lock_rows, Parent, [1, 2] if number else [2, 1], attempts=1)
            s.commit()

    face.workers(2, body)


@pytest.mark.covers("N-4")
def test_lock_then_read_then_insert_the_missing_ones_inserts_each_pair_once(face: Face, place: Place) -> None:
    place.fresh(Base)
    add_parents(place, 4)
    with place.maker.begin() as session:
        session.add(Tag(id=1, name="t"))

    def body(s: Handle, number: int) -> int:
        wanted = [4, 3, 2, 1] if number % 2 else [1, 2, 3, 4]
        s.run(rows.lock_rows, Parent, wanted)
        known = set(s.scalars(select(Pair.left_id).where(Pair.left_id.in_(wanted), Pair.right_id == 1)))
        missing = [one for one in wanted if one not in known]
        s.add(*(Pair(left_id=one, right_id=1) for one in missing))
        s.commit()
        return len(missing)

    assert sorted(face.workers(6, body)) == [0, 0, 0, 0, 0, 4]
    with face.session() as s:
        assert body(s, 0) == 0
        assert s.scalar(select(func.count(Pair.id))) == 4


def fast_deadlocks(place: Place, engine: Any) -> None:
    """Postgres looks for a cycle after a second; here after a moment."""
    if place.name == "postgresql":

        @event.listens_for(engine, "begin")
        def _(connection: Any) -> None:
            connection.exec_driver_sql("SET LOCAL deadlock_timeout = '10ms'")


@pytest.mark.filterwarnings("ignore:lock order inverted:takehold.LockOrderWarning")
@pytest.mark.covers("N-3", "N-8", "N-28")
def test_eight_workers_in_both_orders_do_not_deadlock_with_lock_rows_and_lose_no_work_without(
    face: Face, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.fresh(Base)
    add_parents(place, 2)
    fast_deadlocks(place, face.engine)
    workers, rounds = 8, scaled(1000) // 8 + 1

    @face.function
    def work(session: Any, wanted: list[int], *, sort: bool) -> Steps:
        for group in [wanted] if sort else [[one] for one in wanted]:
            for parent in (yield rows.lock_rows(session, Parent, group, attempts=1)):
                parent.number += 1
            if place.name != "sqlite":  # there nothing can be locked after the first write
                yield session.flush()

    def body(_: Handle, number: int, *, sort: bool) -> None:
        wanted = [1, 2] if number % 2 else [2, 1]
        for _round in range(rounds):
            once = functools.partial(work, wanted=wanted, sort=sort)
            face.call(rows.transaction, face.maker, once, 1 if sort else 100, delay=0.005)

    for sort in (True, False):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "takehold.rows"):
            face.workers(workers, functools.partial(body, sort=sort))
        seen = [one for one in caplog.records if one.name == "takehold.rows.unit"]
        assert bool(seen) is not sort, f"{len(seen)} deadlocks"
        with face.session() as s:
            both = s.scalars(select(Parent.number).order_by(Parent.id))
        assert both == [workers * rounds * (1 if sort else 2)] * 2


# -- after a deadlock ----------------------------------------------------------------------------------------


@pytest.mark.covers("N-6", "N-7", "N-9")
def test_a_lock_that_comes_first_is_tried_again_after_a_deadlock(
    face: Face, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    if place.name == "sqlite":
        pytest.skip("its keys are taken all at once")
    place.fresh(Base)
    add_parents(place)
    with face.session() as s, rival(place):
        found = s.run(rows.lock_rows, Parent, [2, 1], delay=0.01)
        assert [one.number for one in found] == [1, 1]
        assert not is_free(face, Parent, 1)
    assert [one.getMessage() for one in caplog.records] == ["Deadlock on Parent.id, attempt 1/5"]
    assert caplog.records[0].levelname == "WARNING"


@pytest.mark.covers("N-6", "N-9")
def test_the_last_deadlock_is_a_conflict_from_the_drivers_error_without_another_pause(
    face: Face, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    if place.name == "sqlite":
        pytest.skip("its keys are taken all at once")
    place.fresh(Base)
    add_parents(place)
    with face.session() as s:
        with rival(place), pytest.raises(Conflict, match=r"^Failed to acquire lock after 1 attempts$") as caught:
            s.run(rows.lock_rows, Parent, [1, 2], attempts=1, delay=3600)
        assert isinstance(caught.value.__cause__, DBAPIError)
        assert trouble_of(caught.value.__cause__) is Trouble.DEADLOCK
        assert not s.session.in_transaction()
        assert len(s.run(rows.lock_rows, Parent, [1, 2])) == 2
    assert [one.getMessage() for one in caplog.records] == ["Deadlock on Parent.id, attempt 1/1"]


@pytest.mark.covers("N-6", "N-8")
def test_a_deadlock_after_other_work_goes_up_unchanged_for_the_whole_to_be_run_again(
    face: Face, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    if place.name == "sqlite":
        pytest.skip("its keys are taken all at once")
    place.fresh(Base)
    add_parents(place)
    with face.session() as s:
        s.add(Tag(name="work that came before"))
        s.flush()
        with rival(place), pytest.raises(DBAPIError) as caught:
            s.run(rows.lock_rows, Parent, [1, 2], delay=0)
        assert trouble_of(caught.value) is Trouble.DEADLOCK
    assert [one.getMessage() for one in caplog.records] == ["Deadlock on Parent.id, attempt 1/5"]
    with face.session() as s:
        assert s.scalars(select(Tag)) == []


@pytest.mark.covers("N-6", "N-7")
def test_other_errors_are_raised_at_once(face: Face, place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.fresh(Own)
    with face.session() as s:
        with pytest.raises(DBAPIError) as caught:
            s.run(rows.lock_rows, Parent, [1])  # no such table
        assert trouble_of(caught.value) is Trouble.OTHER
        s.rollback()
    if place.name == "sqlite":
        return
    place.fresh(Base)
    add_parents(place)
    impatient = {"postgresql": "SET LOCAL lock_timeout = '50ms'", "mariadb": "SET innodb_lock_wait_timeout = 0"}
    with face.session() as s, face.session() as other:
        s.run(rows.lock_rows, Parent, [1])
        other.execute(text(impatient[place.name]))
        with pytest.raises(DBAPIError) as caught:
            other.run(rows.lock_rows, Parent, [1])
        assert trouble_of(caught.value) is Trouble.LOCKED
        other.rollback()
        with pytest.raises(LockTimeout, match="a row of Parent is locked by somebody else"):
            other.run(rows.lock_rows, Parent, [1], nowait=True)
    assert not caplog.records


@pytest.mark.covers("N-5", "N-6")
def test_how_often_is_said_by_the_environment(
    face: Face, place: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    if place.name == "sqlite" or isinstance(face, AsyncFace):
        pytest.skip("once is enough")
    place.fresh(Base)
    add_parents(place)
    monkeypatch.setenv("DB_DEADLOCK_RETRY_ATTEMPTS", "3")
    monkeypatch.setenv("DB_DEADLOCK_RETRY_DELAY", "0.01")
    with face.session() as s, rival(place):
        s.run(rows.lock_rows, Parent, [2, 1])
    first, *more = [one.getMessage() for one in caplog.records]
    assert first == "Deadlock on Parent.id, attempt 1/3"
    assert more in ([], ["Deadlock on Parent.id, attempt 2/3"])  # the rival may be quicker twice
