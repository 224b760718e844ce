"""`claim_rows`: everybody gets rows of his own, and no free row is left over."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest
from sqlalchemy import Select, event, func, select, update

from takehold import LockTimeout, UsageError, rows
from takehold.rows import claiming
from tests.lanes import scaled
from tests.rows.faces import Face, Handle
from tests.rows.models import Base, Job, Parent
from tests.rows.places import Place
from tests.rows.processes import run_processes
from tests.rows.rivals import add_parents
from tests.rows.test_locking import begins_with_its_first_read, is_free, statements

pytestmark = pytest.mark.slow

CLAUSE = {"sqlite": "", "postgresql": " FOR NO KEY UPDATE OF job SKIP LOCKED", "mariadb": " FOR UPDATE SKIP LOCKED"}


def waiting() -> Select[Job]:
    """The queue, the newest first: no index has this order, and InnoDB locks all that it sorts."""
    return select(Job).where(Job.status == "new").order_by(Job.created_at.desc(), Job.id.desc())


def add_jobs(place: Place, count: int) -> None:
    place.fresh(Base)
    with place.maker.begin() as session:
        session.add_all(Job(id=number + 1) for number in range(count))


def ids(found: list[Any]) -> list[int]:
    return [one.id for one in found]


@pytest.mark.covers("D-10", "D-11")
def test_the_first_rows_of_the_query_are_locked_and_nobody_is_waited_for(face: Face, place: Place) -> None:
    add_jobs(place, 5)
    with face.session() as s, statements(face) as sent:
        assert ids(s.run(rows.claim_rows, waiting())) == [5]
        assert sent[-1][0].endswith(CLAUSE[place.name])
        s.rollback()
        assert ids(s.run(rows.claim_rows, waiting(), 3)) == [5, 4, 3]
        assert [is_free(face, Job, one) for one in (2, 3, 4, 5)] == [True, False, False, False]


@pytest.mark.covers("D-3")
def test_rows_that_somebody_has_locked_are_skipped(face: Face, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    add_jobs(place, 8)
    monkeypatch.setattr(claiming, "PAGE", 2)
    with face.session() as s, face.session() as other, face.session() as third:
        s.run(rows.lock_rows, Job, [8, 6, 5])
        assert ids(other.run(rows.claim_rows, waiting(), 2)) == [7, 4]
        assert ids(third.run(rows.claim_rows, waiting(), 9)) == [3, 2, 1]
        with pytest.raises(LockTimeout):
            s.run(rows.lock_rows, Job, 4, nowait=True)


@pytest.mark.covers("D-3", "D-5")
def test_nothing_is_claimed_where_nothing_is_free_and_nothing_is_held_then(face: Face, place: Place) -> None:
    add_jobs(place, 2)
    with face.session() as s, face.session() as other:
        assert len(s.run(rows.claim_rows, waiting(), 2)) == 2
        assert other.run(rows.claim_rows, waiting(), 2) == []
        s.commit()
        assert len(other.run(rows.claim_rows, waiting(), 2)) == 2


@pytest.mark.covers("D-3")
def test_claimers_at_the_same_time_get_all_there_is_and_nothing_twice(face: Face, place: Place) -> None:
    claimers, each = 8, 3
    add_jobs(place, claimers * each)
    together = threading.Barrier(claimers)

    def body(s: Handle, number: int) -> list[int]:
        found = ids(s.run(rows.claim_rows, waiting(), each))
        together.wait(30)  # everybody still has his own
        return found

    found = face.workers(claimers, body)
    assert [len(one) for one in found] == [each] * claimers
    assert sorted(itertools.chain(*found)) == list(range(1, claimers * each + 1))


@pytest.mark.covers("D-3", "D-4")
def test_a_queue_is_emptied_with_every_job_done_once(face: Face, place: Place) -> None:
    jobs = scaled(400)
    add_jobs(place, jobs)

    def body(s: Handle, number: int) -> list[int]:
        done: list[int] = []
        for turn in itertools.count(1):
            if not (found := s.run(rows.claim_rows, waiting(), 2)):
                return done
            for job in found:
                assert (job.status, job.owner) == ("new", None)
                job.status, job.owner = "done", str(number)
            if turn % 5 == 0:
                s.rollback()
            else:
                done += ids(found)
                s.commit()
        return done

    done = face.workers(4, body)
    assert sorted(itertools.chain(*done)) == list(range(1, jobs + 1))
    with face.session() as s:
        assert s.scalar(select(func.count(Job.id)).where(Job.status == "done")) == jobs


def drain(place: Place, number: int) -> list[int]:
    """In a process of its own."""
    done: list[int] = []
    with place.maker() as session:
        while found := rows.claim_rows(session, waiting(), 2):
            for job in found:
                job.status = "done"
            done += ids(found)
            session.commit()
    return done


@pytest.mark.covers("D-3", "D-8")
def test_processes_do_every_job_once(place: Place) -> None:
    add_jobs(place, 40)
    done = run_processes(3, f"{__name__}:drain", place)
    assert sorted(itertools.chain(*done)) == list(range(1, 41))


@pytest.mark.covers("D-3", "D-15")
def test_a_row_that_was_done_between_the_look_and_the_lock_is_replaced_by_the_next(face: Face, place: Place) -> None:
    if place.name == "postgresql":
        pytest.skip("it looks and locks in one statement")
    add_jobs(place, 3)
    other = place.new_engine()

    def be_quick(*_: Any) -> None:
        with other.begin() as connection:
            connection.execute(update(Job).where(Job.id == 3).values(status="done"))

    event.listen(face.engine, "after_cursor_execute", be_quick, once=True)
    with face.session() as s:
        assert ids(s.run(rows.claim_rows, waiting())) == [2]
    other.dispose()


@pytest.mark.covers("D-14")
def test_a_claimed_object_that_was_loaded_before_is_refreshed(face: Face, place: Place) -> None:
    add_jobs(place, 1)
    with face.session(expire_on_commit=False) as s:
        job = s.get(Job, 1)
        s.commit()
        with place.maker.begin() as other:
            other.execute(update(Job).values(owner="somebody"))
        assert job.owner is None
        assert s.run(rows.claim_rows, waiting()) == [job]
        assert job.owner == "somebody"


@pytest.mark.covers("D-15")
def test_a_transaction_that_has_only_read_is_replaced_by_a_new_one(face: Face, place: Place) -> None:
    if place.name != "sqlite":
        pytest.skip("row locks read what is current")
    add_jobs(place, 2)
    begins_with_its_first_read(face.engine)
    with face.session() as s:
        assert len(s.scalars(waiting())) == 2
        with place.maker.begin() as other:
            other.execute(update(Job).where(Job.id == 2).values(status="done"))
        assert len(s.scalars(waiting())) == 2, "stale"
        assert ids(s.run(rows.claim_rows, waiting(), 2)) == [1]
        with pytest.raises(UsageError, match=r"has locks, and claim_rows\(\) begins a new one. Commit first"):
            s.run(rows.claim_rows, waiting())
        assert not is_free(face, Job, 1)


@pytest.mark.covers("D-15")
@pytest.mark.parametrize("snapshots", [False, True])
def test_what_is_not_committed_is_neither_committed_nor_lost(face: Face, place: Place, snapshots: bool) -> None:
    if place.name != "sqlite":
        pytest.skip("row locks need no new transaction")
    add_jobs(place, 2)
    add_parents(place, 1)
    if snapshots:
        begins_with_its_first_read(face.engine)
    with face.session() as s:
        s.add(Parent(name="mine"))
        with pytest.raises(UsageError, match=r"uncommitted changes.*Commit first"):
            s.run(rows.claim_rows, waiting())
        s.flush()
        with pytest.raises(UsageError, match=r"has written already.*Commit first"):
            s.run(rows.claim_rows, waiting())
        savepoint = s.run(lambda session: session.begin_nested())
        s.scalars(select(Parent))
        with pytest.raises(UsageError, match=r"inside begin_nested\(\).*Commit first"):
            s.run(rows.claim_rows, waiting())
        face.call(savepoint.commit)
        with pytest.raises(UsageError, match="has written already"):
            s.run(rows.claim_rows, waiting())
        with place.maker() as other:
            assert other.scalar(select(func.count(Parent.id))) == 1
        s.commit()
        assert s.scalar(select(func.count(Parent.id))) == 2
        assert ids(s.run(rows.claim_rows, waiting())) == [2]


@pytest.mark.covers("D-30")
def test_a_claimed_row_is_deleted_if_it_was_claimed_for_that(face: Face, place: Place) -> None:
    add_jobs(place, 2)
    with face.session() as s:
        [job] = s.run(rows.claim_rows, waiting())
        s.delete(job)
        with pytest.raises(UsageError, match="deleting=True"):
            s.flush()
        s.rollback()
        [job] = s.run(rows.claim_rows, waiting(), deleting=True)
        s.delete(job)
        s.commit()
        assert s.scalars(select(Job.id)) == [1]


@pytest.mark.covers("D-14")
def test_what_a_claim_would_overwrite_is_refused_where_nothing_flushes_it(face: Face, place: Place) -> None:
    add_jobs(place, 1)
    with face.session(autoflush=False) as s:
        s.get(Job, 1).owner = "me"
        with pytest.raises(UsageError, match="Flush first"):
            s.run(rows.claim_rows, waiting())


def test_a_claim_needs_no_second_connection(place: Place) -> None:
    if place.name == "sqlite":
        pytest.skip("its keys are not the connection's")
    add_jobs(place, 5)
    engine = place.new_engine(pool_size=1, max_overflow=0, pool_timeout=1)
    place.maker.configure(bind=engine)
    try:
        with place.maker() as session:
            session.scalars(select(Parent)).all()
            assert ids(rows.claim_rows(session, waiting(), 2)) == [5, 4]
            session.rollback()
            assert ids(rows.claim_rows(session, waiting(), 9)) == [5, 4, 3, 2, 1]
    finally:
        engine.dispose()


def test_what_is_no_query_of_one_class_is_refused(face: Face, place: Place) -> None:
    with face.session() as s:
        for wrong in (select(Job.id), select(Job, Parent), Job, select(Job.__table__)):
            with pytest.raises(UsageError, match="takes select"):
                s.run(rows.claim_rows, wrong)
        with pytest.raises(UsageError, match="limit= is 1 or more"):
            s.run(rows.claim_rows, waiting(), 0)
