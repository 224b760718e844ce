"""A worker for jobs that take longer than a transaction: claim, work, apply. Start as many as you like.

While a job runs nothing is locked in the database and no connection is held. A worker that is killed is taken over when
its lease expires; one that was only asleep finds its lease lost, and what it would have written is not written.

    pip install 'takehold[sqlalchemy]'
    python -m examples.leased_worker sqlite:///jobs.db --add 20
    python -m examples.leased_worker sqlite:///jobs.db & python -m examples.leased_worker sqlite:///jobs.db
"""

from __future__ import annotations

import argparse
import functools
import time

from sqlalchemy import String, create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from takehold import HoldLost, rows


class Base(DeclarativeBase):
    """Of all tables."""


class Job(rows.Leased, Base):
    """Something to do, and what came of it."""

    __tablename__ = "jobs"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(String(10), default="new", index=True)
    result: Mapped[int | None]
    applied: Mapped[int] = mapped_column(default=0)


def work(number: int, seconds: float) -> int:
    """What takes its time."""
    time.sleep(seconds)
    return number * number


def finish(_session: Session, job: Job, result: int) -> None:
    """Write it; in the transaction that has asked for the lease, so it happens once."""
    job.status, job.result = "done", result
    job.applied += 1


def drain(maker: sessionmaker[Session], *, lease_seconds: float = 30.0, job_seconds: float = 0.0) -> int:
    """Work until there is nothing left to claim; how many jobs this worker has applied."""
    applied = 0
    with rows.lease(
        maker,
        select(Job).where(Job.status == "new"),
        owner="worker",
        seconds=lease_seconds,
        heartbeat=min(1.0, lease_seconds / 10),
    ) as jobs:
        while claimed := jobs.claim(limit=5):
            for lease in claimed:
                try:
                    with lease:
                        result = work(lease.row.id, job_seconds)
                        lease.apply(functools.partial(finish, result=result))
                except HoldLost as lost:
                    print(f"somebody else does it: {lost}")
                else:
                    applied += 1
    return applied


def main() -> None:
    """Add jobs, or work on them."""
    parser = argparse.ArgumentParser(description="a worker with leases on rows")
    parser.add_argument("url", help="a SQLAlchemy URL of the database")
    parser.add_argument("--add", type=int, metavar="N", help="add so many jobs, and end")
    parser.add_argument("--job-seconds", type=float, default=0.5, help="how long a job takes")
    chosen = parser.parse_args()
    engine = create_engine(chosen.url)
    Base.metadata.create_all(engine)
    maker = sessionmaker(engine)
    if chosen.add is not None:
        with maker.begin() as session:
            session.add_all([Job() for _ in range(chosen.add)])
    else:
        print(f"{drain(maker, job_seconds=chosen.job_seconds)} jobs done by this worker")
    engine.dispose()


if __name__ == "__main__":
    main()
