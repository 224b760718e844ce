"""Names that nobody else has: chosen one after the other, on all three databases."""

from __future__ import annotations

from concurrent.futures import TimeoutError as StillWaiting

import pytest
from sqlalchemy import String, literal, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from takehold import UsageError, rows
from tests.rows.faces import Face, Handle
from tests.rows.places import Place

pytestmark = pytest.mark.slow


class Base(DeclarativeBase):
    """Of fleets."""


class Fleet(Base):
    """Its name is unique per project, and nothing but `unique_name` sees to it."""

    __tablename__ = "fleet"
    id: Mapped[int] = mapped_column(primary_key=True)
    project_id: Mapped[int]
    name: Mapped[str] = mapped_column(String(20), index=True)


def choose(s: Handle, project: int = 1, base: str = "fleet") -> str:
    """As an application does it."""
    name: str = s.run(rows.unique_name, Fleet.name, base=base, within={"project_id": project})
    s.add(Fleet(project_id=project, name=name))
    s.commit()
    return name


@pytest.mark.covers("D-19")
def test_fifty_creators_at_once_choose_fifty_names(face: Face, place: Place) -> None:
    place.fresh(Base)
    names = face.workers(50, lambda s, number: choose(s))
    assert sorted(names, key=lambda name: (len(name), name)) == ["fleet", *(f"fleet-{n}" for n in range(2, 51))]
    with face.session() as s:
        assert sorted(s.scalars(select(Fleet.name))) == sorted(names)


@pytest.mark.covers("D-19")
def test_creators_that_have_read_before_choose_different_names_too(face: Face, place: Place) -> None:
    place.fresh(Base)
    with face.session() as s:
        choose(s)

    def body(s: Handle, number: int) -> str:
        @rows.retry(attempts=50, delay=0.01)
        def create() -> str:
            try:
                s.scalars(select(Fleet.name))
                return choose(s)
            except BaseException:
                s.rollback()
                raise

        return create()

    names = face.workers(10, body)
    assert len({"fleet", *names}) == 11


@pytest.mark.covers("D-19", "D-22")
@pytest.mark.parametrize("end", ["commit", "rollback", "close"])
def test_the_next_creator_waits_until_the_transaction_ends(face: Face, place: Place, end: str) -> None:
    place.fresh(Base)
    with face.session() as s:
        assert s.run(rows.unique_name, Fleet.name, base="fleet", within={"project_id": 1}) == "fleet"
        s.add(Fleet(project_id=1, name="fleet"))
        s.flush()
        waiting = face.start(choose)
        with pytest.raises(StillWaiting):
            waiting.result(0.3)
        s.run(lambda session: getattr(session, end)())
        assert waiting.result(20) == ("fleet-2" if end == "commit" else "fleet")


@pytest.mark.covers("D-20")
def test_projects_do_not_wait_for_each_other(face: Face, place: Place) -> None:
    place.fresh(Base)
    with face.session() as s:
        assert s.run(rows.unique_name, Fleet.name, base="fleet", within={"project_id": 1}) == "fleet"
        other = face.start(lambda s: s.run(rows.unique_name, Fleet.name, base="fleet", within={"project_id": 2}))
        assert other.result(20) == "fleet"


@pytest.mark.covers("D-19")
def test_a_session_with_changes_is_refused_where_a_new_transaction_must_begin(face: Face, place: Place) -> None:
    place.fresh(Base)
    for flushed in (False, True):
        with face.session() as s:
            s.add(Fleet(project_id=1, name="mine"))
            if flushed:
                s.flush()
            if place.name == "sqlite":
                with pytest.raises(UsageError, match="Commit first"):
                    choose(s)
            else:
                assert s.run(rows.unique_name, Fleet.name, base="mine", within={"project_id": 1}) == "mine-2"
            s.rollback()
    with face.session() as s:
        assert s.scalars(select(Fleet.name)) == []


@pytest.mark.covers("D-21")
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_an_isolation_level_that_cannot_see_the_others_is_refused(place: Place, level: str) -> None:
    if place.name == "sqlite":
        pytest.skip("it has one level, and a new transaction sees everything")
    place.fresh(Base)
    engine = place.new_engine(isolation_level=level)
    with Session(engine) as session:
        if place.name == "postgresql":
            with pytest.raises(UsageError, match=f"{level}. Use READ COMMITTED"):
                rows.unique_name(session, Fleet.name, base="fleet")
        else:
            assert rows.unique_name(session, Fleet.name, base="fleet") == "fleet"
    engine.dispose()


def test_without_a_transaction_or_behind_a_savepoint_no_name_is_kept(place: Place) -> None:
    place.fresh(Base)
    with place.maker() as session, session.begin_nested(), pytest.raises(UsageError, match="begin_nested"):
        rows.unique_name(session, Fleet.name, base="fleet")
    if place.name == "mariadb":
        return  # the lock is the connection's there
    engine = place.new_engine(isolation_level="AUTOCOMMIT")
    with Session(engine) as session, pytest.raises(UsageError, match="autocommit"):
        session.scalar(select(literal(rows.unique_name(session, Fleet.name, base="fleet"))))
    engine.dispose()


def test_the_database_says_which_names_are_the_same(face: Face, place: Place) -> None:
    place.fresh(Base)
    with face.session() as s:
        s.add(*(Fleet(project_id=1, name=name) for name in ("FLEET", "a%", "a%-2", "a%-22", "ab-3", "élan")))
        s.commit()
        same = place.name == "mariadb"
        assert choose(s) == ("fleet-2" if same else "fleet")
        assert choose(s, base="a%") == "a%-3"
        assert choose(s, base="elan") == ("elan-2" if same else "elan")
        assert choose(s, project=2, base="a%") == "a%"


def test_what_cannot_be_named_is_refused(place: Place) -> None:
    place.fresh(Base)
    with place.maker() as session:
        with pytest.raises(UsageError, match="mapped column"):
            rows.unique_name(session, Fleet.__table__.c.name, base="a")  # type: ignore[call-overload]
        with pytest.raises(UsageError, match="base="):
            rows.unique_name(session, Fleet.name, base="")
        with pytest.raises(UsageError, match="project_id"):
            rows.unique_name(session, Fleet.name, base="a", within={"nonsense": 1})
        long = "x" * 19
        assert rows.unique_name(session, Fleet.name, base=long) == long
        session.add(Fleet(project_id=1, name=long))
        session.commit()
        with pytest.raises(UsageError, match="20 characters"):
            rows.unique_name(session, Fleet.name, base=long)
