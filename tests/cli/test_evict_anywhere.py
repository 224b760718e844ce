"""``takehold evict`` wherever locks live: exactly the hold that was meant, and nothing of an owner that answers."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Processes, RunTakehold, ask, ids, is_free
from tests.cli.onlookers import prepared

pytestmark = [pytest.mark.crash, pytest.mark.covers("L-29")]


@pytest.fixture(params=["file", pytest.param("postgresql", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest, url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    return url if request.param == "file" else prepared(request.getfixturevalue("postgres_url"), monkeypatch)


@pytest.mark.parametrize("by", ["id", "key"])
def test_eviction_ends_one_hold_and_leaves_the_owners_others(
    takehold: RunTakehold, processes: Processes, url: str, by: str
) -> None:
    holder = processes.holder(url, "a", "b", "c")
    done = takehold("evict", *([ids(holder)[1]] if by == "id" else ["--key", "b"]))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"evicted 'b' ({ids(holder)[1]}) of ")
    assert is_free(url, "b")
    assert [ask(holder, key) for key in "abc"] == ["held", "lost", "held"]
    assert not is_free(url, "a")
    assert not is_free(url, "c")


def test_eviction_by_pid_takes_all_of_that_process_and_nothing_of_others(
    takehold: RunTakehold, processes: Processes, url: str
) -> None:
    first, second = processes.holder(url, "a", "b"), processes.holder(url, "c")
    done = takehold("evict", "--pid", str(first.pid), "--json")
    assert done.returncode == 0
    told = [(one["key"], one["gone"], one["terminated"]) for one in json.loads(done.stdout)]
    assert told == [("a", True, False), ("b", True, False)]
    assert [ask(first, key) for key in "ab"] == ["lost", "lost"]
    assert ask(second, "c") == "held"
    assert first.poll() is None


def test_terminate_does_not_end_an_owner_that_answers(takehold: RunTakehold, processes: Processes, url: str) -> None:
    holder = processes.holder(url, "a", "b")
    done = takehold("evict", "--key", "a", "--terminate", "--yes", "--json")
    assert done.returncode == 0
    assert [(one["key"], one["terminated"]) for one in json.loads(done.stdout)] == [("a", False)]
    assert [ask(holder, key) for key in "ab"] == ["lost", "held"]
