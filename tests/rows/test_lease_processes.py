"""Leases between processes, of which one is killed and one sleeps past its expiry."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from sqlalchemy import select

from tests.lanes import scaled
from tests.rows.leased import Base, Effect, Job
from tests.rows.places import Place
from tests.rows.processes import PATIENCE, ROOT

pytestmark = [pytest.mark.slow, pytest.mark.crash]

SECONDS = 1.6  # of a lease; what a worker holds in its body takes longer


class Child:
    """A worker process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def hear(self) -> Any:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, f"a worker ended with {self.process.wait(PATIENCE)}"
        return json.loads(line)

    def go(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("go\n")
        self.process.stdin.flush()


@contextmanager
def worker(place: Place, face: str, *, disturbed: bool) -> Iterator[Child]:
    given = {"place": place.description(), "face": face, "disturbed": disturbed, "seconds": SECONDS}
    command = [sys.executable, "-m", "tests.rows.lease_worker", json.dumps(given)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            yield Child(process)
        finally:
            process.kill()


@pytest.mark.covers("D-23", "D-24", "D-25", "D-28")
@pytest.mark.parametrize(("killed", "paused"), [("sync", "async"), ("async", "sync")])
def test_every_row_is_applied_once_though_one_worker_is_killed_and_one_sleeps_too_long(
    place: Place, killed: str, paused: str
) -> None:
    count = scaled(500)
    place.fresh(Base)
    with place.maker.begin() as session:
        session.add_all(Job() for _ in range(count))
    with ExitStack() as stack:
        victim = stack.enter_context(worker(place, killed, disturbed=True))
        sleeper = stack.enter_context(worker(place, paused, disturbed=True))
        others = [stack.enter_context(worker(place, face, disturbed=False)) for face in ("sync", "async")]
        for child in (victim, sleeper, *others):
            assert child.hear() == "ready"
        for child, by in ((victim, signal.SIGKILL), (sleeper, signal.SIGSTOP)):
            child.go()
            holding = child.hear()["holding"]
            child.process.send_signal(by)
            assert token_of(place, holding[0]) == holding[1]
        for child in others:
            child.go()
        reports = [child.hear() for child in others]
        with place.maker() as session:
            assert set(session.scalars(select(Job.status))) == {"done"}, "they waited for what would not come"
        sleeper.process.send_signal(signal.SIGCONT)
        late = sleeper.hear()
    reports.append(late)
    with place.maker() as session:
        jobs = session.scalars(select(Job).order_by(Job.id)).all()
        effects = [(effect.job_id, effect.token) for effect in session.scalars(select(Effect))]
    assert [job.applied for job in jobs] == [1] * count
    assert sorted(job for job, _ in effects) == [job.id for job in jobs]
    assert len(late["lost"]) >= 3, "of the five it claimed it had applied two"
    stale = {(job, token) for report in reports for job, token in report["lost"]}
    assert not stale.intersection(effects), "applied with a stale token"
    assert [report["most_connections"] for report in reports] == [0, 0, 0]
    assert {job.lock_token for job in jobs} == {None}


def token_of(place: Place, job: int) -> str | None:
    with place.maker() as session:
        return session.get_one(Job, job).lock_token
