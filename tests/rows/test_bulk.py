"""Many rows at once: what is missing, and what is new or changed."""

from __future__ import annotations

import enum
import logging
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import DateTime, ForeignKey, Index, LargeBinary, String, UniqueConstraint, event, func, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import JSON

from takehold import UsageError, rows
from takehold.rows.dialects import Trouble, trouble_of
from tests.lanes import scaled
from tests.rows.faces import Face, Handle
from tests.rows.places import Place

pytestmark = pytest.mark.slow

EARLIER, LATER = datetime(2020, 1, 1, tzinfo=UTC), datetime(2024, 5, 5, tzinfo=UTC)


class Base(DeclarativeBase):
    """Of the tables here."""


class Owner(Base):
    __tablename__ = "owner"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class Colour(enum.Enum):
    RED = "r"
    BLUE = "b"


class Item(Base):
    """Everything that a column can have."""

    __tablename__ = "item"
    __table_args__ = (UniqueConstraint("shelf", "place"), Index("by_serial", "serial", unique=True))
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column("called", String(20), unique=True)
    shelf: Mapped[int | None]
    place: Mapped[int | None]
    serial: Mapped[int | None]
    size: Mapped[int]
    owner_id: Mapped[int | None] = mapped_column(ForeignKey("owner.id"))
    note: Mapped[str | None] = mapped_column(String(40))
    colour: Mapped[Colour | None]
    extra: Mapped[Any] = mapped_column(JSON, default=lambda: {"made": "here"})
    raw: Mapped[bytes | None] = mapped_column(LargeBinary(20))
    state: Mapped[str] = mapped_column(String(10), server_default="new")
    made_at: Mapped[datetime] = mapped_column(DateTime, default=lambda: EARLIER.replace(tzinfo=None))
    changed_at: Mapped[datetime | None] = mapped_column(DateTime, onupdate=lambda: LATER.replace(tzinfo=None))
    changes: Mapped[int] = mapped_column(default=0, onupdate=text("item.changes + 1"))


class Plain(Base):
    """Without `onupdate`, which takes another way."""

    __tablename__ = "plain"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(20), unique=True)
    size: Mapped[int]
    note: Mapped[str | None] = mapped_column(String(40))


class Loud(String):
    """Of the application: it has its own way to the database."""

    cache_ok = True

    def bind_processor(self, dialect: Any) -> Any:
        return lambda value: value and value.upper()


class Weighed(Base):
    __tablename__ = "weighed"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    weight: Mapped[float]
    shout: Mapped[str] = mapped_column(Loud(20))


class Kind(Base):
    __tablename__ = "kind"
    colour: Mapped[Colour] = mapped_column(primary_key=True)
    type: Mapped[str] = mapped_column(String(10))
    __mapper_args__ = {"polymorphic_on": "type", "polymorphic_identity": "kind"}  # noqa: RUF012


class Special(Kind):
    __mapper_args__ = {"polymorphic_identity": "special"}  # noqa: RUF012


@contextmanager
def statements(face: Face) -> Iterator[list[str]]:
    """What the face's engine sends meanwhile."""
    seen: list[str] = []

    def note(_: Any, __: Any, statement: str, *rest: Any) -> None:
        seen.append(statement)

    event.listen(face.engine, "before_cursor_execute", note)
    yield seen
    event.remove(face.engine, "before_cursor_execute", note)


def plain(names: str, size: int = 1) -> list[dict[str, Any]]:
    return [{"name": name, "size": size} for name in names]


# -- what is missing -------------------------------------------------------------------------------------------


@pytest.mark.covers("N-13", "N-4")
def test_only_what_is_missing_is_inserted_and_a_second_time_nothing(face: Face, place: Place) -> None:
    place.fresh(Base)
    with face.session() as s:
        assert s.run(rows.insert_missing, Plain, plain("bd")) == (2, 0)
        assert s.run(rows.insert_missing, Plain, plain("abcd", 2)) == (2, 2)
        s.commit()
        assert s.run(rows.insert_missing, Plain, plain("abcd", 3)) == (0, 4)
        assert dict(s.execute(select(Plain.name, Plain.size)).all()) == {"a": 2, "b": 1, "c": 2, "d": 1}


@pytest.mark.covers("N-13")
def test_all_rows_go_in_one_statement_and_the_log_says_how_many(
    face: Face, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.fresh(Base)
    caplog.set_level(logging.INFO, "takehold.rows")
    with face.session() as s, statements(face) as seen:
        s.run(rows.insert_missing, Plain, plain("a"))
        seen.clear()
        assert s.run(rows.insert_missing, Plain, [*plain("abcdefgh"), *plain("a", 5)]) == rows.Inserted(7, 2)
        assert sum("INSERT" in one for one in seen) == 1
        assert not any("IGNORE" in one for one in seen)
    assert caplog.messages[-1] == "Attempted 9 rows of plain: 7 inserted, 2 skipped"


@pytest.mark.covers("N-13")
def test_no_rows_send_no_statement(face: Face, place: Place) -> None:
    place.fresh(Base)
    with face.session() as s, statements(face) as seen:
        assert s.run(rows.insert_missing, Plain, []) == (0, 0)
        assert s.run(rows.insert_missing, Plain, iter(())) == (0, 0)
        assert s.run(rows.upsert, Plain, [], key="name", update="size") == (0, 0, 0)
        assert seen == []


@pytest.mark.covers("N-13", "N-22")
def test_a_row_with_none_in_its_key_is_left_out_with_a_warning(
    face: Face, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.fresh(Base)
    batch = [{"name": str(place), "shelf": 1, "place": place, "size": 1} for place in (1, None, 2)]
    with face.session() as s:
        assert s.run(rows.insert_missing, Item, batch, key=["shelf", "place"]) == (2, 1)
        assert s.run(rows.insert_missing, Item, batch[1:2], key=["shelf", "place"]) == (0, 1)
        assert s.scalar(select(func.count()).select_from(Item)) == 2
    assert caplog.messages == ["Left out 1 rows of item with None in shelf, place"] * 2


@pytest.mark.covers("N-14", "N-22")
@pytest.mark.parametrize(
    "wrong",
    [{"size": None}, {"owner_id": 99}, {"name": "x" * 21}, {"name": "taken"}],
    ids=["null", "parent", "long", "other"],
)
def test_nothing_but_a_duplicate_of_the_key_is_forgiven(face: Face, place: Place, wrong: dict[str, Any]) -> None:
    if place.name == "sqlite" and len(wrong.get("name", "")) > 20:
        pytest.skip("has no length of texts")
    place.fresh(Base)
    good = {"name": "a", "serial": 1, "size": 1, "owner_id": None}
    with face.session() as s:
        s.run(rows.insert_missing, Item, [good | {"name": "taken", "serial": 9}], key="serial")
        s.commit()
        for act in (rows.insert_missing, rows.upsert):
            more = {} if act is rows.insert_missing else {"update": "size"}
            with pytest.raises(DBAPIError) as caught:
                s.run(act, Item, [good, good | {"serial": 2, "name": "b"} | wrong], key="serial", **more)
            assert trouble_of(caught.value) not in {Trouble.DEADLOCK, Trouble.SERIALIZATION}
            if "name" not in wrong or wrong["name"] == "taken":
                assert isinstance(caught.value, IntegrityError)
            s.rollback()
        assert s.scalars(select(Item.name)) == ["taken"]


@pytest.mark.covers("N-14", "N-22")
@pytest.mark.parametrize("wrong", [{"size": None}, {"name": "x" * 21}, {"note": "x" * 41}], ids=["null", "key", "long"])
def test_nothing_is_cut_in_a_model_of_plain_columns(face: Face, place: Place, wrong: dict[str, Any]) -> None:
    if place.name == "sqlite" and "size" not in wrong:
        pytest.skip("has no length of texts")
    place.fresh(Base)
    odd = {"name": '{"a\\\'b", NULL}', "size": 1, "note": ""}
    with face.session() as s:
        for act in (rows.insert_missing, rows.upsert):
            more = {} if act is rows.insert_missing else {"update": "note"}
            with pytest.raises(DBAPIError):
                s.run(act, Plain, [odd, {"name": "b", "size": 2, "note": None} | wrong], key="name", **more)
            s.rollback()
        assert s.run(rows.insert_missing, Plain, [odd], key="name").inserted == 1
        assert [tuple(one) for one in s.execute(select(Plain.name, Plain.note))] == [(odd["name"], "")]


@pytest.mark.covers("N-26")
@pytest.mark.parametrize("act", ["insert_missing", "upsert"])
def test_of_rows_with_the_same_key_the_last_one_counts(face: Face, place: Place, act: str) -> None:
    place.fresh(Base)
    batch = [*plain("ab", 1), *plain("ac", 2)]
    more: dict[str, Any] = {"key": "name"} if act == "insert_missing" else {"key": "name", "update": "size"}
    with face.session() as s:
        assert s.run(getattr(rows, act), Plain, batch, **more) == ((3, 1) if act == "insert_missing" else (3, 0, 0))
        assert dict(s.execute(select(Plain.name, Plain.size)).all()) == {"a": 2, "b": 1, "c": 2}
        with pytest.raises(UsageError, match=r"two rows have the same \(name\): \('a',\)"):
            s.run(getattr(rows, act), Plain, batch, duplicates="raise", **more)
        with pytest.raises(UsageError, match="two rows have the same"):
            s.run(getattr(rows, act), Plain, plain("a") * 2, duplicates="raise", **more)


@pytest.mark.covers("N-13")
def test_the_key_is_that_of_the_rows_and_has_to_be_named_among_several(face: Face, place: Place) -> None:
    place.fresh(Base)
    with face.session() as s:
        assert s.run(rows.insert_missing, Item, [{"name": "a", "size": 1}] * 2) == (1, 1)
        several = [{"name": "a", "serial": 4, "size": 1}]
        with pytest.raises(UsageError, match=r"several unique keys of Item: say key= \(name\) or \(serial\)"):
            s.run(rows.insert_missing, Item, several)
        with pytest.raises(UsageError, match="no unique key of Item is among"):
            s.run(rows.insert_missing, Item, [{"size": 1}])
        with pytest.raises(UsageError, match=r"\(size\) is no unique key of Item"):
            s.run(rows.insert_missing, Item, several, key="size")
        with pytest.raises(UsageError, match="'id', which the rows do not have"):
            s.run(rows.insert_missing, Item, several, key="id")
        with pytest.raises(UsageError, match="'called', which is no column of Item"):
            s.run(rows.insert_missing, Item, [{"called": "a"}])
        with pytest.raises(UsageError, match="in some of them only: size"):
            s.run(rows.insert_missing, Item, [{"name": "a", "size": 1}, {"name": "b"}])
        with pytest.raises(UsageError, match='"last" or "raise"'):
            s.run(rows.insert_missing, Item, several, key="name", duplicates="first")
        with pytest.raises(UsageError, match="to change none"):
            s.run(rows.upsert, Item, several, key="name", update=[])
        with pytest.raises(UsageError, match=r"None in \(name\)"):
            s.run(rows.upsert, Plain, [{"name": None, "size": 1}], key="name", update="size")


@pytest.mark.covers("N-13")
def test_defaults_and_types_work_as_for_an_object(face: Face, place: Place) -> None:
    place.fresh(Base)
    with face.session() as s:
        batch = [{"name": "a", "size": 1, "colour": Colour.BLUE, "raw": b"\0\xff"}]
        assert s.run(rows.insert_missing, Item, batch) == (1, 0)
        found = s.scalars(select(Item))[0]
        assert (found.state, found.extra, found.colour, found.raw) == ("new", {"made": "here"}, Colour.BLUE, b"\0\xff")
        assert (found.made_at, found.changed_at, found.changes) == (EARLIER.replace(tzinfo=None), None, 0)
        kinds = [{"colour": one} for one in (Colour.RED, Colour.BLUE)]
        assert s.run(rows.insert_missing, Special, kinds) == (2, 0)
        assert set(s.scalars(select(Special.type))) == {"special"}


def test_what_was_pending_is_there_for_the_rows_to_refer_to(face: Face, place: Place) -> None:
    place.fresh(Base)
    with face.session() as s:
        s.add(Owner(id=7))
        assert s.run(rows.insert_missing, Item, [{"name": "a", "size": 1, "owner_id": 7}]) == (1, 0)


@pytest.mark.covers("N-13", "N-26")
def test_more_rows_than_a_statement_takes_are_cut_and_counted(face: Face, place: Place) -> None:
    place.fresh(Base)
    batch = [{"name": f"{number:05}", "size": number} for number in range(12_000)]
    random.Random(1).shuffle(batch)
    with face.session() as s:
        assert s.run(rows.insert_missing, Plain, batch[::2]) == (6_000, 0)
        assert s.run(rows.insert_missing, Plain, batch) == (6_000, 6_000)
        changed = [row | {"size": -1} if number % 3 else row for number, row in enumerate(batch)]
        assert s.run(rows.upsert, Plain, changed, key="name", update="size") == (0, 8_000, 4_000)
        assert s.scalar(select(func.count()).where(Plain.size == -1)) == 8_000


@pytest.mark.covers("N-13", "N-27")
def test_values_of_several_python_types_and_types_of_the_application_are_stored_as_they_are_by_add(
    face: Face, place: Place
) -> None:
    place.fresh(Base)
    with face.session() as s:
        mixed = [{"id": 1, "weight": 1.5, "shout": "a"}, {"id": 2, "weight": 2, "shout": "b"}]
        assert s.run(rows.insert_missing, Weighed, mixed, key="id") == (2, 0)
        assert s.run(rows.upsert, Weighed, mixed, key="id", update=["weight", "shout"]) == (0, 0, 2)
        s.add(Weighed(id=3, weight=3, shout="c"))
        s.flush()
        found = [tuple(one) for one in s.execute(select(Weighed.weight, Weighed.shout).order_by(Weighed.id))]
        assert found in ([(1.5, "A"), (2.0, "B"), (3.0, "C")], [(1.5, "a"), (2.0, "b"), (3.0, "c")])


# -- new or changed --------------------------------------------------------------------------------------------


@pytest.mark.covers("N-27")
def test_an_upsert_tells_new_changed_and_unchanged_rows_apart(face: Face, place: Place) -> None:
    place.fresh(Base)
    with face.session() as s:
        first = [{"name": "a", "size": 1, "note": "x"}, {"name": "b", "size": 1, "note": None}]
        assert s.run(rows.upsert, Plain, first, key=["name"], update=["size", "note"]) == rows.Upserted(2, 0, 0)
        again = [{"name": "c", "size": 1, "note": None}, {"name": "b", "size": 1, "note": "y"}, first[0]]
        assert s.run(rows.upsert, Plain, again, key=["name"], update=["size", "note"]) == (1, 1, 1)
        s.commit()
        assert s.run(rows.upsert, Plain, again, key=["name"], update=["size", "note"]) == (0, 0, 3)
        assert [tuple(one) for one in s.execute(select(Plain.name, Plain.note).order_by(Plain.name))] == [
            ("a", "x"),
            ("b", "y"),
            ("c", None),
        ]


@pytest.mark.covers("N-27")
def test_the_counts_are_exact_beside_many_rows_and_beside_few(face: Face, place: Place) -> None:
    place.fresh(Base)
    with face.session() as s:
        there = [{"name": f"there {number:03}", "size": 1} for number in range(200)]
        for given in (there, there[:1]):  # of one row, 200 others are many
            s.run(rows.insert_missing, Plain, there, key="name")
            new = [{"name": f"new {len(given)}", "size": 1}, given[0] | {"size": 2}, *given[1:]]
            assert s.run(rows.upsert, Plain, new, key="name", update="size") == (1, 1, len(given) - 1)
            s.run(rows.upsert, Plain, there, key="name", update="size")


@pytest.mark.covers("N-27")
def test_onupdate_is_applied_to_changed_rows_only_and_the_rest_is_left_alone(face: Face, place: Place) -> None:
    place.fresh(Base)
    with face.session() as s:
        base = {"size": 1, "note": "n", "extra": {"a": 1}, "raw": b"a", "colour": Colour.RED}
        batch = [base | {"name": "a"}, base | {"name": "b"}]
        update = ["size", "extra", "raw", "colour"]
        assert s.run(rows.upsert, Item, batch, key="name", update=update) == (2, 0, 0)
        assert s.run(rows.upsert, Item, batch, key="name", update=update) == (0, 0, 2)
        batch[1] |= {"extra": {"a": 2}, "note": "not to be changed"}
        assert s.run(rows.upsert, Item, batch, key="name", update=update) == (0, 1, 1)
        a, b = s.scalars(select(Item).order_by(Item.name))
        assert (a.changes, a.changed_at, a.extra) == (0, None, {"a": 1})
        assert (b.changes, b.changed_at, b.extra, b.note) == (1, LATER.replace(tzinfo=None), {"a": 2}, "n")


@pytest.mark.covers("N-27")
def test_a_difference_that_a_collation_does_not_see_is_a_change(face: Face, place: Place) -> None:
    place.fresh(Base)
    with face.session() as s:
        s.run(rows.upsert, Plain, [{"name": "a", "size": 1, "note": "ab"}], key="name", update="note")
        for note in ("AB", "ÄB", "äb", "äb ", None, ""):
            one = [{"name": "a", "size": 1, "note": note}]
            assert s.run(rows.upsert, Plain, one, key="name", update="note") == (0, 1, 0)
            assert s.run(rows.upsert, Plain, one, key="name", update="note") == (0, 0, 1)
            assert s.scalars(select(Plain.note)) == [note]


@pytest.mark.covers("N-27")
@pytest.mark.parametrize("model", [Plain, Item])
def test_where_keeps_rows_as_they_are(face: Face, place: Place, model: Any) -> None:
    place.fresh(Base)
    more: dict[str, Any] = {"key": "name", "update": "size"}
    with face.session() as s:
        assert s.run(rows.upsert, model, plain("abc", 5), **more) == (3, 0, 0)
        newer = [*plain("a", 4), *plain("b", 6), *plain("d", 1)]
        assert s.run(rows.upsert, model, newer, where=lambda new: model.size < new.size, **more) == (1, 1, 1)
        assert s.run(rows.upsert, model, plain("abcd", 9), where=model.size == 5, **more) == (0, 2, 2)
        assert s.run(rows.upsert, model, plain("bd", 9), where=lambda new: new.name == "d", **more) == (0, 1, 1)
        assert dict(s.execute(select(model.name, model.size)).all()) == {"a": 9, "b": 6, "c": 9, "d": 9}


@pytest.mark.covers("N-27")
def test_an_upsert_waits_for_another_ones_row_and_counts_it_as_its_own_change(face: Face, place: Place) -> None:
    """The count is the database's: when the call began, the row was not there."""
    if place.name == "sqlite":
        pytest.skip("has one writer at a time")
    place.fresh(Base)
    more: dict[str, Any] = {"key": "name", "update": "size"}

    def second(s: Handle) -> Any:
        counts = s.run(rows.upsert, Plain, plain("abc", 2), **more)
        s.commit()
        return counts

    with face.session() as s:
        s.run(rows.upsert, Plain, plain("b", 1), **more)
        waiting = face.start(second)
        while not place.waiters():
            assert not waiting.done()
        s.commit()
        assert waiting.result(20) == (2, 1, 0)


# -- at the same time ------------------------------------------------------------------------------------------


KEYS, WRITERS, BATCHES, SIZE = 500, 4, 60, 400
FEW = 6  # a deadlock takes PostgreSQL a second to see


def write_batches(face: Face, act: Any, batches: int, seed: int = 1) -> Counter[Trouble]:
    """Every writer has its batches, in an order of its own; to some collations `a` and `A` are the same."""

    def body(s: Handle, number: int) -> Counter[Trouble]:
        generator, troubles = random.Random(seed + number), Counter[Trouble]()
        for _ in range(batches):
            names = [f"{generator.choice('aA')}{number:04}" for number in generator.sample(range(KEYS), SIZE)]
            try:
                act(
                    s,
                    [{"name": name, "size": generator.randrange(9)} for name in names],
                )
                s.commit()
            except DBAPIError as error:
                s.rollback()
                troubles[trouble_of(error)] += 1
        return troubles

    return sum(face.workers(WRITERS, body), Counter[Trouble]())


@pytest.mark.covers("N-26")
@pytest.mark.parametrize("act", ["insert_missing", "upsert"])
def test_writers_with_overlapping_keys_in_any_order_never_deadlock(face: Face, place: Place, act: str) -> None:
    place.fresh(Base)

    def write(s: Handle, batch: list[dict[str, Any]]) -> None:
        more: dict[str, Any] = {} if act == "insert_missing" else {"key": "name", "update": "size"}
        s.run(getattr(rows, act), Plain, batch, **more)

    assert write_batches(face, write, scaled(BATCHES)) == Counter()


@pytest.mark.covers("N-26")
def test_the_same_batches_unsorted_do_deadlock(face: Face, place: Place) -> None:
    """What the sorting is for."""
    if place.name == "sqlite" or face.name == "async":
        pytest.skip("has one writer at a time" if place.name == "sqlite" else "seen on the other face")
    place.fresh(Base)
    conflict = {"postgresql": "ON CONFLICT (name) DO UPDATE SET size = excluded.size"}
    tail = conflict.get(place.name, "ON DUPLICATE KEY UPDATE size = VALUES(size)")

    def write(s: Handle, batch: list[dict[str, Any]]) -> None:
        values = ", ".join(f"('{row['name']}', {row['size']})" for row in batch)
        s.execute(text(f"INSERT INTO plain (name, size) VALUES {values} {tail}"))

    troubles = write_batches(face, write, FEW)
    print(f"unsorted on {place.name}: {troubles[Trouble.DEADLOCK]} deadlocks in {WRITERS * FEW} statements")  # noqa: T201 - the number is the point
    assert troubles[Trouble.DEADLOCK] > 0
