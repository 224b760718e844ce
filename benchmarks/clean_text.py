"""What does it cost to clean a short text?

Condition: one list of short strings, ASCII as most are, or one in four with é and 漢, or one in a hundred with an
emoji. By hand is a loop of `encode`, `decode` and `translate`, as the rule is written down, which tells nobody what it
removed; the other one replaces `translate` by a compiled pattern.

Bar: `clean.texts` at most twice the time of the first.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

from benchmarks.measure import Report, Scale, Work, at_most, conditions, cost_table, interleave, ratio
from takehold.rows import clean
from takehold.rows.clean import Event

OURS, HAND, PATTERN, ONE = (
    "clean.texts",
    "encode, decode, translate",
    "encode, decode, re.sub",
    "clean.text, one by one",
)
BEYOND = dict.fromkeys(range(0x10000, 0x110000))
SUB = re.compile("[\U00010000-\U0010ffff]+").sub


def answer(scale: Scale, directory: Path) -> Report:  # noqa: ARG001
    """Measure and judge."""
    # Every loss is logged; here nobody reads it.
    logging.getLogger("takehold.rows.clean").addHandler(logging.NullHandler())
    rounds, count = scale.of(7, 3), scale.of(1_000_000, 20_000)
    texts = [f"document {number} of the case" for number in range(count)]
    lists = {
        "ASCII": texts,
        "one in 4 with é and 漢": [f"{text} é漢" if number % 4 == 0 else text for number, text in enumerate(texts)],
        "one in 100 with an emoji": [
            f"{text} \U0001f369" if number % 100 == 0 else text for number, text in enumerate(texts)
        ],
    }
    samples = {name: interleave(_contenders(values), rounds=rounds, operations=count) for name, values in lists.items()}
    return Report(
        [cost_table(f"one text, {name}", of, OURS) for name, of in samples.items()],
        [
            at_most(f"cleaning texts, {name}, against {HAND}", ratio(of, OURS, HAND), 2, "x")
            for name, of in samples.items()
        ],
        conditions=conditions(None, (), rounds=rounds, texts=count),
    )


def _contenders(values: list[str]) -> dict[str, Work]:
    def ours(count: int) -> None:
        clean.texts(values[:count], notify=_nobody)

    def hand(count: int) -> None:
        [value.encode("utf-8", "replace").decode("utf-8").translate(BEYOND) for value in values[:count]]

    def pattern(count: int) -> None:
        [SUB("", value.encode("utf-8", "replace").decode("utf-8")) for value in values[:count]]

    def one(count: int) -> None:
        with clean.Summary(_nobody) as summary:
            [clean.text(value, notify=summary) for value in values[:count]]

    return {OURS: ours, ONE: one, HAND: hand, PATTERN: pattern}


def _nobody(event: Event) -> None:
    """Is told, and keeps it."""
