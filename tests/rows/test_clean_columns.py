"""`rows.clean.fit_column` and `records`: lengths come from the model, and every cut is told."""

from __future__ import annotations

import enum
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import JSON, Enum, ForeignKey, LargeBinary, String, Text, insert, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship, synonym
from sqlalchemy.types import TypeDecorator

from takehold import UsageError
from takehold.rows import clean
from takehold.rows.clean import Event
from tests.rows.places import Place


class Base(DeclarativeBase):
    pass


class Shouted(TypeDecorator[str]):
    """A type of the application's own."""

    impl = String
    cache_ok = True


class State(enum.Enum):
    NEW = "new"


class Document(Base):
    __tablename__ = "documents"
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str] = mapped_column("document_title", String(5))
    body: Mapped[str] = mapped_column(Text)
    shouted: Mapped[str] = mapped_column(Shouted(4))
    state: Mapped[State] = mapped_column(Enum("new", "\U0001f369", name="state"))
    raw: Mapped[bytes] = mapped_column(LargeBinary(2))
    facts: Mapped[Any] = mapped_column(JSON)
    heading: Mapped[str] = synonym("title")
    pages: Mapped[list[Page]] = relationship()


class Page(Base):
    __tablename__ = "pages"
    id: Mapped[int] = mapped_column(primary_key=True)
    document_id: Mapped[int] = mapped_column(ForeignKey("documents.id"))


class Letter(Document):
    __tablename__ = "letters"
    id: Mapped[int] = mapped_column(ForeignKey("documents.id"), primary_key=True)
    sender: Mapped[str] = mapped_column(String(3))


# -- one value ----------------------------------------------------------------------------------------------


@pytest.mark.covers("N-16", "N-22")
@pytest.mark.parametrize("column", [Document.title, (Document, "title"), Letter.title, (Letter, "title")])
def test_a_text_is_cut_to_the_length_of_its_column(column: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert clean.fit_column(column, "abcdefg") == "abcde"
    assert caplog.messages == ["documents.title truncated: 7 → 5"]
    assert caplog.records[0].levelname == "WARNING"


@pytest.mark.covers("N-16")
@pytest.mark.parametrize("value", ["", "abcd", "abcde", "漢漢漢漢漢", "\U0001f369" * 5])
def test_a_text_of_the_full_length_is_unchanged(value: str, caplog: pytest.LogCaptureFixture) -> None:
    assert clean.fit_column(Document.title, value) is value
    assert not caplog.records


@pytest.mark.covers("N-16")
def test_the_length_is_that_of_the_model_wherever_it_is_declared() -> None:
    assert clean.fit_column(Document.heading, "abcdefg") == "abcde"
    assert clean.fit_column(Document.shouted, "abcdefg") == "abcd"
    assert clean.fit_column(Letter.sender, "abcdefg") == "abc"
    assert clean.fit_column(Document.__table__.c.document_title, "abcdefg") == "abcde"


@pytest.mark.covers("N-16")
@pytest.mark.parametrize("value", [None, 1234567, b"abcdefg", ["abcdefg"] * 9])
def test_what_is_no_text_is_not_cut(value: object) -> None:
    assert clean.fit_column(Document.title, value) is value


@pytest.mark.covers("N-16")
@pytest.mark.parametrize("name", ["body", "nothing", "pages", "metadata", "facts", "__tablename__"])
def test_a_column_without_a_length_or_that_is_no_column_takes_everything(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert clean.fit_column((Document, name), "abcdefg" * 20) == "abcdefg" * 20
    assert clean.fit_column((dict, name), "abcdefg") == "abcdefg"
    assert not caplog.records


@pytest.mark.covers("N-16")
def test_a_member_of_an_enum_is_never_cut_to_another_one(caplog: pytest.LogCaptureFixture) -> None:
    assert clean.fit_column(Document.state, "newer") == "newer"
    assert not caplog.records


@pytest.mark.covers("N-16")
def test_something_that_is_no_column_is_refused_before_there_is_a_loss() -> None:
    wrong: Any = "title"
    calls: list[Callable[[], object]] = [
        lambda: clean.fit_column(wrong, None),
        lambda: clean.text("plain", column=wrong),
        lambda: clean.fit_properties({}, column=wrong),
    ]
    for call in calls:
        with pytest.raises(UsageError, match=r"Model\.column or \(Model, 'column'\)"):
            call()


@pytest.mark.covers("N-24")
def test_a_cut_is_told(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Event] = []
    clean.fit_column(Document.title, "abcdefg", notify=told.append)
    assert told == [
        {
            "eventType": "WARNING",
            "kind": "truncated",
            "table": "documents",
            "column": "title",
            "before": 7,
            "after": 5,
            "count": 1,
        }
    ]
    assert len(caplog.records) == 1


# -- rows ---------------------------------------------------------------------------------------------------


@pytest.mark.covers("N-16", "N-17", "N-24", "N-25")
def test_rows_are_cleaned_then_fitted_with_one_event_per_column_and_kind(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Event] = []
    rows = [
        {"id": 1, "title": "abc\U0001f369de", "body": "\U0001f600" * 2},
        {"id": 2, "title": "<nil>", "body": "x" * 100},
        {"id": 3, "title": "abcdefg", "shouted": "\ud800bcdefg"},
        {"id": 4, "title": "12345678", "body": None},
    ]
    before = [dict(row) for row in rows]
    assert clean.records(Document, rows, notify=told.append) == [
        {"id": 1, "title": "abcde", "body": ""},
        {"id": 2, "title": None, "body": "x" * 100},
        {"id": 3, "title": "abcde", "shouted": "?bcd"},
        {"id": 4, "title": "12345", "body": None},
    ]
    assert rows == before, "the caller's rows are the caller's"
    assert [(event["column"], event["kind"], event["before"], event["after"], event["count"]) for event in told] == [
        ("title", "stripped", 6, 5, 1),
        ("body", "stripped", 2, 0, 1),
        ("title", "truncated", 15, 10, 2),
        ("shouted", "replaced", 7, 6, 1),
        ("shouted", "truncated", 7, 4, 1),
    ]
    assert len(caplog.records) == len(told)
    assert "documents.title truncated: 15 → 10 in 2 values" in caplog.messages


@pytest.mark.covers("N-16")
def test_what_belongs_to_no_text_column_stays_as_it_is() -> None:
    row = {"state": "\U0001f369", "facts": "\U0001f369", "raw": b"abc", "nothing": "\U0001f369<nil>", "pages": "<nil>"}
    assert clean.records(Document, [row]) == [row]


@pytest.mark.covers("N-25")
def test_rows_can_keep_four_byte_characters() -> None:
    assert clean.records(Document, [{"title": "\U0001f369"}], four_byte="keep") == [{"title": "\U0001f369"}]


@pytest.mark.covers("N-24")
def test_losses_are_told_although_the_run_breaks_off() -> None:
    told: list[Event] = []
    rows: list[Any] = [{"title": "abcdefg"}, None]
    with pytest.raises(AttributeError):
        clean.records(Document, rows, notify=told.append)
    assert [event["kind"] for event in told] == ["truncated"]


def test_no_rows_are_no_rows() -> None:
    assert clean.records(Document, []) == []


# -- a table that is as narrow as its charset ----------------------------------------------------------------


class Narrow(DeclarativeBase):
    pass


class Exhibit(Narrow):
    __tablename__ = "exhibits"
    __table_args__ = {"mysql_charset": "utf8mb3"}  # noqa: RUF012
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str | None] = mapped_column(String(5))
    properties: Mapped[str | None] = mapped_column(Text)


@pytest.mark.slow
@pytest.mark.covers("N-16", "N-18", "N-19", "N-22")
@pytest.mark.parametrize("place", ["mariadb"], indirect=True)
def test_mariadb_stores_unchanged_what_it_refused_before(place: Place) -> None:
    place.fresh(Narrow)
    rows: list[dict[str, Any]] = [
        {"id": 1, "title": "\U0001f369 a", "properties": None},
        {"id": 2, "title": "漢漢漢漢漢漢", "properties": None},
        {"id": 3, "title": None, "properties": clean.yaml_json({"a": "x" * 65_535, "b": "é"})},
    ]
    for row in rows:
        with pytest.raises(DBAPIError), place.engine.begin() as connection:
            connection.execute(insert(Exhibit), [row])
    fitted = clean.records(Exhibit, rows[:2])
    full = {"a": "x" * (65_535 - len(clean.yaml_json({"a": ""})))}
    fitted += [{"id": 3, "title": None, "properties": clean.fit_properties(full)}]
    fitted += [{"id": 4, "title": None, "properties": clean.fit_properties({**full, "b": "é"})}]
    assert len(fitted[2]["properties"]) == 65_535
    with place.engine.begin() as connection:
        connection.execute(insert(Exhibit), fitted)
        stored = connection.execute(select(Exhibit.id, Exhibit.title, Exhibit.properties).order_by(Exhibit.id))
        assert [row._asdict() for row in stored] == fitted


# -- the progress bar ---------------------------------------------------------------------------------------


def test_a_bar_is_drawn_when_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    clean.texts(["a"] * 25_000, progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "25000/25000" in err


def test_a_bar_without_rich_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with pytest.raises(UsageError, match=r"takehold\[rich\]"):
        clean.texts(["a"], progress=True)
    assert clean.texts(["a"]) == ["a"]


SLOW_RUN = """
import sys, time
from takehold.rows import clean

def values(seconds):
    for number in range(30_000):
        if number == 10_000:
            time.sleep(seconds)
        yield "a"

clean.texts(values(float(sys.argv[1])))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("seconds", "drawn"), [("0.6", True), ("0", False)])
def test_on_a_terminal_only_a_long_run_draws(seconds: str, drawn: bool) -> None:
    ours, theirs = pty.openpty()
    try:
        subprocess.run([sys.executable, "-c", SLOW_RUN, seconds], stderr=theirs, check=True, timeout=60)
        os.write(theirs, b"the end")
        assert (b"cleaning" in os.read(ours, 65_536)) is drawn
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.slow
def test_without_a_terminal_not_even_a_long_run_draws() -> None:
    run = [sys.executable, "-c", SLOW_RUN, "0.6"]
    done = subprocess.run(run, capture_output=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == (b"", b"")
