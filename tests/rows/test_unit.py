"""`transaction` and `retry`: the whole unit again after a failure of the database, and nothing else."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import event, func, insert, select, text, update
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from takehold import Conflict, UnknownOutcome, UsageError, rows
from takehold.rows.attempts import Attempts
from takehold.rows.dialects import Trouble, trouble_of
from tests.rows.faces import Face, Steps
from tests.rows.models import Base, Child, Parent, Tag
from tests.rows.places import Place
from tests.rows.rivals import add_parents, rival

pytestmark = pytest.mark.slow

SNAPSHOT = {"sqlite": None, "postgresql": "REPEATABLE READ", "mariadb": None}
"""The isolation level at which a write on an old snapshot fails."""


@pytest.fixture(autouse=True)
def _tables(place: Place) -> None:
    place.fresh(Base)
    add_parents(place)


def names(place: Place) -> list[str]:
    with place.maker() as session:
        return list(session.scalars(select(Tag.name).order_by(Tag.id)))


class Defeat:
    """Makes the database give up on a unit, as often as it is told to: a real failure each time."""

    def __init__(self, place: Place, times: int) -> None:
        self.place = place
        self.times = times

    def steps(self, session: Any) -> Steps:
        """`yield from` it where the unit is to fail."""
        if self.times == 0:
            return
        self.times -= 1
        if self.place.name == "mariadb":
            with rival(self.place):
                yield session.execute(select(Parent).where(Parent.id.in_([1, 2])).with_for_update())
            raise AssertionError("somebody had to be the victim")
        if self.place.name == "sqlite":
            yield session.rollback()
            yield session.execute(text("BEGIN"))
        yield session.scalar(select(Parent.number))
        change = update(Parent).where(Parent.id == 1).values(number=Parent.number + 1)
        with self.place.maker.begin() as other:
            other.execute(change)
        yield session.execute(change)
        raise AssertionError("the snapshot was too old")


@contextlib.contextmanager
def warnings_of(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """What `rows.unit` says meanwhile."""
    heard: list[str] = []
    caplog.clear()
    with caplog.at_level(logging.WARNING, "takehold.rows.unit"):
        yield heard
    heard += [one.getMessage() for one in caplog.records if one.name == "takehold.rows.unit"]


# -- transaction ---------------------------------------------------------------------------------------------


@pytest.mark.covers("N-28")
def test_a_unit_is_committed_and_its_result_returned(face: Face, place: Place) -> None:
    @face.function
    def work(session: Any) -> Steps:
        session.add(Tag(name="done"))
        return (yield session.scalar(select(func.count(Parent.id))))

    assert face.call(rows.transaction, face.maker, work) == 10
    assert names(place) == ["done"]


@pytest.mark.covers("N-8", "N-9", "N-28", "N-7")
def test_the_whole_unit_runs_again_in_a_fresh_transaction(
    face: Face, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    defeat, sessions = Defeat(place, 2), []

    @face.function
    def work(session: Any) -> Steps:
        sessions.append(session)
        if place.name != "sqlite":  # `Defeat` begins anew there
            session.add(Tag(name=f"attempt {len(sessions)}"))
            yield session.flush()
        yield from defeat.steps(session)
        session.add(Tag(name="the end"))

    with warnings_of(caplog) as heard:
        face.call(rows.transaction, face.maker, work, isolation=SNAPSHOT[place.name], delay=0.01)
    assert len({id(one) for one in sessions}) == 3
    assert names(place) == (["the end"] if place.name == "sqlite" else ["attempt 3", "the end"])
    trouble = "Serialization failure" if place.name == "postgresql" else "Deadlock"
    assert [one.partition(" in ")[0] for one in heard] == [trouble] * 2
    assert [one.rpartition(", ")[2] for one in heard] == ["attempt 1/5", "attempt 2/5"]


@pytest.mark.covers("N-9", "N-28")
def test_the_last_failure_is_a_conflict_from_the_drivers_error(face: Face, place: Place) -> None:
    defeat = Defeat(place, 9)

    @face.function
    def work(session: Any) -> Steps:
        yield from defeat.steps(session)

    with pytest.raises(
        Conflict, match=r"work failed 2 times, at last with a (deadlock|serialization failure)"
    ) as caught:
        face.call(rows.transaction, face.maker, work, 2, SNAPSHOT[place.name], delay=0.01)
    assert defeat.times == 7
    assert isinstance(caught.value.__cause__, DBAPIError)
    assert trouble_of(caught.value.__cause__) in {Trouble.DEADLOCK, Trouble.SERIALIZATION}


@pytest.mark.covers("N-8", "N-23")
@pytest.mark.parametrize("how", ["transaction", "retry"])
def test_other_errors_are_raised_at_once_and_nothing_is_kept(face: Face, place: Place, how: str) -> None:
    attempts: list[str] = []

    @face.function
    def work(session: Any, what: str) -> Steps:
        attempts.append(what)
        session.add(Tag(name="not kept"))
        yield session.flush()
        if what == "foreign key":
            session.add(Child(parent_id=99))
        elif what == "duplicate":
            session.add(Tag(name="not kept"))
        elif what == "nonsense":
            yield session.execute(text("nonsense"))
        else:
            raise KeyError(what)
        yield session.flush()

    def call(what: str) -> None:
        if how == "transaction":
            face.call(rows.transaction, face.maker, lambda session: work(session, what))
        else:
            with face.session() as s:
                s.run(rows.retry(work), what)

    for what, error in (
        ("foreign key", IntegrityError),
        ("duplicate", IntegrityError),
        ("nonsense", DBAPIError),
        ("of ours", KeyError),
    ):
        with pytest.raises(error):
            call(what)
    assert attempts == ["foreign key", "duplicate", "nonsense", "of ours"]
    assert names(place) == []


@pytest.mark.covers("N-23")
@pytest.mark.parametrize("how", ["transaction", "retry"])
def test_a_duplicate_key_is_one_more_reason_if_so_asked_but_no_other_integrity_error(
    face: Face, place: Place, how: str
) -> None:
    seen: list[list[str]] = []

    @face.function
    def work(session: Any, wrong: bool = False) -> Steps:
        known = list((yield session.scalars(select(Tag.name))))
        seen.append(known)
        if len(seen) == 1:
            with place.maker.begin() as other:
                other.add(Tag(name="a"))
        if "a" not in known:
            session.add(Child(parent_id=99) if wrong else Tag(name="a"))
            yield session.flush()
        yield session.commit()

    def call(wrong: bool) -> None:
        if how == "transaction":
            once = lambda session: work(session, wrong)  # noqa: E731 - it is passed on
            face.call(rows.transaction, face.maker, once, delay=0, duplicates=True)
        else:
            with face.session() as s:
                s.run(rows.retry(delay=0, duplicates=True)(work), wrong)

    call(False)
    assert seen == [[], ["a"]]
    place.empty(Base)
    seen.clear()
    with pytest.raises(IntegrityError):
        call(True)
    assert len(seen) == 1


@pytest.mark.covers("N-28")
def test_it_works_beside_a_session_that_is_in_a_transaction(face: Face, place: Place) -> None:
    @face.function
    def work(session: Any) -> Steps:
        yield session.execute(update(Parent).where(Parent.id == 2).values(number=5))

    with face.session() as s:
        assert s.scalar(select(Parent.number).where(Parent.id == 1)) == 0
        if place.name != "sqlite":  # where one writes at a time
            s.execute(update(Parent).where(Parent.id == 1).values(number=9))
        face.call(rows.transaction, face.maker, work)
        assert s.session.in_transaction()
        s.rollback()
        assert s.scalars(select(Parent.number).where(Parent.id < 3).order_by(Parent.id)) == [0, 5]


ISOLATION = {
    "sqlite": ("READ UNCOMMITTED", "PRAGMA read_uncommitted", 1, 0),
    "postgresql": ("SERIALIZABLE", "SHOW transaction_isolation", "serializable", "read committed"),
    "mariadb": ("READ COMMITTED", "SELECT @@tx_isolation", "READ-COMMITTED", "REPEATABLE-READ"),
}


@pytest.mark.covers("N-28")
def test_an_isolation_level_is_for_this_transaction_only(face: Face, place: Place) -> None:
    level, question, inside, outside = ISOLATION[place.name]

    @face.function
    def work(session: Any) -> Steps:
        return (yield session.scalar(text(question)))

    assert face.call(rows.transaction, face.maker, work, isolation=level) == inside
    assert face.call(rows.transaction, face.maker, work) == outside


IDENTITY = {"postgresql": "SELECT pg_backend_pid()", "mariadb": "SELECT connection_id()"}
KILL = {"postgresql": "SELECT pg_terminate_backend({}, 5000)", "mariadb": "KILL {}"}


@pytest.mark.covers("N-28")
def test_a_connection_that_dies_in_the_commit_leaves_an_unknown_outcome_and_is_not_repeated(
    face: Face, place: Place
) -> None:
    if place.name == "sqlite":
        pytest.skip("it has no connection to lose")
    attempts = []

    @face.function
    def work(session: Any) -> Steps:
        attempts.append(session)
        session.add(Tag(name="perhaps"))
        yield session.flush()
        number = yield session.scalar(text(IDENTITY[place.name]))
        with place.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as other:
            other.execute(text(KILL[place.name].format(number)))

    with pytest.raises(UnknownOutcome, match="the connection was lost in the commit") as caught:
        face.call(rows.transaction, face.maker, work, duplicates=True)
    assert len(attempts) == 1
    assert caught.value.__cause__ is not None


@pytest.mark.covers("N-28")
def test_a_connection_that_dies_before_the_commit_is_no_unknown_outcome(face: Face, place: Place) -> None:
    if place.name == "sqlite":
        pytest.skip("it has no connection to lose")
    attempts = []

    @face.function
    def work(session: Any) -> Steps:
        attempts.append(session)
        number = yield session.scalar(text(IDENTITY[place.name]))
        with place.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as other:
            other.execute(text(KILL[place.name].format(number)))
        session.add(Tag(name="never sent"))  # the flush, before the commit, finds it out

    with pytest.raises(DBAPIError):
        face.call(rows.transaction, face.maker, work)
    assert len(attempts) == 1
    assert names(place) == []


def test_the_colours_of_maker_and_work_must_agree(face: Face, place: Place) -> None:
    async def awaited(session: Any) -> None:
        """Does nothing."""

    def called(session: Any) -> None:
        """Does nothing."""

    wrong: Callable[..., Any] = awaited if face.name == "sync" else called
    with pytest.raises(UsageError, match="async"):
        face.call(rows.transaction, face.maker, wrong)
    with pytest.raises(UsageError, match="takes a sessionmaker or an async_sessionmaker, not Session"):
        face.call(rows.transaction, Session(), called)


# -- retry ---------------------------------------------------------------------------------------------------


@pytest.mark.covers("N-23", "N-8", "N-5")
def test_a_function_that_owns_its_unit_runs_again_as_a_whole(
    face: Face, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    defeat, runs = Defeat(place, 1), []

    @rows.retry
    @face.function
    def unit(session: Any, *, name: str) -> Steps:
        """Writes a name."""
        runs.append(name)
        if SNAPSHOT[place.name]:
            yield session.connection(execution_options={"isolation_level": SNAPSHOT[place.name]})
        yield from defeat.steps(session)
        session.add(Tag(name=f"{name} {len(runs)}"))
        yield session.commit()
        return name

    assert unit.__name__ == "unit"
    assert unit.__doc__ == "Writes a name."
    with face.session() as s, warnings_of(caplog) as heard:
        assert s.run(unit, name="run") == "run"
    assert runs == ["run", "run"]
    assert names(place) == ["run 2"]
    assert len(heard) == 1
    assert heard[0].endswith("unit, attempt 1/5")


@pytest.mark.covers("N-23", "N-9")
def test_attempts_end_with_a_conflict_from_the_drivers_error(face: Face, place: Place) -> None:
    defeat = Defeat(place, 5)

    @rows.retry(attempts=2, delay=0.01)
    @face.function
    def unit() -> Steps:
        session = face.maker()
        try:
            if SNAPSHOT[place.name]:
                yield session.connection(execution_options={"isolation_level": SNAPSHOT[place.name]})
            yield from defeat.steps(session)
        finally:
            yield session.close()

    with pytest.raises(Conflict, match="unit failed 2 times") as caught:
        face.call(unit)
    assert defeat.times == 3
    assert isinstance(caught.value.__cause__, DBAPIError)


@pytest.mark.covers("N-8", "N-28")
def test_a_session_in_mid_transaction_is_refused_and_left_as_it_is(face: Face, place: Place) -> None:
    runs = []

    @rows.retry
    @face.function
    def unit(session: Any) -> Steps:
        runs.append(session)
        yield session.commit()

    with face.session() as s:
        s.add(Tag(name="earlier"))
        s.flush()
        with pytest.raises(UsageError, match=r"middle of a transaction.*use rows\.transaction\(maker, work\)"):
            s.run(unit)
        with pytest.raises(UsageError, match=r"rows\.transaction"):
            face.call(lambda: unit(session=s.session))
        assert runs == []
        assert s.scalars(select(Tag.name)) == ["earlier"]
        s.commit()
        s.run(unit)
    assert len(runs) == 1
    assert names(place) == ["earlier"]


@pytest.mark.covers("N-6", "N-8")
def test_a_deadlock_of_a_lock_after_other_work_is_run_again_by_the_unit(face: Face, place: Place) -> None:
    if place.name == "sqlite":
        pytest.skip("its keys are taken all at once")
    runs: list[int] = []

    @rows.retry(delay=0.01)
    @face.function
    def unit(session: Any) -> Steps:
        runs.append(1)
        session.add(Tag(name=f"run {len(runs)}"))
        yield session.flush()
        with rival(place) if len(runs) == 1 else contextlib.nullcontext():
            yield rows.lock_rows(session, Parent, [1, 2])
        yield session.commit()

    with face.session() as s:
        s.run(unit)
    assert names(place) == ["run 2"]


# -- what the driver says ------------------------------------------------------------------------------------


@pytest.mark.covers("N-7")
def test_trouble_is_told_by_the_drivers_code(face: Face, place: Place) -> None:
    found: dict[str, Trouble] = {}

    def fail(name: str, work: Callable[[Any], Any]) -> None:
        with face.session() as s, pytest.raises(DBAPIError) as caught:
            work(s)
        found[name] = trouble_of(caught.value)

    with place.maker.begin() as session:
        session.add(Tag(id=1, name="a"))
    fail("unique", lambda s: (s.add(Tag(name="a")), s.flush()))
    fail("primary key", lambda s: s.execute(insert(Tag).values(id=1, name="b")))
    fail("foreign key", lambda s: (s.add(Child(parent_id=99)), s.flush()))
    fail("not null", lambda s: s.execute(text("INSERT INTO tag (id, name) VALUES (5, NULL)")))
    fail("no such table", lambda s: s.execute(text("SELECT * FROM nowhere")))
    assert found == {
        "unique": Trouble.DUPLICATE,
        "primary key": Trouble.DUPLICATE,
        "foreign key": Trouble.OTHER,
        "not null": Trouble.OTHER,
        "no such table": Trouble.OTHER,
    }
    assert trouble_of(ValueError("database is locked")) is Trouble.OTHER


@pytest.mark.covers("N-7")
def test_a_deadlock_is_a_deadlock_and_a_timeout_is_not(face: Face, place: Place) -> None:
    if place.name == "sqlite":
        change = update(Parent).values(number=1)
        event.listen(face.engine, "begin", lambda connection: connection.exec_driver_sql("PRAGMA busy_timeout = 1"))
        with place.maker() as holder, face.session() as s:
            holder.execute(change)
            with pytest.raises(DBAPIError) as caught:
                s.execute(change)
            assert trouble_of(caught.value) is Trouble.DEADLOCK
        return
    with face.session() as s:
        s.scalar(select(func.count(Tag.id)))  # so that the lock is not the first statement
        with rival(place), pytest.raises(DBAPIError) as caught:
            s.run(rows.lock_rows, Parent, [1, 2])
        assert trouble_of(caught.value) is Trouble.DEADLOCK
    with face.session() as s, place.maker() as holder:
        rows.lock_rows(holder, Parent, 1)
        with pytest.raises(DBAPIError) as caught:
            s.execute(select(Parent).where(Parent.id == 1).with_for_update(nowait=True))
        assert trouble_of(caught.value) is Trouble.LOCKED


# -- how often -----------------------------------------------------------------------------------------------


@pytest.mark.covers("N-9", "N-5")
def test_pauses_grow_with_jitter_and_none_follows_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DB_DEADLOCK_RETRY_ATTEMPTS", raising=False)
    monkeypatch.delenv("DB_DEADLOCK_RETRY_DELAY", raising=False)
    default = Attempts.of(None, None)
    assert (default.count, default.delay) == (5, 0.2)
    runs = [list(default) for _ in range(50)]
    assert [number for number, _ in runs[0]] == [1, 2, 3, 4, 5]
    assert all(run[-1][1] is None for run in runs)
    for place, middle in enumerate([0.2, 0.32, 0.512, 0.8192]):
        pauses = [run[place][1] for run in runs]
        assert all(pause is not None and middle * 0.5 <= pause <= middle * 1.5 for pause in pauses)
        assert len(set(pauses)) > 1


@pytest.mark.covers("N-5")
def test_the_environment_says_how_often_and_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_DEADLOCK_RETRY_ATTEMPTS", "2")
    monkeypatch.setenv("DB_DEADLOCK_RETRY_DELAY", "1.5")
    assert Attempts.of(None, None) == Attempts(2, 1.5)
    assert Attempts.of(3, 0) == Attempts(3, 0)
    monkeypatch.setenv("DB_DEADLOCK_RETRY_ATTEMPTS", "many")
    with pytest.raises(UsageError, match="DB_DEADLOCK_RETRY_ATTEMPTS is a number; this environment says 'many'"):
        Attempts.of(None, None)
    for count, delay in ((0, 0.2), (1, -1)):
        with pytest.raises(UsageError, match="attempts= is 1 or more"):
            Attempts.of(count, delay)
