"""`examples/clickhouse_appends.py`: what it prints is so."""

from __future__ import annotations

import json

import pytest

from examples import clickhouse_appends

pytestmark = [pytest.mark.slow, pytest.mark.crash]


@pytest.mark.covers("A-13", "A-25")
def test_four_writers_of_which_one_is_killed_leave_whole_runs_only_with_the_lock(
    clickhouse_url: str, postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert clickhouse_appends.main([clickhouse_url, postgres_url, "--inserts", "2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    without, locked = report["without the lock"]["runs"], report["with the lock"]["runs"]
    assert len(without) > len(set(without)), "some insert is in pieces"
    assert len(locked) == len(set(locked))
    assert {"a1", "a2", "b1", "b2", "c1", "c2", "d1"} <= set(locked)
    blocks = report["with the lock"]["blocks"]
    assert sum(state == "finished" and rows == 4_000 for state, rows in blocks) >= 6
    assert sum(state != "finished" for state, _ in blocks) <= 1
