"""The pytest plugin: marks of the conformance suite, and fixtures for tests of code that uses locks.

In your `conftest.py`:

    pytest_plugins = ["takehold.testing.plugin"]

`locks` and `async_locks` are fresh, see each other, and fail a test that leaves something held or waiting.
`no_waiting` makes whatever would wait fail at once. Override `locks_url` to run on something else than memory.
`iceberg_catalog` is an Iceberg REST catalog in this process, up in a moment: no containers.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from takehold.core.record import HoldRecord
from takehold.locks._async import AsyncLocks
from takehold.locks._sync import Locks
from takehold.testing import faults

if TYPE_CHECKING:
    from takehold.server import Serving

__all__ = ["async_locks", "iceberg_catalog", "locks", "locks_url", "no_waiting"]

pytest.register_assert_rewrite("takehold.testing.suite", "takehold.testing.faces")


def pytest_configure(config: pytest.Config) -> None:
    """Make the marks of the suite known."""
    for mark in (
        "covers(*ids): the numbered behaviours this test shows",
        "requires(*names, **least): capabilities a backend must declare for this case",
        "slow: takes over a quarter of a second",
        "crash: starts real processes and kills them",
    ):
        config.addinivalue_line("markers", mark)


@pytest.fixture
def locks_url() -> str:
    """Which backend `locks` and `async_locks` are on: memory, a new one for each test."""
    return f"memory:test-{secrets.token_hex(8)}"


@pytest.fixture
def locks(locks_url: str) -> Iterator[Locks]:
    """A `Locks` object for one test."""
    with Locks(locks_url) as made:
        yield made
        refuse_leftovers(made.who())


@pytest.fixture
def async_locks(locks_url: str) -> Iterator[AsyncLocks]:
    """An `AsyncLocks` object for one test, in whatever loop it is used."""
    made = AsyncLocks(locks_url)
    yield made
    with Locks(locks_url) as watching:
        left = watching.who()
    asyncio.run(made.close())
    refuse_leftovers(left)


@pytest.fixture
def no_waiting() -> Iterator[None]:
    """Nobody waits during this test: what would, fails at once with `LockTimeout`."""
    with faults.no_waiting():
        yield


@pytest.fixture
def iceberg_catalog(tmp_path: Path) -> Iterator[Serving]:
    """An Iceberg REST catalog for one test: its `uri`, and its `properties` for PyIceberg's `load_catalog`."""
    from takehold.server import Serving

    with Serving(str(tmp_path / "lake")) as server:
        yield server


def refuse_leftovers(records: list[HoldRecord]) -> None:
    """Fail when somebody still holds or waits."""
    lines = [f"{record.key!r} {record.state} by {record.owner}" for record in records]
    if lines:
        pytest.fail("left behind at the end of the test: " + "; ".join(lines), pytrace=False)
