"""Compare and set: one of many wins, and everybody knows who."""

from __future__ import annotations

import pytest
from sqlalchemy import event, update
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from takehold import UsageError, rows
from tests.rows.faces import Face, Handle
from tests.rows.models import Base, Parent
from tests.rows.places import Place

pytestmark = pytest.mark.slow


class Pairs(DeclarativeBase):
    """Of `Seat`."""


class Seat(Pairs):
    """Has a primary key of two columns, one of which Python calls otherwise."""

    __tablename__ = "seat"
    hall: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    number: Mapped[int] = mapped_column("no", primary_key=True, autoincrement=False)
    guest: Mapped[int | None] = mapped_column("taken_by")


def test_one_of_many_swaps_wins(face: Face, place: Place) -> None:
    place.fresh(Base)
    with face.session() as s:
        s.add(Parent(name="a"))
        s.commit()

    def body(s: Handle, number: int) -> bool:
        won: bool = s.run(rows.swap, Parent, 1, expect={"number": 0}, set={"number": number + 1, "note": "taken"})
        s.commit()
        return won

    outcomes = face.workers(8, body)
    assert outcomes.count(True) == 1
    with face.session() as s:
        assert s.get(Parent, 1).number == outcomes.index(True) + 1


def test_a_loaded_object_is_up_to_date_after_a_swap_that_won_or_lost(face: Face, place: Place) -> None:
    place.fresh(Base)
    with face.session(expire_on_commit=False) as s:
        parent = Parent(name="a", note="old")
        s.add(parent)

        def note() -> str | None:
            return parent.note

        s.commit()
        assert s.run(rows.swap, Parent, 1, expect={"note": "old"}, set={"note": "new"})
        assert note() == "new"
        s.commit()
        with face.session() as other:
            other.execute(update(Parent).values(note=None))
            other.commit()
        assert not s.run(rows.swap, Parent, 1, expect={"note": "new"}, set={"note": "newer"})
        assert note() is None
        assert s.run(rows.swap, Parent, 1, expect={"note": None, "number": 0}, set={"note": "again"})
        assert note() == "again"
        assert not s.run(rows.swap, Parent, 2, expect={"number": 0}, set={"number": 1})


def test_a_swap_is_one_update_and_what_is_pending_counts(face: Face, place: Place) -> None:
    place.fresh(Base)
    statements: list[str] = []
    with face.session() as s:
        parent = Parent(name="a")
        s.add(parent)
        s.commit()
        s.refresh(parent)
        parent.number = 5

        @event.listens_for(face.engine, "before_cursor_execute")
        def _(_c: object, _cursor: object, statement: str, *_: object) -> None:
            statements.append(statement.split(maxsplit=1)[0])

        assert s.run(rows.swap, Parent, 1, expect={"number": 5}, set={"number": 6})
        # What was pending, the swap, and the loaded object again.
        assert statements == ["UPDATE", "UPDATE", "SELECT"]
        s.rollback()
        assert s.get(Parent, 1).number == 0


def test_a_row_that_is_gone_is_not_swapped(face: Face, place: Place) -> None:
    place.fresh(Base)
    with face.session(expire_on_commit=False) as s:
        parent = Parent(name="a")
        s.add(parent)
        s.commit()
        with face.session() as other:
            other.delete(other.get(Parent, 1))
            other.commit()
        assert not s.run(rows.swap, Parent, 1, expect={"number": 0}, set={"number": 1})


def test_a_primary_key_of_two_columns_is_a_tuple(face: Face, place: Place) -> None:
    place.fresh(Pairs)
    with face.session() as s:
        s.add(Seat(hall=1, number=2), Seat(hall=2, number=1))
        s.commit()
        assert s.run(rows.swap, Seat, (1, 2), expect={"guest": None}, set={"guest": 7})
        s.commit()
        assert [s.get(Seat, one).guest for one in ((1, 2), (2, 1))] == [7, None]
        with pytest.raises(UsageError, match="2 columns"):
            s.run(rows.swap, Seat, 1, expect={"guest": None}, set={"guest": 7})


def test_unknown_or_missing_columns_are_refused(place: Place) -> None:
    with place.maker() as session:
        for expect, change, said in (
            ({"nonsense": 1}, {"number": 1}, r"expect= has \['nonsense'\]; the columns of Parent are"),
            ({"number": 1}, {"children": []}, r"set= has \['children'\]"),
            ({}, {"number": 1}, "expect= names no column"),
            ({"number": 1}, {}, "set= names no column"),
        ):
            with pytest.raises(UsageError, match=said):
                rows.swap(session, Parent, 1, expect=expect, set=change)
        with pytest.raises(UsageError, match="mapped class"):
            rows.swap(session, dict, 1, expect={"a": 1}, set={"a": 2})
