"""Races, enumerated: one operation at every step of another, with locks that hold and with locks that do not."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest

from tests.iceberg.race import Race
from tests.lanes import scaled


def one_inside_the_other(names: tuple[str, str], *, honest: bool, impatient: bool) -> int:
    """The second at every step of the first, whole; then both cut in two at every pair of steps."""
    first, second = names
    steps = Race(names, honest=honest, impatient=impatient).run([])
    count = 1
    for before in range(steps[first] + 1):
        Race(names, honest=honest, impatient=impatient).run([first] * before + [second] * 2000)
        count += 1
    for before, then in _some(itertools.product(range(1, steps[first] + 1), range(1, steps[second] + 1)), scaled(120)):
        Race(names, honest=honest, impatient=impatient).run([first] * before + [second] * then + [first] * 2000)
        count += 1
    return count


def _some(pairs: Iterator[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    """Evenly spread, all of them in `make prove`."""
    every = list(pairs)
    return every[:: max(1, len(every) // most)]


PAIRS = [
    pytest.param(pair, marks=pytest.mark.covers(*ids), id=" x ".join(pair))
    for ids, pair in [
        (("M-28",), ("commit a", "transact ab")),
        (("M-33",), ("transact ab", "commit a")),
        (("M-33",), ("transact ab", "commit b")),
        (("M-31",), ("transact ab", "transact ba")),
        (("M-31",), ("transact hot", "transact ba")),
        (("M-33",), ("transact hot", "commit a")),
        (("M-33",), ("commit b", "transact hot")),
        (("M-33",), ("transact hot", "load both")),
        (("M-47",), ("transact hot", "rename a to c")),
        (("M-47",), ("transact hot", "drop a")),
        (("M-33",), ("transact ab", "load both")),
        (("M-47",), ("create in empty", "delete empty")),
        (("M-47",), ("delete empty", "create in empty")),
        (("M-47",), ("delete empty", "stage in empty")),
        (("M-47",), ("rename a to other", "delete empty")),
        (("M-47",), ("delete empty", "rename a to other")),
        (("M-47",), ("create in bare", "delete bare")),
        (("M-47",), ("delete bare", "create in bare")),
        (("M-47",), ("drop a", "commit a")),
        (("M-47",), ("commit a", "drop a")),
        (("M-47",), ("drop a", "transact ab")),
        (("M-47",), ("transact ab", "drop a")),
        (("M-47",), ("rename a to c", "transact ab")),
        (("M-47",), ("transact ab", "rename a to c")),
        (("M-47",), ("unregister a", "commit a")),
        (("M-47",), ("overwrite a", "commit a")),
        (("M-47",), ("commit a", "overwrite a")),
        (("M-47",), ("overwrite a", "transact ab")),
        (("M-47",), ("overwrite a", "drop a")),
        (("M-47",), ("rename a to c", "overwrite a")),
        (("M-47",), ("overwrite a", "transact hot")),
        (("M-47",), ("overwrite a", "overwrite a again")),
        (("M-47",), ("register c", "register d")),
        (("M-47",), ("register c", "overwrite a")),
        (("M-47",), ("overwrite a", "register c")),
        (("M-47",), ("register c", "create c")),
        (("M-47",), ("rename a to c", "register c")),
        (("M-26",), ("stage c", "stage c again")),
        (("M-26",), ("stage c", "create c")),
        (("M-26",), ("rename b to c", "stage c")),
        (("M-26",), ("stage c", "rename a to c")),
        (("M-40",), ("delete empty", "delete empty again")),
        (("M-40",), ("create empty", "delete empty")),
        (("M-50",), ("stage c and a", "stage c")),
        (("M-50",), ("stage c and a", "rename a to c")),
        (("M-50",), ("stage c and a", "drop a")),
        (("M-21",), ("rename a to c", "rename b to c")),
        (("M-21",), ("rename a to c", "rename a to d")),
        (("M-21",), ("rename a to c", "drop a")),
        (("M-21",), ("rename a to c", "commit a")),
        (("M-20",), ("create c", "create a")),
        (("M-18",), ("change empty", "delete empty")),
        (("M-15",), ("create bare", "delete bare")),
    ]
]


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("locks", ["kept", "lost", "lost, and nobody waits"])
def test_at_every_step_what_happens_is_what_some_order_gives(pair: tuple[str, str], locks: str) -> None:
    assert one_inside_the_other(pair, honest=locks == "kept", impatient=locks.endswith("waits")) > 5


CROWD = ("transact ab", "transact hot", "commit a", "transact ba", "load both", "rename a to c", "create c", "drop a")


@pytest.mark.slow
@pytest.mark.covers("M-31", "M-33", "M-37", "M-47", "M-50")
@pytest.mark.parametrize("locks", ["kept", "lost", "lost, and nobody waits"])
def test_of_three_at_once_what_happens_is_what_some_order_gives(locks: str) -> None:
    for seed in range(scaled(800)):
        rng = random.Random(seed)
        names = tuple(rng.sample(CROWD, 3))
        schedule = [name for _ in range(200) for name in [rng.choice(names)] * rng.randint(1, 12)]
        Race(names, honest=locks == "kept", impatient=locks.endswith("waits"), seed=seed).run(schedule)
