"""Any rows, in any order, over any table: `insert_missing` and `upsert` against a plain dictionary."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import ForeignKey, Integer, String, UniqueConstraint, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from takehold import rows
from takehold.rows.dialects import Trouble, trouble_of
from tests.rows.conftest import _place
from tests.rows.places import NAMES, Place

pytestmark = pytest.mark.slow

COLUMNS = ("left", "right", "size", "note", "kept")
UPDATE = ("size", "note")


class Base(DeclarativeBase):
    """Of the tables here."""


class Owner(Base):
    __tablename__ = "owner"
    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)


class Entry(Base):
    """Has a key of two columns, and the ways to be wrong."""

    __tablename__ = "entry"
    __table_args__ = (UniqueConstraint("left", "right"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    left: Mapped[int]
    right: Mapped[str] = mapped_column(String(4))
    size: Mapped[int]
    note: Mapped[str | None] = mapped_column(String(4))
    kept: Mapped[int]
    owner_id: Mapped[int | None] = mapped_column(ForeignKey("owner.id"))


texts = st.text("abé ", max_size=3).map(lambda one: one + "x")
entries = st.fixed_dictionaries(
    {
        "left": st.integers(-1, 1),
        "right": st.sampled_from(["x", "y", "é"]),
        "size": st.integers(-1, 1),
        "note": st.none() | texts,
        "kept": st.integers(0, 9),
    }
)
batches = st.lists(entries, max_size=12)
good = {"left": 5, "right": "z", "size": 0, "note": None, "kept": 0, "owner_id": None}
wrongs = [{"size": None}, {"kept": None}, {"note": "too long"}, {"right": "too long"}, {"owner_id": 77}]

Table = dict[tuple[Any, Any], dict[str, Any]]


@pytest.fixture(scope="module", params=NAMES)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """One for all examples; its tables are emptied before each."""
    folder: Path = tmp_path_factory.mktemp("properties")
    made = _place(request, folder)
    made.fresh(Base)
    yield made
    made.dispose()


def filled(place: Place, before: list[dict[str, Any]]) -> Table:
    """The table with these rows, the last one of each key; and the same as a dictionary."""
    place.empty(Base)
    table = {(row["left"], row["right"]): row for row in before}
    with place.maker.begin() as session:
        session.add_all(Entry(**row) for row in table.values())
    return {key: dict(row) for key, row in table.items()}


def stored(session: Session) -> Table:
    found = session.execute(select(*(getattr(Entry, name) for name in COLUMNS))).mappings()
    return {(row["left"], row["right"]): dict(row) for row in found}


def number_of_keys(given: list[dict[str, Any]]) -> int:
    return len({(row["left"], row["right"]) for row in given})


@pytest.mark.covers("N-13", "N-26")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=batches, given_rows=batches)
def test_insert_missing_inserts_exactly_what_is_missing(
    place: Place, before: list[dict[str, Any]], given_rows: list[dict[str, Any]]
) -> None:
    expected = filled(place, before)
    new = {key: row for row in given_rows if (key := (row["left"], row["right"])) not in expected}
    with place.maker() as session:
        counts = rows.insert_missing(session, Entry, given_rows, key=["left", "right"])
        assert counts == (len(new), len(given_rows) - len(new))
        session.commit()
        assert stored(session) == expected | new


@pytest.mark.covers("N-14")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=batches, given_rows=batches, wrong=st.sampled_from(wrongs), at=st.integers(0, 12), update=st.booleans())
def test_everything_that_is_not_a_duplicate_of_the_key_is_raised(
    place: Place,
    before: list[dict[str, Any]],
    given_rows: list[dict[str, Any]],
    wrong: dict[str, Any],
    at: int,
    update: bool,
) -> None:
    if place.name == "sqlite" and "too long" in wrong.values():
        return  # has no length of texts
    expected = filled(place, before)
    batch = [row | {"owner_id": None} for row in given_rows]
    batch.insert(at, good | wrong)
    act: Any = rows.upsert if update else rows.insert_missing
    more = {"update": UPDATE} if update else {}
    with place.maker() as session:
        with pytest.raises(DBAPIError) as caught:
            act(session, Entry, batch, key=["left", "right"], **more)
        assert trouble_of(caught.value) is Trouble.OTHER
        session.rollback()
        assert stored(session) == expected


@pytest.mark.covers("N-27")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=batches, given_rows=batches, limit=st.none() | st.integers(-1, 1))
def test_an_upsert_is_the_same_as_its_rows_one_by_one(
    place: Place, before: list[dict[str, Any]], given_rows: list[dict[str, Any]], limit: int | None
) -> None:
    expected = filled(place, before)
    if limit is not None:  # what comes first in a call is not there for the condition of the next
        given_rows = list({(row["left"], row["right"]): row for row in given_rows}.values())
    old = {key: dict(row) for key, row in expected.items()}
    for row in given_rows:
        there = expected.setdefault((row["left"], row["right"]), dict(row))
        if there is not row and (limit is None or there["size"] < limit or there == row):
            there |= {name: row[name] for name in UPDATE}
    changed = sum(expected[key] != row for key, row in old.items())
    with place.maker() as session:
        where = None if limit is None else Entry.size < limit
        counts = rows.upsert(session, Entry, given_rows, key=["left", "right"], update=UPDATE, where=where)
        inserted = len(expected) - len(old)
        assert counts == (inserted, changed, number_of_keys(given_rows) - inserted - changed)
        session.commit()
        assert stored(session) == expected
