"""One worker of ``test_lease_processes``: leases jobs and applies each, on either face, until there are none.

Speaks in lines of JSON: ``"ready"``, then after a line on stdin it works; ``"holding"`` when it applies its third row,
if it is to be disturbed there: after its own check, and before the database is asked; in the end what it saw.
"""

from __future__ import annotations

import asyncio
import functools
import json
import sys
import threading
import time
from typing import Any

from sqlalchemy import Engine, event, func, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

import takehold
from takehold import rows
from tests.rows.leased import Effect, Job
from tests.rows.places import Place

NEW = select(Job).where(Job.status == "new")
LEFT = select(func.count()).select_from(Job).where(Job.status == "new")
HOLDING = 2.0  # seconds; the other process stops us in this time


def say(message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


class Report:
    """What one worker saw."""

    def __init__(self, engine: Engine, disturbed: bool) -> None:
        self.disturbed = disturbed
        self.bodies = 0
        self.holding: Any = None
        self.claimed: list[tuple[int, str]] = []
        self.lost: list[tuple[int, str]] = []
        self.most_connections = 0
        self._out: dict[int, bool] = {}
        event.listen(engine, "checkout", self._check_out)
        event.listen(engine, "checkin", self._check_in)

    def _check_out(self, _connection: object, record: object, _proxy: object) -> None:
        self._out[id(record)] = self._is_heartbeat()

    def _check_in(self, _connection: object, record: object) -> None:
        self._out.pop(id(record), None)

    @staticmethod
    def _is_heartbeat() -> bool:
        """The heartbeat may look up for a moment; the body's own thread or task has nothing out."""
        try:
            task = asyncio.current_task()
        except RuntimeError:
            return threading.current_thread() is not threading.main_thread()
        return task is not None and task.get_name().startswith("<")

    def enter(self, lease: Any) -> None:
        """In the body of a lease."""
        self.bodies += 1
        self.claimed.append((lease.row.id, lease.token))
        self.most_connections = max(self.most_connections, list(self._out.values()).count(False))
        if self.disturbed and self.bodies == 3:
            self.holding = [lease.row.id, lease.token]

    def hold(self) -> None:
        """Be slow, because somebody is about to kill or stop us."""
        if self.holding and not self._is_heartbeat():
            say({"holding": self.holding})
            self.holding = None
            time.sleep(HOLDING)

    def made(self, session: Any) -> Any:
        """A maker's session class, whose making takes a while when we hold."""
        report = self

        class Late(session):  # type: ignore[misc]
            def __init__(self, *args: Any, **options: Any) -> None:
                report.hold()
                super().__init__(*args, **options)

        return Late


def apply(session: Session, job: Job, token: str) -> None:
    job.applied += 1
    job.status = "done"
    session.add(Effect(job_id=job.id, token=token))


def blocking(maker: sessionmaker[Session], report: Report, seconds: float) -> None:
    def left() -> int:
        with maker() as session:
            return session.scalar(LEFT) or 0

    with rows.lease(maker, NEW, owner="jobs", seconds=seconds, heartbeat=seconds / 8) as leases:
        while left():
            claimed = leases.claim(limit=5)
            if not claimed:
                time.sleep(0.02)
            for lease in claimed:
                try:
                    with lease:
                        report.enter(lease)
                        time.sleep(0.001)
                        lease.apply(functools.partial(apply, token=lease.token))
                except takehold.HoldLost:
                    report.lost.append((lease.row.id, lease.token))


async def awaiting(maker: async_sessionmaker[AsyncSession], report: Report, seconds: float) -> None:
    async def left() -> int:
        async with maker() as session:
            return await session.scalar(LEFT) or 0

    async with rows.lease(maker, NEW, owner="jobs", seconds=seconds, heartbeat=seconds / 8) as leases:
        while await left():
            claimed = await leases.claim(limit=5)
            if not claimed:
                await asyncio.sleep(0.02)
            for lease in claimed:
                token = lease.token

                async def work(session: AsyncSession, job: Job, token: str = token) -> None:
                    apply(session.sync_session, job, token)

                try:
                    async with lease:
                        report.enter(lease)
                        await asyncio.sleep(0.001)
                        await lease.apply(work)
                except takehold.HoldLost:
                    report.lost.append((lease.row.id, lease.token))


async def on_asyncio(place: Place, disturbed: bool, seconds: float) -> Report:
    engine = place.new_async_engine()
    report = Report(engine.sync_engine, disturbed)
    await awaiting(async_sessionmaker(engine, class_=report.made(AsyncSession)), report, seconds)
    await engine.dispose()
    return report


def main(given: dict[str, Any]) -> None:
    place, disturbed, seconds = Place(**given["place"]), given["disturbed"], given["seconds"]
    say("ready")
    sys.stdin.readline()
    if given["face"] == "async":
        report = asyncio.run(on_asyncio(place, disturbed, seconds))
    else:
        report = Report(place.engine, disturbed)
        blocking(sessionmaker(place.engine, class_=report.made(Session)), report, seconds)
        place.dispose()
    say({"claimed": report.claimed, "lost": report.lost, "most_connections": report.most_connections})


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
