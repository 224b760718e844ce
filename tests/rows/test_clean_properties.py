"""`rows.clean.fit_properties`: it always fits, keeps every smaller entry it can, and is deterministic."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from takehold import UsageError
from takehold.rows import clean
from takehold.rows.clean import Event

DUMPS = [clean.yaml_json, clean.json]


def size(document: str) -> int:
    return len(document.encode("utf-8", "surrogatepass"))


def weight(key: str, value: object) -> int:
    return size(json.dumps({key: value}, ensure_ascii=False))


def read(document: str, dumps: Callable[..., str]) -> dict[str, Any]:
    text = yaml.safe_load(document) if dumps is clean.yaml_json else document
    found: dict[str, Any] = json.loads(text)
    return found


def quiet(event: Event) -> None:
    """Nobody else has to know."""


# -- the document -------------------------------------------------------------------------------------------

# PyYAML reads no lone surrogates, and `text` leaves none.
WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["it's", '"', "\\", "\u2028", "\ufeff", "\x85 "]
)
MAPPINGS = st.dictionaries(WORDS, WORDS | st.integers() | st.none() | st.lists(WORDS, max_size=3), max_size=8)


@pytest.mark.covers("N-19")
@given(MAPPINGS)
def test_every_reader_of_yaml_finds_the_json_text(mapping: dict[str, Any]) -> None:
    document = clean.yaml_json(mapping)
    assert yaml.safe_load(document) == json.dumps(mapping, ensure_ascii=False)
    assert read(document, clean.yaml_json) == mapping


PRINTED = st.text(
    st.characters(min_codepoint=0x20, max_codepoint=0x7E) | st.sampled_from("é漢\U0001f369\n\t"), max_size=40
)


@pytest.mark.covers("N-19")
@given(st.dictionaries(PRINTED, PRINTED | st.integers(), max_size=8))
def test_the_document_is_what_pyyaml_writes(mapping: dict[str, Any]) -> None:
    text = json.dumps(mapping, ensure_ascii=False)
    assert clean.yaml_json(mapping) == yaml.safe_dump(text, allow_unicode=True, width=float("inf"))


@pytest.mark.covers("N-19")
def test_letters_are_written_as_they_are() -> None:
    assert clean.yaml_json({"é": "it's 漢"}) == """'{"é": "it''s 漢"}'\n"""
    assert clean.json({"é": "漢"}) == '{"é": "漢"}'


@pytest.mark.covers("N-19")
@pytest.mark.parametrize("dumps", DUMPS)
def test_at_the_limit_it_is_unchanged_and_one_byte_less_is_not(
    dumps: Callable[[Any], str], caplog: pytest.LogCaptureFixture
) -> None:
    mapping = {"title": "é漢", "body": "x" * 50}
    limit = size(dumps(mapping))
    assert clean.fit_properties(mapping, limit, dumps) == dumps(mapping)
    assert not caplog.records
    assert clean.fit_properties(mapping, limit - 1, dumps) == dumps({"title": "é漢"})


@pytest.mark.covers("N-19")
def test_the_limit_is_that_of_a_text_column_and_counts_bytes() -> None:
    frame = size(clean.yaml_json({"a": ""}))
    full = {"a": "漢" * ((65_535 - frame) // 3)}
    assert clean.fit_properties(full) == clean.yaml_json(full)
    assert clean.fit_properties({"a": full["a"] + "漢"}) == clean.yaml_json({})


# -- what is dropped ----------------------------------------------------------------------------------------


@pytest.mark.covers("N-20", "N-22")
def test_the_largest_go_first_and_the_short_ones_survive(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Event] = []
    mapping = {"ocr": "x" * 60_000, "from": "a", "thread": "y" * 40_000, "to": "b", "raw": "z" * 50_000}
    document = clean.fit_properties(mapping, notify=told.append)
    assert list(read(document, clean.yaml_json)) == ["from", "thread", "to"]
    assert caplog.messages == ["document_properties exceeded TEXT limit. Dropped 2/5 keys"]
    where = {"table": None, "column": None}
    assert told == [{"eventType": "WARNING", "kind": "dropped", **where, "before": 5, "after": 3, "count": 1}]
    assert list(mapping) == ["ocr", "from", "thread", "to", "raw"], "the caller's mapping is the caller's"


@pytest.mark.covers("N-20")
def test_an_entry_is_as_large_as_its_key_and_value_in_bytes() -> None:
    mapping = {"漢漢漢": "", "abcdef": ""}  # 3 letters are 9 bytes
    assert clean.fit_properties(mapping, 20, clean.json, notify=quiet) == '{"abcdef": ""}'


@pytest.mark.covers("N-21")
def test_a_single_entry_that_is_too_large_leaves_an_empty_document(caplog: pytest.LogCaptureFixture) -> None:
    assert clean.fit_properties({"a": "x" * 70_000}) == "'{}'\n"
    assert clean.fit_properties({"a": "x" * 70_000}, dumps=clean.json) == "{}"
    assert caplog.messages == ["document_properties exceeded TEXT limit. Dropped 1/1 keys"] * 2


@pytest.mark.covers("N-21")
def test_of_entries_of_one_size_the_later_name_goes_whatever_came_first() -> None:
    for names in ("abc", "cab", "bca"):
        document = clean.fit_properties(dict.fromkeys(names, "x"), 22, clean.json, notify=quiet)
        assert sorted(json.loads(document)) == ["a", "b"]
        assert "".join(json.loads(document)) == names.replace("c", ""), "what stays keeps its order"


@pytest.mark.covers("N-21")
def test_a_limit_that_not_even_an_empty_document_keeps_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing fits into 4 bytes: an empty document takes 5"):
        clean.fit_properties({"a": 1}, 4)


@pytest.mark.covers("N-19")
def test_a_type_that_only_the_callers_dumps_knows_is_measured_too() -> None:
    mapping = {"when": {1, 2}, "note": "x" * 90}
    document = clean.fit_properties(mapping, 50, lambda some: json.dumps(some, default=sorted), notify=quiet)
    assert document == '{"when": [1, 2]}'


@pytest.mark.covers("N-20")
def test_a_lone_surrogate_does_not_stop_the_measuring() -> None:
    mapping = {"a": "\ud800", "b": "x" * 90}
    assert clean.fit_properties(mapping, 50, notify=quiet) == clean.yaml_json({"a": "\ud800"})


@pytest.mark.covers("N-19", "N-20", "N-21")
@given(MAPPINGS, st.integers(5, 160), st.sampled_from(DUMPS), st.randoms(use_true_random=False))
def test_it_always_fits_keeps_every_smaller_entry_it_can_and_is_deterministic(
    mapping: dict[str, Any], limit: int, dumps: Callable[..., str], chance: random.Random
) -> None:
    told: list[Event] = []
    document = clean.fit_properties(mapping, limit, dumps, notify=told.append)
    kept = read(document, dumps)

    assert size(document) <= limit
    assert document == dumps({key: value for key, value in mapping.items() if key in kept})
    assert bool(told) == (kept != mapping)

    dropped = mapping.keys() - kept.keys()
    weights = {key: weight(key, mapping[key]) for key in mapping}
    assert max((weights[key] for key in kept), default=0) <= min((weights[key] for key in dropped), default=10**9)
    for smallest in dropped:
        if weights[smallest] == min(weights[key] for key in dropped):
            more = {key: value for key, value in mapping.items() if key in kept or key == smallest}
            fits = size(dumps(more)) <= limit
            # A tie is the only reason for which one of the smallest could have stayed.
            assert not fits or sum(weights[key] == weights[smallest] for key in mapping) > 1

    shuffled = list(mapping.items())
    chance.shuffle(shuffled)
    again = clean.fit_properties(dict(shuffled), limit, dumps, notify=quiet)
    assert read(again, dumps) == kept
    assert clean.fit_properties(mapping, limit, dumps, notify=quiet) == document


@pytest.mark.covers("N-20")
def test_twenty_thousand_entries_are_fitted_with_few_documents_written() -> None:
    written = 0

    def dumps(some: dict[str, Any]) -> str:
        nonlocal written
        written += 1
        return clean.json(some)

    mapping = {f"key {number}": number for number in range(20_000)}
    document = clean.fit_properties(mapping, dumps=dumps, notify=quiet)
    assert 65_500 < size(document) <= 65_535
    assert written < 30
