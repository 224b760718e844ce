"""The pytest plugin, in small runs of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = 'pytest_plugins = ["takehold.testing.plugin"]\n'


def outcome(folder: Path, test: str, *options: str, conftest: str = CONFTEST) -> str:
    """Run one test module with pytest as a user would; everything it said."""
    (folder / "conftest.py").write_text(conftest)
    (folder / "test_it.py").write_text(test)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", *options]
    command += ["--strict-markers", "--rootdir", str(folder), str(folder)]
    environment = {**os.environ, "PYTEST_ADDOPTS": "", "TAKEHOLD_PROVE": ""}
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)
    return done.stdout + done.stderr


@pytest.mark.slow
class TestFixtures:
    def test_locks_and_async_locks_are_ready_and_see_each_other(self, tmp_path: Path) -> None:
        said = outcome(
            tmp_path,
            """
import asyncio

def test_one(locks, async_locks):
    async def main():
        async with async_locks.lock("k"):
            assert locks.lock("k").try_acquire() is None
    asyncio.run(main())
    with locks.lock("k", timeout=0):
        pass

def test_another_one_begins_afresh(locks):
    assert locks.who() == []
""",
        )
        assert "2 passed" in said

    def test_a_test_that_leaves_something_held_fails_and_says_where(self, tmp_path: Path) -> None:
        said = outcome(
            tmp_path,
            """
kept = []

def test_sync(locks):
    kept.append(locks.lock("orders/42").acquire())

def test_async(async_locks):
    import asyncio
    async def main():
        kept.append(await async_locks.lock("orders/43").acquire())
    asyncio.run(main())
""",
        )
        assert "2 passed, 2 errors" in said
        assert "left behind at the end of the test: 'orders/42' held by" in said
        assert "left behind at the end of the test: 'orders/43' held by" in said
        assert "test_it.py:5" in said

    def test_nobody_waits_with_no_waiting(self, tmp_path: Path) -> None:
        said = outcome(
            tmp_path,
            """
import pytest, takehold
from takehold.testing import busy

def test_it(locks, no_waiting):
    with busy(locks, "k"), pytest.raises(takehold.LockTimeout):
        locks.lock("k", timeout=3600).acquire()
""",
        )
        assert "1 passed" in said

    def test_the_place_can_be_changed(self, tmp_path: Path) -> None:
        said = outcome(
            tmp_path,
            """
import pytest

@pytest.fixture
def locks_url(tmp_path):
    return f"file:{tmp_path}/locks"

def test_it(locks, tmp_path):
    with locks.lock("k"):
        assert (tmp_path / "locks" / "format").exists()
""",
        )
        assert "1 passed" in said


SUITE = """
import pytest
from takehold.testing.suite import *

@pytest.fixture
def backend_url():
    return "memory:somebody"
"""

LYING = """
import pytest
from takehold.backends.memory import MemoryBackend
from takehold.core.backend import Capabilities
from takehold.testing.suite import *

class Mine(MemoryBackend):
    capabilities = Capabilities(across="process", waiting="local", shared=False, evict="none")

@pytest.fixture
def backend_url():
    return Mine("mine")
"""


@pytest.mark.slow
class TestSuite:
    def test_a_third_party_runs_it_with_one_import_and_one_fixture(self, tmp_path: Path) -> None:
        """On one place for all tests: their namespaces keep them apart."""
        said = outcome(tmp_path, SUITE, "-k", "TestExclusion or TestOrder or TestEvict")
        assert "failed" not in said
        assert "error" not in said
        assert " passed" in said

    def test_what_a_backend_does_not_declare_is_skipped(self, tmp_path: Path) -> None:
        said = outcome(tmp_path, LYING, "-rs", "-k", "TestExclusion or TestEvict or TestTrees")
        assert "failed" not in said
        assert "does not declare shared" in said
        assert "does not declare evict" in said
        assert " passed" in said

    def test_a_backend_that_lets_two_in_does_not_pass(self, tmp_path: Path) -> None:
        """One that forgets its locks: every `Locks` object is alone in the world. Failures are explained."""
        broken = SUITE.replace('return "memory:somebody"', 'return "memory:"')
        said = outcome(tmp_path, broken, "-k", "two_locks_objects")
        assert "2 failed" in said
        assert "where" in said
        assert "try_acquire" in said
