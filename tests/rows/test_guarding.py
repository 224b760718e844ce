"""A task locks what it modifies: who does not is told, with the lines."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import ForeignKey, String, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from takehold import AsyncLocks, Locks, UsageError, rows
from tests.rows.faces import Face, Handle
from tests.rows.places import Place

pytestmark = pytest.mark.slow


class Base(DeclarativeBase):
    """Of runs and their jobs."""


class Run(Base):
    """Has jobs."""

    __tablename__ = "run"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(String(20), default="new")
    jobs: Mapped[list[Job]] = relationship(back_populates="run", cascade="all, delete-orphan", order_by="Job.id")


class Job(rows.Leased, Base):
    """Is changed by its own task, and by its run's."""

    __tablename__ = "job"
    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id"))
    kind: Mapped[str] = mapped_column(String(10), default="job")
    status: Mapped[str] = mapped_column(String(20), default="new")
    run: Mapped[Run] = relationship(back_populates="jobs")
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "job"}  # noqa: RUF012 - SQLAlchemy's way


class Gang(Job):
    """A kind of job."""

    __mapper_args__ = {"polymorphic_identity": "gang"}  # noqa: RUF012


@pytest.fixture(autouse=True)
def _guarded() -> Iterator[None]:
    rows.guard(Job)
    yield
    rows.guard(Job, "off")


@pytest.fixture
def s(face: Face, place: Place) -> Iterator[Handle]:
    """A session on a run with two jobs and a gang."""
    place.fresh(Base)
    with face.session(expire_on_commit=False) as handle:
        handle.add(Run(jobs=[Job(), Job(), Gang()]))
        handle.commit()
        yield handle


def jobs(s: Handle, run_id: int, *, fresh: bool = False) -> list[Any]:
    """The run's jobs, as they are in the database if they are to be fresh."""
    query = select(Job).where(Job.run_id == run_id).order_by(Job.id)
    return s.scalars(query.execution_options(populate_existing=fresh))


def _delete(s: Handle, job_id: int) -> None:
    s.delete(s.get(Job, job_id))
    s.flush()


def _load_jobs(session: Any, run: Run) -> Any:
    if hasattr(session, "run_sync"):
        return session.run_sync(lambda _: len(run.jobs))
    return len(run.jobs)


@pytest.mark.covers("D-18", "D-32")
def test_run_processing_that_changes_a_job_without_its_lock_is_caught(s: Handle) -> None:
    """With both lines: where it was changed, and where it was flushed."""
    job = jobs(s, 1)[0]
    line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
    job.status = "stopped"
    said = (
        rf"Job 1 is updated, changed at {re.escape(__file__)}:{line} and flushed at \S+faces.py:\d+, by a session that"
    )
    with pytest.raises(UsageError, match=said):
        s.commit()
    s.rollback()
    assert [job.status for job in jobs(s, 1, fresh=True)] == ["new"] * 3


@pytest.mark.covers("D-18", "D-32")
def test_run_processing_that_takes_the_locks_of_its_jobs_passes(s: Handle) -> None:
    run = s.run(rows.lock_rows, Run, 1)[0]
    run.status = "stopping"
    for job in s.run(rows.lock_rows, Job, [1, 2, 3]):
        job.status = "stopped"
    s.commit()
    assert [job.status for job in jobs(s, 1, fresh=True)] == ["stopped"] * 3
    # The lock went with the transaction.
    jobs(s, 1)[0].status = "again"
    with pytest.raises(UsageError, match="has not locked it"):
        s.flush()


@pytest.mark.covers("D-32")
def test_deletes_orphans_and_subclasses_are_guarded_and_inserts_are_not(s: Handle) -> None:
    with pytest.raises(UsageError, match="Job 2 is deleted and flushed at"):
        _delete(s, 2)
    s.rollback()
    with pytest.raises(UsageError, match="Gang 3 is deleted"):
        _delete(s, 3)
    s.rollback()
    run = s.scalars(select(Run).execution_options(populate_existing=True))[0]
    first, *_ = jobs(s, 1)
    s.refresh(run)
    s.run(lambda session: _load_jobs(session, run))
    run.jobs.remove(first)
    with pytest.raises(UsageError, match="Job 1 is deleted"):
        s.flush()
    s.rollback()
    s.add(Gang(run_id=1))
    s.commit()
    assert len(jobs(s, 1)) == 4
    s.run(rows.lock_rows, Job, 2, deleting=True)
    _delete(s, 2)
    s.commit()
    assert len(jobs(s, 1)) == 3


@pytest.mark.covers("D-32")
def test_what_changes_nothing_is_not_reported(s: Handle) -> None:
    jobs(s, 1)[0].status = "new"
    s.get(Run, 1).status = "other"
    s.commit()
    assert s.get(Run, 1).status == "other"


@pytest.mark.covers("D-32")
def test_a_lockset_with_the_rows_key_is_its_lock_where_it_excludes(s: Handle, place: Place) -> None:
    locker = rows.get_locker(s.session)

    jobs(s, 1)[1].status = "by lockset"

    async def awaited(session: Any) -> None:
        async with locker.lock_ctx("job", [2]):
            await session.commit()

    def called(session: Any) -> None:
        with locker.lock_ctx("job", [2]):
            session.commit()

    work = awaited if s.face.name == "async" else called
    if place.name == "sqlite":
        s.run(work)
        assert jobs(s, 1, fresh=True)[1].status == "by lockset"
        jobs(s, 1)[0].status = "the other"
        with pytest.raises(UsageError, match="Job 1 is updated"):
            s.run(work)
    else:
        with pytest.raises(UsageError, match="Job 2 is updated"):
            s.run(work)


@pytest.mark.covers("D-32")
def test_a_lease_is_a_lock(s: Handle, face: Face) -> None:
    leases = face.call(rows.lease, face.maker, select(Job).where(Job.id == 1), owner="runs", heartbeat=None)
    (lease,) = face.call(leases.claim)

    def work(session: Any, job: Any) -> None:
        job.status = "leased"

    async def awaited(session: Any, job: Any) -> None:
        work(session, job)

    face.call(lease.apply, awaited if face.name == "async" else work)
    face.call(leases.close)
    assert jobs(s, 1, fresh=True)[0].status == "leased"


@pytest.mark.covers("D-32")
def test_a_hold_of_your_own_counts_if_you_say_which(s: Handle) -> None:
    locks: Any = AsyncLocks("memory:guarding") if s.face.name == "async" else Locks("memory:guarding")
    rows.guard(Job, held=lambda job: locks.held(f"job/{job.id}"))

    async def awaited(session: Any) -> None:
        async with locks.lock("job/1"):
            await session.commit()

    def called(session: Any) -> None:
        with locks.lock("job/1"):
            session.commit()

    work = awaited if s.face.name == "async" else called
    jobs(s, 1)[0].status = "held"
    s.run(work)
    jobs(s, 1)[1].status = "not held"
    with pytest.raises(UsageError, match="Job 2"):
        s.run(work)


@pytest.mark.covers("D-32")
def test_a_warning_is_all_that_some_want_and_off_is_off(s: Handle) -> None:
    rows.guard(Job, "warn")
    jobs(s, 1)[0].status = "warned"
    with pytest.warns(rows.UnprotectedWrite, match="Job 1 is updated, changed at"):
        s.commit()
    rows.guard(Job, "off")
    jobs(s, 1)[0].status = "off"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        s.commit()
    assert jobs(s, 1, fresh=True)[0].status == "off"
    with pytest.raises(UsageError, match="'raise', 'warn' or 'off'"):
        rows.guard(Job, "loud")  # type: ignore[arg-type]
