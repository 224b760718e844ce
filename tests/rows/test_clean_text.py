"""`rows.clean.text` and `texts`: what a database cannot store is taken out, counted and told."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from takehold import UsageError
from takehold.rows import clean
from takehold.rows.clean import Event

LOGGER = "takehold.rows.clean"


class Base(DeclarativeBase):
    pass


class Document(Base):
    __tablename__ = "documents"
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str] = mapped_column(String(20))


def quiet(event: Event) -> None:
    """Nobody else has to know."""


@pytest.mark.covers("N-17")
@pytest.mark.parametrize("value", [None, 7, 1.5, True, b"\xf0\x9f\x8d\xa9", ["<nil>"], {"a": "\U0001f369"}])
def test_what_is_no_text_comes_back_as_it_is(value: object) -> None:
    assert clean.text(value) is value


@pytest.mark.covers("N-17")
def test_nil_is_none_only_when_it_is_the_whole_text() -> None:
    assert clean.text("<nil>") is None
    for near in (" <nil>", "<nil>\n", "<NIL>", "<nil", "<nil><nil>", "nil", ""):
        assert clean.text(near) == near


@pytest.mark.covers("N-17")
def test_nil_is_looked_for_before_anything_is_removed() -> None:
    assert clean.text("<nil>\U0001f369", notify=quiet) == "<nil>"
    assert clean.texts(["<nil>\U0001f369", "<nil>"], notify=quiet) == ["<nil>", None]


@pytest.mark.covers("N-18", "N-22")
@pytest.mark.parametrize("character", ["\U0001f369", "\U0001f600", "\U00010000", "\U0010ffff", "\U00020000"])
def test_every_character_beyond_the_first_plane_is_removed(character: str) -> None:
    assert clean.text(f"a{character}b{character}{character}") == "ab"
    assert clean.text(character) == ""


@pytest.mark.covers("N-18")
@pytest.mark.parametrize("value", ["é", "漢字", "\uffff", "", "\u202e", "naïve ☃ \x00 \x7f"])
def test_text_of_the_first_plane_is_kept(value: str, caplog: pytest.LogCaptureFixture) -> None:
    assert clean.text(value) == value
    assert not caplog.records


@pytest.mark.covers("N-17", "N-18")
def test_a_lone_surrogate_becomes_a_question_mark() -> None:
    assert clean.text("a\ud83db\udfff\U0001f369") == "a?b?"
    assert clean.text("a\ud83d\U0001f369", four_byte="keep") == "a?\U0001f369"


@pytest.mark.covers("N-25")
def test_four_byte_characters_can_be_kept(caplog: pytest.LogCaptureFixture) -> None:
    assert clean.text("a\U0001f369", four_byte="keep") == "a\U0001f369"
    assert clean.texts(["a\U0001f369"], four_byte="keep") == ["a\U0001f369"]
    assert not caplog.records


@pytest.mark.covers("N-25")
def test_another_word_for_four_byte_is_refused_also_for_a_text_that_has_none() -> None:
    with pytest.raises(UsageError, match="'strip' or 'keep'"):
        clean.text("a", four_byte="drop")  # type: ignore[call-overload]


@pytest.mark.covers("N-22", "N-24", "N-25")
def test_what_is_stripped_or_replaced_is_counted_logged_and_told(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Event] = []
    value = "ab\ud83d\U0001f369\U0001f600"
    assert clean.text(value, column=Document.title, notify=told.append) == "ab?"
    where = {"eventType": "WARNING", "table": "documents", "column": "title", "count": 1}
    assert told == [
        {**where, "kind": "replaced", "before": 5, "after": 4},
        {**where, "kind": "stripped", "before": 5, "after": 3},
    ]
    assert [(record.levelno, record.name) for record in caplog.records] == [(logging.WARNING, LOGGER)] * 2
    assert caplog.messages == [
        "documents.title: replaced 1 of 5 characters, not encodable, by ?",
        "documents.title: stripped 2 of 5 characters, beyond U+FFFF",
    ]


@pytest.mark.covers("N-25")
def test_a_text_of_no_column_is_told_without_names() -> None:
    told: list[Event] = []
    clean.text("\U0001f369", notify=told.append)
    assert [(event["table"], event["column"]) for event in told] == [(None, None)]


@pytest.mark.covers("N-24", "N-25")
def test_many_texts_are_one_event_per_kind(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Event] = []
    values = ["plain", "\U0001f369", None, "ab\U0001f600\U0001f600", "\ud83d", 5, "<nil>"]
    assert clean.texts(values, column=Document.title, notify=told.append) == ["plain", "", None, "ab", "?", 5, None]
    where = {"eventType": "WARNING", "table": "documents", "column": "title"}
    assert told == [
        {**where, "kind": "stripped", "before": 5, "after": 2, "count": 2},
        {**where, "kind": "replaced", "before": 1, "after": 0, "count": 1},
    ]
    assert caplog.messages[0] == "documents.title: stripped 3 of 5 characters, beyond U+FFFF in 2 values"
    assert len(caplog.messages) == 2


ANYTHING = (
    st.text(st.characters(), max_size=12) | st.sampled_from(["<nil>", "<nil>\U0001f369", "\ud800"]) | st.integers()
)


@pytest.mark.covers("N-17", "N-18")
@given(st.lists(ANYTHING), st.sampled_from(["strip", "keep"]))
def test_many_texts_are_cleaned_as_one_by_one_by_the_plain_words_of_the_rule(values: list[object], kept: str) -> None:
    def by_hand(value: object) -> object:
        if not isinstance(value, str):
            return value
        if value == "<nil>":
            return None
        encodable = value.encode("utf-8", "replace").decode("utf-8")
        return encodable if kept == "keep" else "".join(one for one in encodable if one <= "\uffff")

    expected = [by_hand(value) for value in values]
    assert clean.texts(values, four_byte=kept, notify=quiet) == expected  # type: ignore[arg-type]
    assert [clean.text(value, four_byte=kept, notify=quiet) for value in values] == expected  # type: ignore[call-overload]


@pytest.mark.covers("N-25")
@given(st.text(st.characters(), max_size=30))
def test_no_loss_is_silent_and_nothing_is_told_without_a_loss(value: str) -> None:
    told: list[Event] = []
    result = clean.text(value, notify=told.append)
    assert bool(told) == (result not in (value, None))
    assert sum(event["before"] - event["after"] for event in told) == sum(
        one > "\uffff" or "\ud800" <= one <= "\udfff" for one in value
    )


@pytest.mark.covers("N-17")
def test_texts_takes_an_iterator_longer_than_one_slice() -> None:
    assert clean.texts(str(number) for number in range(25_001)) == [str(number) for number in range(25_001)]
