"""That places, faces and processes do what the tests of rows take for granted."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.pool import QueuePool

from takehold.testing.faces.vocabulary import eventually
from tests.rows.faces import AsyncFace, Face, Handle, Steps, SyncFace
from tests.rows.models import Base, Child, Job, Pair, Parent, Tag
from tests.rows.places import Place
from tests.rows.processes import run_processes

pytestmark = pytest.mark.slow

DEFAULTS = {
    "sqlite": ("PRAGMA foreign_keys", 1),
    "postgresql": ("SHOW transaction_isolation", "read committed"),
    "mariadb": ("SELECT @@tx_isolation", "REPEATABLE-READ"),
}


def test_a_row_written_through_a_face_is_read_back_through_the_other(face: Face, place: Place) -> None:
    place.fresh(Base)
    with face.session() as s:
        parent = Parent(name="é漢🍩")
        s.add(parent)
        s.flush()
        s.add(Child(parent_id=parent.id, label="a"), Tag(id=7, name="t"), Pair(left_id=1, right_id=7), Job())
        s.commit()
        s.refresh(parent)
        assert (parent.id, parent.number, parent.note) == (1, 0, None)
    other = AsyncFace(place) if isinstance(face, SyncFace) else SyncFace(place)
    try:
        with other.session() as s:
            assert s.scalars(select(Parent.name)) == ["é漢🍩"]
            assert s.get(Child, 1).label == "a"
            assert s.execute(select(Pair.left_id, Pair.right_id)).all() == [(1, 7)]
            assert s.scalar(select(Job.status)) == "new"
    finally:
        other.close()


def test_what_was_not_committed_is_rolled_back_when_its_session_closes(face: Face, place: Place) -> None:
    place.fresh(Base)
    with face.session() as s:
        s.add(Parent(name="gone"))
        s.flush()
    with face.session() as s:
        assert s.scalars(select(Parent)) == []


def test_a_place_has_the_defaults_of_its_users_and_refuses_a_child_without_a_parent(face: Face, place: Place) -> None:
    place.fresh(Base)
    statement, value = DEFAULTS[place.name]
    with face.session() as s:
        assert s.scalar(text(statement)) == value
        s.add(Child(parent_id=99))
        with pytest.raises(IntegrityError):
            s.flush()
    assert isinstance(place.engine.pool, QueuePool)


def test_fresh_forgets_rows_and_ids_and_empty_only_rows(place: Place) -> None:
    place.fresh(Base)
    for round_ in range(2):
        with place.maker.begin() as session:
            session.add(Parent(name="a"))
            session.flush()
            session.add(Child(parent_id=session.scalars(select(Parent.id)).one()))
        place.empty(Base)
        with place.maker() as session:
            assert session.scalars(select(Parent)).all() == [], round_
    place.fresh(Base)
    with place.maker.begin() as session:
        parent = Parent(name="b")
        session.add(parent)
        session.flush()
        assert parent.id == 1


def test_workers_are_at_it_at_the_same_time_each_with_its_own_session(face: Face, place: Place) -> None:
    place.fresh(Base)
    together = threading.Barrier(4)

    def body(s: Handle, number: int) -> int:
        together.wait(20)
        s.add(Parent(name=str(number)))
        s.commit()
        return number

    assert face.workers(4, body) == [0, 1, 2, 3]
    with face.session() as s:
        assert sorted(s.scalars(select(Parent.name))) == ["0", "1", "2", "3"]


def test_the_error_of_a_worker_is_raised_with_a_note_on_the_others(face: Face, place: Place) -> None:
    def body(s: Handle, number: int) -> None:
        if number:
            raise ValueError(number)

    assert face.outcomes(1, body) == [None]
    with pytest.raises(ValueError, match="1") as caught:
        face.workers(3, body)
    assert caught.value.__notes__ == ["worker 2 failed too: ValueError(2)"]


def test_one_who_waits_for_a_row_is_counted(face: Face, place: Place) -> None:
    if place.name == "sqlite":
        pytest.skip("its writers poll for the file")
    place.fresh(Base)
    change = update(Parent).values(number=Parent.number + 1)
    with face.session() as s:
        s.add(Parent(name="a"))
        s.commit()
        s.execute(change)
        waiting = face.start(lambda s: s.execute(change) and s.run(lambda session: session.commit()))
        eventually(lambda: place.waiters() == 1)
        assert not waiting.done()
        s.commit()
        waiting.result(20)
        assert place.waiters() == 0
        assert s.scalar(select(Parent.number)) == 2


def test_a_function_of_steps_is_awaited_where_it_must_be(face: Face, place: Place) -> None:
    place.fresh(Base)

    @face.function
    def work(session: Any, name: str) -> Steps:
        session.add(Parent(name=name))
        yield session.flush()
        try:
            yield session.execute(text("nonsense"))
        except Exception:  # noqa: BLE001 - of any driver
            yield session.rollback()
        return (yield session.scalar(select(Parent.id)))

    with face.session() as s:
        assert s.run(work, "a") is None


def count_up(place: Place, number: int, by: int) -> list[int]:
    """In a process of its own."""
    with place.maker.begin() as session:
        session.execute(update(Parent).values(number=Parent.number + by))
    return [number, os.getpid()]


def fail(place: Place, number: int) -> None:
    """In a process of its own."""
    raise ValueError(f"of process {number}")


def test_processes_work_on_the_place_and_their_results_come_back(place: Place) -> None:
    place.fresh(Base)
    with place.maker.begin() as session:
        session.add(Parent(name="a"))
    results = run_processes(3, f"{__name__}:count_up", place, 5)
    assert [number for number, _ in results] == [0, 1, 2]
    assert len({pid for _, pid in results} | {os.getpid()}) == 4
    with place.maker() as session:
        assert session.scalar(select(Parent.number)) == 15


def test_a_process_that_fails_fails_the_test_with_what_it_said(place: Place) -> None:
    with pytest.raises(AssertionError, match="ValueError: of process 0"):
        run_processes(2, f"{__name__}:fail", place)
