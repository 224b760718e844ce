"""Leases on rows: claim, heartbeat, guarded apply, on every database and both faces."""

from __future__ import annotations

import asyncio
import logging
import threading
from asyncio import Future
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event, select, update
from sqlalchemy.orm import selectinload, sessionmaker

import takehold
from takehold import rows
from takehold.rows.clock import Clock
from takehold.rows.desk import key_of, locks_of, within
from takehold.rows.session import session_of
from takehold.testing.faces.vocabulary import eventually
from tests import parity
from tests.rows.faces import PATIENCE, AsyncFace, Face, Steps
from tests.rows.leased import Base, Effect, Job, Run, Seat
from tests.rows.places import Place

pytestmark = pytest.mark.slow

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
NEW = select(Job).where(Job.status == "new")


class Worker:
    """Leases of one owner under the face's own words."""

    def __init__(self, face: Face, query: Any = NEW, *, owner: str = "jobs", **options: Any) -> None:
        self.face = face
        self.leases = rows.lease(face.maker, query, **{"owner": owner, "heartbeat": None, **options})

    def claim(self, limit: int = 10) -> list[Any]:
        return list(self.face.call(self.leases.claim, limit))

    def ids(self, limit: int = 10) -> list[Any]:
        return [lease.row.id for lease in self.claim(limit)]

    def beat(self) -> None:
        self.face.call(self.leases.heartbeat)

    @contextmanager
    def body(self, lease: Any) -> Iterator[Any]:
        enter, leave = ("__aenter__", "__aexit__") if isinstance(self.face, AsyncFace) else ("__enter__", "__exit__")
        yield_ = self.face.call(getattr(lease, enter))
        try:
            yield yield_
        except BaseException as error:
            self.face.call(getattr(lease, leave), type(error), error, error.__traceback__)
            raise
        self.face.call(getattr(lease, leave), None, None, None)


def fill(place: Place, *objects: object) -> None:
    place.fresh(Base)
    with place.maker.begin() as session:
        session.add_all(objects)


def jobs(count: int) -> list[Job]:
    return [Job(id=number) for number in range(1, count + 1)]


def row(place: Place, model: type[Any] = Job, key: Any = 1) -> Any:
    with place.maker() as session:
        return session.get_one(model, key)


def write(place: Place, model: type[Any] = Job, key: int = 1, **values: Any) -> None:
    with place.maker.begin() as session:
        session.execute(update(model).where(model.id == key).values(**values))


def expire(place: Place, model: type[Any] = Job, key: int = 1) -> None:
    write(place, model, key, lock_expires_at=LONG_AGO)


def left(place: Place, model: type[Any] = Job, key: int = 1) -> float:
    """Seconds until the expiry, by the database's clock."""
    with place.maker() as session:
        expiry, at = session.execute(select(model.lock_expires_at, Clock()).where(model.id == key)).one()
    return float((expiry - at).total_seconds())


def waiters(place: Place) -> int:
    """Those who stand at a lock: of the server, or of the desk where that stands for it."""
    if place.name != "sqlite":
        return place.waiters()
    with place.maker() as session:
        locks: Any = locks_of(session)
        return [record.state for record in locks.who()].count("waiting")


# -- claim -----------------------------------------------------------------------------------------------------


@pytest.mark.covers("D-23")
def test_a_claim_sets_expiry_token_and_owner_and_gives_detached_rows(face: Face, place: Place) -> None:
    fill(place, *jobs(2))
    first, second = Worker(face, seconds=30).claim()
    for lease, key in ((first, 1), (second, 2)):
        stored = row(place, key=key)
        assert (stored.lock_token, stored.lock_owner) == (lease.token, "jobs") == (lease.row.lock_token, lease.owner)
        assert 20 < left(place, key=key) <= 30
        assert not lease.lost
    assert first.row.status == "new", "loaded, though it belongs to no session"


@pytest.mark.covers("D-23")
def test_rows_that_are_leased_locked_or_owned_by_others_are_passed_over(face: Face, place: Place) -> None:
    fill(place, *jobs(5), Job(id=6, status="done"))
    write(place, key=2, lock_owner="others", lock_expires_at=LONG_AGO)
    write(place, key=3, lock_owner="jobs", lock_expires_at=LONG_AGO)
    worker = Worker(face)
    with face.session() as session:
        session.run(rows.lock, Job, 4)
        [leased] = worker.claim(limit=1)
        assert leased.row.id == 1
        assert worker.ids() == [3, 5]
    assert worker.ids() == [4]
    assert worker.ids() == []


@pytest.mark.covers("D-23")
def test_the_oldest_is_claimed_first_and_one_never_processed_before_all(face: Face, place: Place) -> None:
    fill(place, *jobs(4))
    for key, age in ((1, 1), (2, 3), (3, 2)):
        write(place, key=key, last_processed_at=datetime.now(UTC) - timedelta(hours=age))
    write(place, key=4, last_processed_at=None)
    assert Worker(face).ids(limit=3) == [4, 2, 3]


@pytest.mark.covers("D-23")
def test_the_order_of_the_query_comes_first(face: Face, place: Place) -> None:
    fill(place, *jobs(3))
    assert Worker(face, NEW.order_by(Job.id.desc())).ids(limit=2) == [3, 2]


@pytest.mark.covers("D-23")
def test_many_who_claim_at_once_share_the_rows_and_no_row_goes_to_two(face: Face, place: Place) -> None:
    fill(place, *jobs(60))
    workers = [Worker(face) for _ in range(6)]

    def body(_: Any, number: int) -> list[int]:
        found: list[int] = []
        while some := workers[number].ids(limit=3):
            found += some
        return found

    claimed = [key for found in face.workers(6, body) for key in found]
    assert len(claimed) == len(set(claimed)), "a row was claimed twice"
    claimed += Worker(face).ids(limit=60)
    assert sorted(claimed) == list(range(1, 61))


@pytest.mark.covers("D-23")
def test_joins_loader_options_and_composite_keys_work(face: Face, place: Place) -> None:
    fill(place, Run(id=1, jobs=jobs(2)), Run(id=2, status="old", jobs=[Job(id=3)]), Seat(row=1, number=2))
    query = NEW.join(Job.run).where(Run.status == "new").options(selectinload(Job.run).selectinload(Run.jobs))
    leases = Worker(face, query).claim()
    assert [lease.row.id for lease in leases] == [1, 2]
    assert [job.id for job in leases[0].row.run.jobs] == [1, 2]
    [lease] = Worker(face, select(Seat), seconds=30).claim()
    face.call(lease.apply, keep=True)
    face.call(lease.release)
    assert row(place, Seat, (1, 2)).lock_token is None


@pytest.mark.covers("D-26")
def test_an_expired_lease_is_reclaimed_by_its_owner_even_behind_a_parent_that_waits(face: Face, place: Place) -> None:
    fill(place, Run(id=1, jobs=jobs(2)), Job(id=3))
    worker = Worker(face, NEW.where(Job.id < 3), yields_to=Job.run)
    [first] = worker.claim(limit=1)
    write(place, Run, lock_owner="runs")
    assert worker.ids() == [], "job 2 is left to its run"
    expire(place)
    write(place, key=2, lock_expires_at=LONG_AGO, lock_owner="others")
    [again] = worker.claim()
    assert (again.row.id, again.token != first.token) == (1, True)
    assert Worker(face, yields_to=Job.run).ids() == [3], "it has no parent"
    write(place, Run, lock_owner=None)
    write(place, key=2, lock_expires_at=None, lock_owner=None)
    assert worker.ids() == [2]


@pytest.mark.covers("D-28")
def test_no_connection_is_held_while_the_body_runs(face: Face, place: Place) -> None:
    fill(place, *jobs(2))
    worker = Worker(face)
    pool: Any = face.engine.pool
    for lease in worker.claim():
        with worker.body(lease):
            assert pool.checkedout() == 0
            face.call(lease.apply, values={"status": "done"})
            assert pool.checkedout() == 0


@pytest.mark.covers("D-29")
def test_lease_columns_are_committed_before_the_guard_is_released(face: Face, place: Place) -> None:
    if place.name != "sqlite":
        pytest.skip("has row locks, which end with the transaction")
    fill(place, *jobs(1))
    story: list[tuple[str, str, bool]] = []

    def told(lock: takehold.LockEvent) -> None:
        if lock.kind in ("acquired", "released"):
            story.append((lock.kind, lock.key, row(place).lock_token is not None))

    with face.session() as session:
        stop = session.run(lambda any_session: locks_of(session_of(any_session)).listen(told))
    try:
        assert Worker(face).ids() == [1]
    finally:
        stop()
    assert {(kind, seen) for kind, _, seen in story} == {("acquired", False), ("released", True)}
    turn, first = "rows/job/lease/claim", "rows/job/id/1"
    assert [key for kind, key, _ in story if kind == "acquired"] == [turn, first]
    assert {key for kind, key, _ in story if kind == "released"} == {turn, first}


@pytest.mark.covers("D-15")
def test_a_claim_sees_what_was_committed_while_it_waited_for_its_turn(face: Face, place: Place) -> None:
    if place.name != "sqlite":
        pytest.skip("has row locks")
    fill(place, *jobs(2))
    worker = Worker(face)
    with face.session() as session:
        session.run(within_turn)
        waiting = face.start(lambda _: worker.ids())
        eventually(lambda: waiters(place) == 1)
        write(place, status="done")
        session.rollback()
    assert waiting.result(PATIENCE) == [2]


def within_turn(session: Any) -> Any:
    """Take the turn to claim jobs, until the session's transaction ends."""
    return within(session_of(session)).acquire(key_of(Job, "claim", "lease"))


@pytest.mark.covers("D-23")
def test_a_row_that_no_longer_matches_when_it_is_claimed_is_put_back(face: Face, place: Place) -> None:
    fill(place, Run(id=1, jobs=jobs(1)), Run(id=2, jobs=[Job(id=2)]))
    before = row(place).last_processed_at
    worker = Worker(face, NEW.join(Job.run).where(Run.status == "new"))

    @event.listens_for(face.engine, "before_cursor_execute")
    def _(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("UPDATE job") and row(place, Run).status == "new":
            write(place, Run, status="old")  # of another table, so that no lock of ours is in its way

    assert worker.ids() == [2]
    stored = row(place)
    assert (stored.lock_token, stored.lock_expires_at, stored.lock_owner) == (None, None, None)
    assert stored.last_processed_at == before


# -- apply -----------------------------------------------------------------------------------------------------


def effect(face: Face, lease: Any) -> Any:
    """Work that counts, and leaves an effect beside."""

    @face.function
    def work(session: Any, job: Job) -> Steps:
        job.applied += 1
        session.add(Effect(job_id=job.id, token=lease.token))
        yield session.flush()
        return job.status

    return work


def effects(place: Place) -> int:
    with place.maker() as session:
        return len(session.scalars(select(Effect)).all())


@pytest.mark.covers("D-24")
def test_apply_writes_everything_in_one_transaction_and_ends_the_lease(face: Face, place: Place) -> None:
    fill(place, *jobs(1))
    worker = Worker(face)
    before = row(place).last_processed_at
    [lease] = worker.claim()
    with worker.body(lease):
        assert face.call(lease.apply, effect(face, lease), values={"status": "done"}) == "done"
    stored = row(place)
    assert (stored.status, stored.applied, effects(place)) == ("done", 1, 1)
    assert (stored.lock_token, stored.lock_expires_at, stored.lock_owner) == (None, None, None)
    assert stored.last_processed_at > before
    with pytest.raises(takehold.UsageError, match="has ended"):
        face.call(lease.apply, values={"status": "again"})


@pytest.mark.covers("D-24")
@pytest.mark.parametrize("how", ["another token", "expired", "deleted"])
def test_apply_without_the_lease_changes_nothing_and_suppresses_its_effects(face: Face, place: Place, how: str) -> None:
    fill(place, *jobs(1))
    worker = Worker(face)
    [lease] = worker.claim()
    if how == "another token":
        write(place, lock_token="f" * 32)
    elif how == "expired":
        expire(place)
    else:
        with place.maker.begin() as session:
            session.delete(session.get_one(Job, 1))
    after = False
    with pytest.raises(takehold.HoldLost, match="Job 1 has expired or was taken over"), worker.body(lease):  # noqa: PT012
        face.call(lease.apply, effect(face, lease), values={"status": "done"})
        after = True
    assert not after
    assert lease.lost
    assert effects(place) == 0
    if how != "deleted":
        assert (row(place).status, row(place).applied) == ("new", 0)
    if how == "another token":
        assert row(place).lock_token == "f" * 32, "that of somebody else was released"


@pytest.mark.covers("D-24")
def test_work_that_fails_undoes_the_whole_apply_and_leaves_the_lease(face: Face, place: Place) -> None:
    fill(place, *jobs(1))
    [lease] = Worker(face).claim()

    @face.function
    def work(session: Any, job: Job) -> Steps:
        yield session.flush()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        face.call(lease.apply, work, values={"status": "done"})
    assert (row(place).status, row(place).lock_token) == ("new", lease.token)
    face.call(lease.apply, values={"status": "done"})
    assert row(place).status == "done"


@pytest.mark.covers("D-24", "D-32")
def test_a_lease_is_a_lock_for_the_guard_and_lets_the_row_be_deleted(face: Face, place: Place) -> None:
    fill(place, *jobs(2))
    first, second = Worker(face).claim()

    @face.function
    def delete(session: Any, job: Job) -> Steps:
        yield session.delete(job)

    rows.guard(Job)
    try:
        face.call(first.apply, effect(face, first))
        face.call(second.apply, delete)
    finally:
        rows.guard(Job, "off")
    assert row(place).applied == 1
    with place.maker() as session:
        assert session.get(Job, 2) is None


@pytest.mark.covers("D-24")
def test_apply_can_keep_and_renew_the_lease(face: Face, place: Place) -> None:
    fill(place, *jobs(1))
    [lease] = Worker(face, seconds=40).claim()
    write(place, lock_expires_at=datetime.now(UTC) + timedelta(seconds=5))
    face.call(lease.apply, values={"status": "half"}, keep=True)
    assert (row(place).status, row(place).lock_token) == ("half", lease.token)
    assert left(place) > 30
    face.call(lease.apply, values={"status": "done"})
    assert row(place).lock_token is None


@pytest.mark.covers("D-24")
def test_apply_waits_for_whoever_has_locked_the_row(face: Face, place: Place) -> None:
    fill(place, *jobs(1))
    [lease] = Worker(face).claim()
    with face.session() as session:
        session.run(rows.lock, Job, 1)
        waiting = face.start(lambda _: face.call(lease.apply, effect(face, lease), values={"status": "done"}))
        eventually(lambda: waiters(place) == 1)
        session.execute(update(Job).values(applied=7))
        session.commit()
    waiting.result(PATIENCE)
    assert (row(place).status, row(place).applied) == ("done", 8)


# -- the end of the body ---------------------------------------------------------------------------------------


@pytest.mark.covers("D-24")
def test_a_body_that_raises_gives_the_row_back_at_the_end_of_the_queue(face: Face, place: Place) -> None:
    fill(place, *jobs(2))
    worker = Worker(face)
    [lease] = worker.claim(limit=1)
    with pytest.raises(ZeroDivisionError), worker.body(lease):
        raise ZeroDivisionError
    stored = row(place)
    assert (stored.status, stored.lock_token, stored.lock_expires_at, stored.lock_owner) == ("new", None, None, None)
    assert worker.ids() == [2, 1]


@pytest.mark.covers("D-24")
def test_a_lease_that_was_taken_over_is_not_released_for_the_other(face: Face, place: Place) -> None:
    fill(place, *jobs(1))
    worker = Worker(face)
    [late] = worker.claim()
    expire(place)
    [new] = worker.claim()
    assert face.call(late.release) is False
    assert row(place).lock_token == new.token
    assert face.call(new.release) is True
    assert row(place).lock_token is None


@pytest.mark.covers("D-24")
def test_a_cancelled_body_gives_the_row_back(place: Place) -> None:
    fill(place, *jobs(1))
    face = AsyncFace(place)
    try:
        leases = rows.lease(face.maker, NEW, owner="jobs")
        inside = threading.Event()

        async def work() -> None:
            [lease] = await leases.claim()
            async with lease:
                inside.set()
                await asyncio.sleep(PATIENCE)

        task = face.start_call(work)
        assert inside.wait(PATIENCE)
        task.cancel()
        eventually(lambda: row(place).lock_token is None)
        assert row(place).lock_owner is None
    finally:
        face.close()


@pytest.mark.covers("D-24")
def test_closing_gives_everything_back(face: Face, place: Place) -> None:
    fill(place, *jobs(3))
    worker = Worker(face)
    held = worker.claim()
    face.call(worker.leases.close)
    assert len(held) == 3
    assert set(Worker(face).ids()) == {1, 2, 3}
    with pytest.raises(takehold.UsageError, match="closed"):
        worker.claim()


# -- heartbeat -------------------------------------------------------------------------------------------------


def age(lease: Any, seconds: float) -> None:
    """As if its last extension had been sent that much earlier."""
    lease._sent -= seconds


@pytest.mark.covers("D-25")
def test_a_heartbeat_extends_only_rows_that_are_close_to_expiry(face: Face, place: Place) -> None:
    fill(place, *jobs(2))
    worker = Worker(face, seconds=30)
    first, second = worker.claim()
    for key in (1, 2):
        write(place, key=key, lock_expires_at=datetime.now(UTC) + timedelta(seconds=10))
    age(first, 20)
    age(second, 10)
    worker.beat()
    assert left(place, key=1) > 20
    assert left(place, key=2) < 11
    assert not first.lost
    assert not second.lost


@pytest.mark.covers("D-25")
def test_a_heartbeat_is_one_transaction_for_all_rows(face: Face, place: Place) -> None:
    fill(place, *jobs(20))
    worker = Worker(face, seconds=30)
    held = worker.claim(limit=20)
    for lease in held:
        age(lease, 20)
    said: list[str] = []
    event.listen(face.engine, "before_cursor_execute", lambda *args: said.append(args[2].split()[0]))
    worker.beat()
    assert said.count("UPDATE") == 1
    assert len(said) <= 3
    worker.beat()
    assert len(said) <= 3, "nothing is due any more"


@pytest.mark.covers("D-25")
def test_a_heartbeat_never_revives_what_has_expired_and_drops_what_was_taken_over(face: Face, place: Place) -> None:
    fill(place, *jobs(3))
    worker = Worker(face, seconds=30)
    expired, taken, fine = worker.claim()
    for lease in (expired, taken, fine):
        age(lease, 20)
    expire(place, key=1)
    write(place, key=2, lock_token="f" * 32, lock_expires_at=datetime.now(UTC) + timedelta(seconds=10))
    worker.beat()
    assert [lease.lost for lease in (expired, taken, fine)] == [True, True, False]
    assert row(place, key=1).lock_expires_at == LONG_AGO
    assert row(place, key=2).lock_token == "f" * 32
    assert left(place, key=2) < 11, "that of somebody else was extended"
    with pytest.raises(takehold.HoldLost):
        expired.check()
    fine.check()


@pytest.mark.covers("D-25")
def test_a_lease_that_was_not_extended_in_time_is_lost_before_it_expires(face: Face, place: Place) -> None:
    fill(place, *jobs(1))
    worker = Worker(face, seconds=30)
    [lease] = worker.claim()
    age(lease, 26.9)
    assert not lease.lost
    age(lease, 0.2)
    assert lease.lost
    worker.beat()
    assert lease.lost, "it came back"
    with pytest.raises(takehold.HoldLost, match="not extended in time"):
        face.call(lease.apply, values={"status": "done"})
    assert row(place).status == "new"


@pytest.mark.covers("D-25")
def test_a_heartbeat_does_not_wait_for_a_row_that_somebody_has_locked(face: Face, place: Place) -> None:
    if place.name == "sqlite":
        pytest.skip("has no row locks to wait for")
    fill(place, *jobs(2))
    worker = Worker(face, seconds=30)
    locked, other = worker.claim()
    write(place, key=2, lock_expires_at=datetime.now(UTC) + timedelta(seconds=10))
    age(locked, 20)
    age(other, 20)
    with face.session() as session:
        session.run(rows.lock, Job, 1)
        worker.beat()
    assert left(place, key=2) > 20
    assert not locked.lost
    assert not other.lost


@pytest.mark.covers("D-25")
def test_the_background_extends_what_is_held_and_lets_expire_what_nobody_refers_to(face: Face, place: Place) -> None:
    fill(place, *jobs(2))
    worker = Worker(face, seconds=1.2, heartbeat=0.1)
    kept, dropped = worker.claim()
    first = row(place, key=1).lock_expires_at
    del dropped
    eventually(lambda: row(place, key=1).lock_expires_at > first + timedelta(seconds=1))
    assert not kept.lost
    assert Worker(face).ids() == [2]
    face.call(kept.release)
    eventually(
        lambda: (
            worker.leases.__dict__.get("_thread") is None
            and ((task := worker.leases.__dict__.get("_task")) is None or task.done())
        )
    )


@pytest.mark.covers("D-25")
def test_a_heartbeat_that_fails_is_logged_and_tried_again(
    face: Face, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    fill(place, *jobs(1))
    worker = Worker(face, seconds=4, heartbeat=0.05)
    [lease] = worker.claim()
    first = row(place).lock_expires_at
    failures: list[str] = []

    @event.listens_for(face.engine, "before_cursor_execute")
    def _(*args: Any) -> None:
        if "SET lock_expires_at" in args[2] and len(failures) < 2:
            failures.append(args[2])
            raise OSError("no route to the database")

    with caplog.at_level(logging.WARNING, "takehold.rows"):
        eventually(lambda: row(place).lock_expires_at > first)
    assert "could not be extended" in caplog.text
    assert not lease.lost
    face.call(lease.release)


# -- related rows ----------------------------------------------------------------------------------------------


@pytest.mark.covers("D-27")
def test_related_rows_are_taken_together_extended_and_released_with_the_lease(face: Face, place: Place) -> None:
    fill(place, Run(id=1, jobs=jobs(2)))
    runs = Worker(face, select(Run), owner="runs", seconds=30)
    [lease] = runs.claim()
    with runs.body(lease):
        taken = face.call(lease.take, select(Job).where(Job.run_id == 1))
        assert [job.id for job in taken] == [1, 2]
        assert {row(place, key=key).lock_token for key in (1, 2)} == {lease.token}
        assert row(place).lock_owner == "runs:1"
        assert Worker(face).ids() == []
        write(place, key=2, lock_expires_at=datetime.now(UTC) + timedelta(seconds=10))
        age(lease, 20)
        runs.beat()
        assert left(place, key=2) > 20
        face.call(lease.apply, values={"status": "done"})
    assert row(place, Run).status == "done"
    assert Worker(face).ids() == [1, 2]


@pytest.mark.covers("D-27")
def test_when_a_related_row_is_not_to_be_had_the_owner_stays_and_the_rest_is_reset(face: Face, place: Place) -> None:
    fill(place, Run(id=1, jobs=jobs(3)))
    worker = Worker(face, yields_to=Job.run)
    runs = Worker(face, select(Run), owner="runs")
    [busy] = worker.claim(limit=1)
    before = row(place, Run).last_processed_at
    [lease] = runs.claim()
    with pytest.raises(takehold.Conflict, match="belongs to Run 1"), runs.body(lease):
        face.call(lease.take, select(Job).where(Job.run_id == 1))
    run = row(place, Run)
    assert (run.lock_owner, run.lock_token, run.lock_expires_at) == ("runs", None, None)
    assert run.last_processed_at > before
    assert [row(place, key=key).lock_token for key in (1, 2, 3)] == [busy.token, None, None]
    assert worker.ids() == [], "the others are left to the run, which waits"
    face.call(busy.apply, values={"status": "new"})
    assert worker.ids() == []
    [again] = runs.claim()
    assert len(face.call(again.take, select(Job).where(Job.run_id == 1))) == 3


@pytest.mark.covers("D-27")
def test_a_related_row_that_is_locked_counts_as_not_to_be_had(face: Face, place: Place) -> None:
    fill(place, Run(id=1, jobs=jobs(2)))
    [lease] = Worker(face, select(Run), owner="runs").claim()
    with face.session() as session:
        session.run(rows.lock, Job, 2)
        with pytest.raises(takehold.Conflict):
            face.call(lease.take, select(Job).where(Job.run_id == 1))
    assert row(place, key=1).lock_token is None
    with pytest.raises(takehold.UsageError, match="has ended"):
        face.call(lease.apply)


@pytest.mark.covers("D-27")
def test_no_related_rows_and_siblings_of_the_same_table_can_be_taken(face: Face, place: Place) -> None:
    fill(place, *jobs(3))
    worker = Worker(face)
    [lease] = worker.claim(limit=1)
    assert face.call(lease.take, select(Job).where(Job.id > 3)) == []
    assert [job.id for job in face.call(lease.take, select(Job).where(Job.id > 1))] == [2, 3]
    age(lease, 20)
    worker.beat()
    assert worker.ids() == []
    face.call(lease.apply, values={"status": "done"})
    assert [row(place, key=key).status for key in (1, 2, 3)] == ["done", "new", "new"]
    assert worker.ids() == [2, 3]


@pytest.mark.covers("D-27", "D-24")
def test_losing_a_related_row_loses_the_lease(face: Face, place: Place) -> None:
    fill(place, Run(id=1, jobs=jobs(2)))
    worker = Worker(face, select(Run), owner="runs")
    [lease] = worker.claim()
    face.call(lease.take, select(Job))
    write(place, key=2, lock_token="f" * 32)
    with pytest.raises(takehold.HoldLost):
        face.call(lease.apply, values={"status": "done"})
    assert row(place, Run).status == "new"
    assert row(place, key=1).lock_token == lease.token
    face.call(lease.release)
    assert [row(place, key=key).lock_token for key in (1, 2)] == [None, "f" * 32]


# -- misuse ----------------------------------------------------------------------------------------------------


@pytest.mark.covers("D-23")
@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"query": select(Effect)}, r"class Effect\(rows.Leased"),
        ({"query": select(Job.id)}, r"select\(Job\)"),
        ({"query": Job}, r"select\(Job\)"),
        ({"owner": ""}, "owner="),
        ({"owner": "x" * 201}, "owner="),
        ({"seconds": 0}, "seconds="),
        ({"seconds": 2, "heartbeat": 1}, "quarter"),
        ({"maker": "sqlite://"}, "sessionmaker"),
        ({"yields_to": Run.jobs}, "yields_to="),
    ],
)
def test_misuse_is_told_at_once(wrong: dict[str, Any], sentence: str) -> None:
    given: dict[str, Any] = {"maker": sessionmaker(), "query": NEW, "owner": "jobs", **wrong}
    with pytest.raises(takehold.UsageError, match=sentence):
        rows.lease(given.pop("maker"), given.pop("query"), **given)


@pytest.mark.covers("D-24")
def test_async_work_on_a_blocking_lease_is_refused_and_nothing_is_released(place: Place) -> None:
    fill(place, *jobs(1))
    [lease] = rows.lease(place.maker, NEW, owner="jobs", heartbeat=None).claim()
    promise: Future[None] = Future(loop=asyncio.new_event_loop())
    with pytest.raises(takehold.UsageError, match="async_sessionmaker"):
        lease.apply(lambda session, job: promise)
    promise.get_loop().close()
    assert row(place).lock_token == lease.token


@pytest.mark.covers("D-23")
def test_both_faces_have_the_same_surface() -> None:
    assert not parity.differences(rows.Leases, rows.AsyncLeases)
    assert not parity.differences(rows.Lease, rows.AsyncLease)
