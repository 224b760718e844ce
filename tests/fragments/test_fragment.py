"""Fragments, their hashes and keys, and how documents are split."""

from __future__ import annotations

import random
import re
import time
from pathlib import Path

import pytest

import takehold
from takehold.fragments import Folder, Fragment, content_hash, content_key, json_lines, markdown, paragraphs
from takehold.fragments.fragment import locks_of
from tests.fragments.site import Site


@pytest.mark.covers("R-1")
@pytest.mark.parametrize(
    ("content", "digest", "key"),
    [
        ("", "99aa06d3014798d86001c324468d497f", -7374073936536430376),
        ("hello", "b5e9c1ad071b3e7fc779cfaa5e523818", -5338522934378283393),
    ],
)
def test_the_key_is_the_first_8_bytes_of_the_big_endian_digest(content: str, digest: str, key: int) -> None:
    fragment = Fragment("c", "d", "n", content)
    assert (fragment.hash, fragment.key) == (digest, key)


@pytest.mark.covers("R-2")
def test_every_key_is_a_bigint() -> None:
    rng = random.Random(6)
    keys = {content_key(content_hash(str(rng.random()))) for _ in range(2000)}
    assert all(-(2**63) <= key < 2**63 for key in keys)
    assert min(keys) < 0 < max(keys)
    assert len(keys) == 2000
    assert content_key("8" + "0" * 31) == -(2**63)
    assert content_key("7" + "f" * 31) == 2**63 - 1


@pytest.mark.covers("R-1", "R-2")
@pytest.mark.parametrize("content", ["hello", "one of the positive keys: 3"])
def test_the_number_reaches_postgres_unhashed_beside_the_identity(server_site: Site, content: str) -> None:
    fragment = Fragment("c", "d.md", "n", content)
    with takehold.Locks(server_site.url) as locks:
        hold = locks.lock(*locks_of(fragment.identity, fragment.hash)).try_acquire()
        assert hold is not None
        seen = (
            "SELECT pid, (classid::bigint << 32) | objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND granted"
        )
        rows = server_site.query(seen)
        assert len({pid for pid, _ in rows}) == 1
        assert len(rows) == 2
        assert fragment.key in {key for _, key in rows}
        # The statement of the source document, by another program.
        assert server_site.query("SELECT pg_try_advisory_lock(:key)", key=fragment.key) == [(False,)]
        hold.release()
        query = "SELECT pg_try_advisory_lock(:key), pg_advisory_unlock(:key)"
        assert server_site.query(query, key=fragment.key) == [(True, True)]


def test_a_markdown_document_is_split_by_heading() -> None:
    text = """---
title: Guide
# no heading
---
Intro.

# Install

Text.

## On Linux

```sh
# no heading either
```

## On a Mac

# Use ##

# Install

Again.
"""
    pieces = dict(markdown(text))
    assert list(pieces) == ["front", "install", "install/on-linux", "install/on-a-mac", "use", "install-2"]
    assert pieces["install/on-linux"] == "## On Linux\n\n```sh\n# no heading either\n```"
    assert pieces["use"] == "# Use ##"


def test_a_paragraph_keeps_its_name_when_others_come_and_go() -> None:
    before = dict(paragraphs("one\nmore\n\ntwo\n\n\nthree\n"))
    after = dict(paragraphs("zero\n\none\nmore\n\nthree\n\nthree"))
    assert len(before) == 3
    assert {name for name, text in before.items() if text != "two"} < set(after)
    assert len(after) == 4


def test_a_line_of_json_is_named_by_its_id_and_a_broken_one_by_its_number() -> None:
    pieces = dict(json_lines('{"id": 7, "a": 1}\n\n{"id": "x"}\n{"a": 2}\n[1]\n'))
    assert list(pieces)[:2] == ["7", "x"]
    assert len(pieces) == 4
    with pytest.raises(ValueError, match="line 2 is no JSON"):
        list(json_lines('{"id": 1}\n{oops\n'))


def test_a_long_name_is_cut_and_stays_its_own() -> None:
    names = [name for name, _ in markdown(f"# {'é' * 300}a\n\nx\n\n# {'é' * 300}b\n\ny\n")]
    assert len(set(names)) == 2
    assert all(len(name.encode()) <= 200 for name in names)


def test_a_folder_gives_what_it_has_a_splitter_for(tmp_path: Path) -> None:
    for name in ("b.md", "a.txt", "c.jsonl", "d.bin", ".hidden.md", "sub/e.MD", ".git/f.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("# T\n\nx")
    corpus = Folder(tmp_path, "docs")
    assert corpus.documents() == ["a.txt", "b.md", "c.jsonl", "sub/e.MD"]
    assert [fragment.identity for fragment in corpus.fragments("sub/e.MD")] == ["docs/sub/e.MD#t"]
    before = corpus.version("b.md")
    (tmp_path / "b.md").write_text("# T\n\ny")
    assert corpus.version("b.md") != before
    assert corpus.version("gone.md") is None


def test_a_hash_sign_in_a_name_does_not_make_two_of_one_identity() -> None:
    assert Fragment("c", "a#b", "n", "").identity != Fragment("c", "a", "b#n", "").identity


@pytest.mark.parametrize(
    ("corpus", "document", "name"), [("c", "d" * 1000, "n"), ("c", "d", "a\0b"), ("c", "d\udc80", "n")]
)
def test_an_identity_that_no_lock_takes_is_refused(corpus: str, document: str, name: str) -> None:
    with pytest.raises(takehold.UsageError):
        Fragment(corpus, document, name, "")


LONG_LINES = {
    "spaces in a heading": "# A{ }b",
    "spaces after a heading": "# A{ }",
    "hashes in a heading": "# A{#}b",
    "hashes and spaces": "# A{# }b",
    "a heading of spaces": "#{ }b",
    "fences": "{`}x",
    "blank lines": "a{\n }b",
    "spaces between lines": "a\n{ }b",
    "tabs": "# A{\t}#x",
    "words": "# {a-}!",
}


@pytest.mark.parametrize("line", LONG_LINES.values(), ids=LONG_LINES)
def test_no_line_takes_a_splitter_longer_than_its_length(line: str) -> None:
    before, again, after = re.split("[{}]", line)
    for size in (2_000, 200_000):  # the first is long enough for a slow pattern to be seen, and to end
        document = before + again * size + after
        began = time.monotonic()
        for splitter in (markdown, paragraphs):
            assert list(splitter(document))
        assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("#  One   word \t", "one-word"),
        ("   ## Two ##  ", "two"),
        ("# C#", "c"),
        ("# ", "untitled"),
        ("# #", "untitled"),
        ("#\tTab", "tab"),
        ("    # code", "front"),
        ("#none", "front"),
        ("####### seven", "front"),
    ],
)
def test_a_heading_is_named_by_its_words_alone(line: str, name: str) -> None:
    assert list(markdown(line)) == [(name, line)]
