"""What a session remembers of its locks, and that a weak one does not let a row be deleted."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import ForeignKey, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from takehold import UsageError, rows
from takehold.rows.locked import Locked, locked_by
from takehold.rows.session import session_of
from tests.rows.faces import Face, Handle
from tests.rows.models import Base, Parent
from tests.rows.places import Place
from tests.rows.rivals import add_parents
from tests.rows.test_locking import statements

pytestmark = pytest.mark.slow


class Own(DeclarativeBase):
    """Of a tree whose leaves go when they are taken out."""


class Tree(Own):
    """Owns its leaves."""

    __tablename__ = "tree"
    id: Mapped[int] = mapped_column(primary_key=True)
    leaves: Mapped[list[Leaf]] = relationship(cascade="all, delete-orphan", lazy="selectin")


class Leaf(Own):
    """Cannot be without a tree."""

    __tablename__ = "leaf"
    id: Mapped[int] = mapped_column(primary_key=True)
    tree_id: Mapped[int] = mapped_column(ForeignKey("tree.id"))


def known(s: Handle, row: object) -> Locked | None:
    return locked_by(session_of(s.session), row)


@pytest.mark.covers("D-30")
def test_a_row_is_not_deleted_under_a_lock_that_lets_others_refer_to_it(face: Face, place: Place) -> None:
    place.fresh(Base)
    add_parents(place, 2)
    with face.session() as s, statements(face) as sent:
        [parent] = s.run(rows.lock_rows, Parent, [1])
        s.delete(parent)
        with pytest.raises(UsageError, match=r"would delete Parent \(1,\), which was locked at .*faces.py:\d+ "):
            s.flush()
        assert not any("DELETE" in statement for statement, _ in sent)
        s.rollback()
        [parent] = s.run(rows.lock_rows, Parent, [1], deleting=True)
        s.delete(parent)
        s.commit()
        s.delete(s.get(Parent, 2))  # not locked at all
        s.commit()
        assert s.scalars(select(Parent)) == []


@pytest.mark.covers("D-30")
def test_a_row_does_not_get_another_primary_key_under_such_a_lock(face: Face, place: Place) -> None:
    place.fresh(Base)
    add_parents(place, 1)
    with face.session() as s, statements(face) as sent:
        [parent] = s.run(rows.lock_rows, Parent, [1])
        parent.note = "fine"
        s.flush()
        parent.id = 7
        with pytest.raises(UsageError, match="would change the primary key of Parent"):
            s.flush()
        assert sum("UPDATE parent SET" in statement for statement, _ in sent) == 1
        s.rollback()
        [parent] = s.run(rows.lock_rows, Parent, [1], deleting=True)
        parent.id = 7
        s.commit()
        assert s.scalars(select(Parent.id)) == [7]


@pytest.mark.covers("D-30")
def test_an_orphan_is_not_deleted_under_such_a_lock(face: Face, place: Place) -> None:
    place.fresh(Own)
    with face.session() as s, statements(face) as sent:
        s.add(Tree(id=1, leaves=[Leaf(id=1), Leaf(id=2)]))
        s.commit()
        for deleting in (False, True):
            [tree] = s.run(rows.lock_rows, Tree, 1, of=Leaf, deleting=deleting)
            del tree.leaves[0]
            if not deleting:
                with pytest.raises(UsageError, match="would delete Leaf"):
                    s.flush()
                assert not any("DELETE" in statement for statement, _ in sent)
                s.rollback()
        s.commit()
        assert s.scalars(select(Leaf.id)) == [2]


@pytest.mark.covers("D-30")
def test_locks_are_known_until_their_transaction_or_savepoint_is_undone(face: Face, place: Place) -> None:
    if place.name == "sqlite":
        pytest.skip("its keys are not taken behind savepoints")
    place.fresh(Base)
    add_parents(place, 4)
    with face.session() as s:
        first, second, third, fourth = s.scalars(select(Parent).order_by(Parent.id))
        s.run(rows.lock_rows, Parent, [1], deleting=True)
        line = known(s, first)
        assert line is not None
        assert line.deleting
        outer = s.run(lambda session: session.begin_nested())
        s.run(rows.lock_rows, Parent, [1, 2])
        inner = s.run(lambda session: session.begin_nested())
        s.run(rows.lock_rows, Parent, [3])
        face.call(inner.commit)
        gone = s.run(lambda session: session.begin_nested())
        s.run(rows.lock_rows, Parent, [4])
        assert [bool(known(s, one)) for one in (first, second, third, fourth)] == [True] * 4
        face.call(gone.rollback)
        assert [bool(known(s, one)) for one in (first, second, third, fourth)] == [True, True, True, False]
        assert known(s, first) == line, "a weaker one does not replace it"
        face.call(outer.rollback)
        assert [bool(known(s, one)) for one in (first, second, third, fourth)] == [True, False, False, False]
        s.commit()
        assert known(s, first) is None
        assert "takehold.rows.locked" not in s.session.info


@pytest.mark.covers("D-30")
@pytest.mark.parametrize("end", ["commit", "rollback", "close"])
def test_locks_are_forgotten_with_the_end_of_their_transaction(face: Face, place: Place, end: str) -> None:
    place.fresh(Base)
    add_parents(place, 1)
    with face.session() as s:
        [parent] = s.run(rows.lock_rows, Parent, [1])
        assert known(s, parent) is not None
        s.run(lambda session: getattr(session, end)())
        parent = s.get(Parent, 1)
        assert known(s, parent) is None
        s.delete(parent)
        s.commit()


def test_the_line_is_that_of_the_caller(face: Face, place: Place) -> None:
    place.fresh(Base)
    add_parents(place, 1)

    def ask(session: Any) -> Any:
        return rows.lock_rows(session, Parent, 1)

    with face.session() as s:
        [parent] = s.run(ask)
        lock = known(s, parent)
        assert lock is not None
        assert lock.line == f"{__file__}:{ask.__code__.co_firstlineno + 1}"
