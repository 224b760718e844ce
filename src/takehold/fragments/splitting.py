"""From the text of a document to named pieces: Markdown by heading, text by paragraph, JSON lines by line.

A name must stay when the rest of the document changes: only then is only what changed extracted again.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias

from takehold.fragments.fragment import content_hash

__all__ = ["SPLITTERS", "Piece", "Splitter", "json_lines", "markdown", "paragraphs", "whole"]

Piece: TypeAlias = tuple[str, str]
"""Name and content."""
Splitter: TypeAlias = Callable[[str], Iterable[Piece]]

MOST_OF_A_NAME: Final = 200
# Anybody's documents: every pattern takes time in proportion to the text, so what follows a title is no part of it.
_HEADING: Final = re.compile(r" {0,3}(#{1,6})[ \t](.*)")
_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})")
_WORDS: Final = re.compile(r"\w+")
_BLANK: Final = re.compile(r"\n[ \t]*\n\s*")


def markdown(text: str) -> Iterator[Piece]:
    """One piece per heading, named by the path of headings: `install/on-linux`. What stands before is `front`."""
    names = _Names()
    path: list[tuple[int, str]] = []
    name, lines = "front", list[str]()
    for line, level, title in _headings(text):
        if level:
            yield from _piece(names, name, lines)
            path = [(above, slug) for above, slug in path if above < level]
            path.append((level, _slug(title)))
            name, lines = "/".join(slug for _, slug in path), []
        lines.append(line)
    yield from _piece(names, name, lines)


def _headings(text: str) -> Iterator[tuple[str, int, str]]:
    """Every line, and if it is a heading its level and title; a `#` in code or in the front matter is none."""
    fence: str | None = None
    front = False
    for number, line in enumerate(text.splitlines()):
        if number == 0 and line.rstrip() == "---":
            front = True
        elif front:
            front = line.rstrip() not in ("---", "...")
        elif fence is not None:
            bare = line.strip()
            if len(bare) >= len(fence) and set(bare) == {fence[0]}:
                fence = None
        elif found := _FENCE.match(line):
            fence = found[1]
        elif found := _HEADING.match(line):
            yield line, len(found[1]), found[2].rstrip(" \t").rstrip("#").strip(" \t")
            continue
        yield line, 0, ""


def _piece(names: _Names, name: str, lines: list[str]) -> Iterator[Piece]:
    content = "\n".join(lines).strip("\n")
    if content.strip():
        yield names.new(name), content


def paragraphs(text: str) -> Iterator[Piece]:
    """One piece per paragraph. It is named by what it says, because it has no other name that would stay."""
    names = _Names()
    for paragraph in _BLANK.split(text.strip()):
        if paragraph:
            yield names.new(content_hash(paragraph)[:16]), paragraph


def json_lines(text: str, id: str = "id") -> Iterator[Piece]:
    """One piece per line, named by its field `id`, else by what it says. A line that is no JSON is an error."""
    names = _Names()
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            raise ValueError(f"line {number} is no JSON: {error}") from error
        own = value.get(id) if isinstance(value, dict) else None
        name = content_hash(line)[:16] if own is None or isinstance(own, dict | list) else str(own)
        yield names.new(_short(name)), line.strip()


def whole(text: str) -> Iterator[Piece]:
    """The document as one piece."""
    yield "whole", text


SPLITTERS: Final[dict[str, Splitter]] = {
    ".md": markdown,
    ".markdown": markdown,
    ".txt": paragraphs,
    ".jsonl": json_lines,
    ".ndjson": json_lines,
}
"""What `Folder` does with which file, unless told."""


class _Names:
    """Gives each name once: the second gets `-2`."""

    def __init__(self) -> None:
        self._given: Counter[str] = Counter()

    def new(self, name: str) -> str:
        name = _short(name)
        self._given[name] += 1
        while (number := self._given[name]) > 1:
            longer = f"{name}-{number}"
            if not self._given[longer]:
                self._given[longer] += 1
                return longer
            self._given[name] += 1
        return name


def _slug(title: str) -> str:
    return "-".join(_WORDS.findall(title.lower())) or "untitled"


def _short(name: str) -> str:
    """A name of bounded length, still its own: what is cut off is in its hash."""
    name = name.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
    if len(name.encode()) <= MOST_OF_A_NAME:
        return name
    kept = name.encode()[: MOST_OF_A_NAME - 17].decode(errors="ignore")
    return f"{kept}-{content_hash(name)[:16]}"
