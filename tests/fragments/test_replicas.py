"""Several replicas as processes, killed and started again: every result is there once, and whole."""

from __future__ import annotations

import random
import re
import subprocess
import time

import pytest

from tests.fragments.site import PATIENCE, Site, counts_of, until
from tests.lanes import scaled

pytestmark = [pytest.mark.crash, pytest.mark.slow]

REPLICAS = 4
CONCURRENCY = 4
IN_FLIGHT = 4 * CONCURRENCY  # claimed, extracting and being written: extractions are quick here
WRITING = """
SELECT application_name FROM pg_stat_activity
WHERE application_name LIKE 'takehold-ledger%' AND state = 'idle in transaction'"""
KEEPERS = """
SELECT l.pid, pg_terminate_backend(l.pid) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE l.locktype = 'advisory' AND a.application_name LIKE :process LIMIT 1"""


def owners(site: Site) -> dict[str, int]:
    """Which process has written what."""
    rows = site.query(
        "SELECT f.identity, r.owner FROM takehold_fragment_runs r JOIN takehold_fragments f ON f.id = r.fragment"
    )
    return {identity: int(owner.rpartition(":")[2]) for identity, owner in rows}


def end_a_session_that_writes(site: Site) -> int:
    """End the lock session of a replica that is in the middle of a write; which one that was."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        for (name,) in site.query(WRITING):
            process = re.sub(r"^takehold-ledger ", "", name)
            if site.query(KEEPERS, process=f"takehold%{process}"):
                return int(process.rpartition(":")[2])
        time.sleep(0.001)
    raise AssertionError("nobody was seen to write")


@pytest.fixture
def one_face(site: Site) -> str:
    """Each face on one of the two databases; what differs between them has nothing to do with the database."""
    return "threads" if site.name == "sqlite" else "asyncio"


@pytest.mark.covers("R-6", "R-7", "R-8", "R-9", "R-19")
def test_killed_and_restarted_replicas_write_every_result_once(site: Site, one_face: str) -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    each = 25
    count = site.documents(scaled(5_000) // each, each)
    options = {"concurrency": CONCURRENCY, "wait": 0.005, "write_wait": 0.01}

    def start() -> subprocess.Popen[str]:
        return site.replica(one_face, **options)

    replicas = [start() for _ in range(REPLICAS)]
    interrupted: set[int] = set()
    ended: int | None = None
    every = max(100, count // 20)
    for target in range(every, count - every // 2, every):
        until(lambda target=target: len(site.diary.lines("begin")) >= target)  # type: ignore[misc]
        if site.name == "postgresql" and ended is None:
            ended = end_a_session_that_writes(site)
            interrupted.add(ended)
            continue
        victim = rng.randrange(REPLICAS)
        replicas[victim].kill()
        replicas[victim].wait()
        interrupted.add(replicas[victim].pid)
        replicas[victim] = start()
    counts = [counts_of(replica) for replica in replicas]

    assert site.results() == site.expected(), f"seed {seed}"
    assert all(one["complete"] and not one["failures"] for one in counts)
    wrote = owners(site)
    begun = [(line[3], int(line[1])) for line in site.diary.lines("begin")]
    wasted = list(begun)
    for fragment in wrote.items():
        wasted.remove(fragment)  # one extraction for each result, by who wrote it
    assert len(begun) == count + len(wasted)
    # All others were in flight at a kill, or when the session ended.
    assert {pid for _, pid in wasted} <= interrupted, f"seed {seed}: {wasted}"
    assert len(wasted) <= IN_FLIGHT * len(interrupted), f"seed {seed}: {wasted}"
    assert ended is None or sum(one["lost"] for one in counts) <= IN_FLIGHT


@pytest.mark.covers("R-6")
def test_replicas_without_crashes_extract_each_fragment_once(site: Site, one_face: str) -> None:
    count = site.documents(scaled(2_000) // 20, 20)
    replicas = [site.replica(one_face, concurrency=CONCURRENCY, wait=0.002) for _ in range(REPLICAS)]
    counts = [counts_of(replica) for replica in replicas]
    assert site.results() == site.expected()
    assert len(site.diary.lines("begin")) == count == sum(one["done"] for one in counts)
    assert site.diary.overlaps() == []
    assert all(one["complete"] for one in counts)


@pytest.mark.covers("R-9")
def test_a_replica_has_four_connections_whatever_its_concurrency(server_site: Site) -> None:
    server_site.documents(1, 200)
    replica = server_site.replica("asyncio", concurrency=50, wait=0.3)
    until(lambda: len(server_site.diary.lines("begin")) >= 50)
    most = 0
    sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE :process"
    while replica.poll() is None and len(server_site.diary.lines("begin")) < 150:
        [(now,)] = server_site.query(sql, process=f"takehold%:{replica.pid}")
        most = max(most, now)
    assert counts_of(replica)["done"] == 200
    assert 3 <= most <= 4
