"""What each pattern costs in statements: the choice table of `docs/rows.md` is true."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event, select

from takehold import rows
from tests.rows.faces import Face
from tests.rows.models import Base, Pair, Parent, Tag
from tests.rows.places import Place

pytestmark = pytest.mark.slow


@contextmanager
def statements(face: Face) -> Iterator[list[str]]:
    """The first word of every statement that touches a table or a savepoint."""
    seen: list[str] = []

    def note(_connection: Any, _cursor: Any, sql: str, *_: Any) -> None:
        word = sql.split(maxsplit=1)[0].upper()
        if word in {"INSERT", "SAVEPOINT"} or (word == "SELECT" and "FROM" in sql.upper()):
            seen.append(word)

    event.listen(face.engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(face.engine, "before_cursor_execute", note)


@pytest.fixture
def filled(face: Face, place: Place) -> Face:
    place.fresh(Base)
    with face.session() as s:
        s.add(*[Parent(id=number, name=f"p{number}") for number in range(1, 4)], Tag(id=1, name="red"))
        s.commit()
    return face


@pytest.mark.covers("N-15")
class TestChoice:
    """A savepoint per object, one statement for many, or a lock and a look."""

    def test_insert_once_takes_a_savepoint_and_gives_the_id(self, filled: Face) -> None:
        with filled.session() as s, statements(filled) as seen:
            pair = Pair(left_id=1, right_id=1)
            assert s.run(rows.insert_once, pair)
            assert (seen.count("SAVEPOINT"), seen.count("INSERT")) == (1, 1)
            assert s.run(lambda _: pair.id) is not None

    @pytest.mark.covers("N-13")
    def test_insert_missing_takes_one_statement_for_all_rows(self, filled: Face) -> None:
        many = [{"name": f"tag {number}"} for number in range(600)] + [{"name": "red"}]
        with filled.session() as s, statements(filled) as seen:
            assert s.run(rows.insert_missing, Tag, many, key="name") == (600, 1)
            assert seen == ["INSERT"]
            seen.clear()
            assert s.run(rows.insert_missing, Tag, [], key="name") == (0, 0)
            assert seen == []

    def test_lock_and_look_takes_two_queries_and_reads_what_is_there(self, filled: Face) -> None:
        with filled.session() as s:
            s.add(Pair(left_id=1, right_id=1))
            s.commit()
        with filled.session() as s, statements(filled) as seen:
            s.run(rows.lock_rows, Parent, [3, 1])
            there = s.scalars(select(Pair.left_id).where(Pair.left_id.in_([1, 3])))
            assert there == [1]
            assert seen == ["SELECT", "SELECT"]
