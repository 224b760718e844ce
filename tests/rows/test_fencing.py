"""A late write of a hold that was lost changes nothing, and its writer hears of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import delete, insert, select, text, update
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from takehold import Locks, StaleFence, UsageError, rows
from tests.rows.faces import Face
from tests.rows.places import Place

pytestmark = pytest.mark.slow


class Base(DeclarativeBase):
    """Of accounts."""


class Account(rows.Fenced, Base):
    """Written under a lock on something else."""

    __tablename__ = "account"
    id: Mapped[int] = mapped_column(primary_key=True)
    balance: Mapped[int] = mapped_column(default=0)


class Plain(Base):
    """Has no fence."""

    __tablename__ = "plain"
    id: Mapped[int] = mapped_column(primary_key=True)


@dataclass
class Grip:
    """As much of a hold as matters here."""

    fence: int


def test_an_older_hold_changes_nothing_after_a_newer_one(face: Face, place: Place) -> None:
    place.fresh(Base)
    with Locks(f"file:{place.engine.url.database or 'x'}.held" if place.name == "sqlite" else "memory:") as locks:
        older = locks.lock("account/1").acquire()
        older.release()  # as far as the others know, it is dead
        newer = locks.lock("account/1").acquire()
        assert newer.fence > older.fence
        with face.session() as s:
            s.add(Account(id=1), Account(id=2))
            s.commit()
            change = update(Account).where(Account.id == 1)
            assert s.execute(rows.fenced(change.values(balance=1), older)).rowcount == 1
            assert s.execute(rows.fenced(change.values(balance=2), newer)).rowcount == 1
            assert s.execute(rows.fenced(change.values(balance=3), newer)).rowcount == 1
            assert s.execute(rows.fenced(change.values(balance=4), older)).rowcount == 0
            assert s.execute(rows.fenced(delete(Account).where(Account.id == 1), older)).rowcount == 0
            s.commit()
            assert s.execute(select(Account.balance, Account.fence).order_by(Account.id)).all() == [
                (3, newer.fence),
                (0, 0),
            ]
            assert s.execute(rows.fenced(delete(Account).where(Account.id == 1), newer)).rowcount == 1
        newer.release()


def test_a_stale_write_is_told_from_a_row_that_is_not_there(face: Face, place: Place) -> None:
    place.fresh(Base)
    with face.session() as s:
        s.add(*(Account(id=id_, fence=fence) for id_, fence in ((1, 9), (2, 3), (3, 3))))
        s.commit()
        change = update(Account).values(balance=1)
        assert s.run(rows.write_fenced, change.where(Account.id == 99), Grip(5)) == 0
        assert s.run(rows.write_fenced, change.where(Account.id > 1), Grip(5)) == 2
        with pytest.raises(StaleFence, match="fence 9 has written account already, this one has 5"):
            s.run(rows.write_fenced, change.where(Account.id == 1), Grip(5))
        with pytest.raises(StaleFence):
            s.run(rows.write_fenced, change, Grip(5))
        s.rollback()
        with pytest.raises(StaleFence):
            s.run(rows.write_fenced, delete(Account).where(Account.id == 1), Grip(8))
        assert s.run(rows.write_fenced, delete(Account).where(Account.id == 1), Grip(9)) == 1


def test_a_stale_write_is_seen_from_an_old_snapshot_too(face: Face, place: Place) -> None:
    if place.name == "sqlite":
        pytest.skip("nothing can be written on an old snapshot there")
    place.fresh(Base)
    with face.session() as s:
        s.add(Account(id=1))
        s.commit()
        s.scalars(select(Account.fence))
        with face.session() as other:
            assert other.run(rows.write_fenced, update(Account).values(balance=7), Grip(7)) == 1
            other.commit()
        with pytest.raises(StaleFence):
            s.run(rows.write_fenced, update(Account).where(Account.id == 1).values(balance=5), Grip(5))


def test_a_row_written_without_takehold_begins_at_fence_zero(place: Place) -> None:
    place.fresh(Base)
    with place.maker() as session:
        session.execute(text("INSERT INTO account (id, balance) VALUES (1, 0)"))
        assert session.scalar(select(Account.fence)) == 0
        loaded = session.get_one(Account, 1)
        table: Any = Account.__table__
        result: Any = session.execute(rows.fenced(update(table).values(balance=1), Grip(1)))
        assert result.rowcount == 1
        assert loaded.balance == 0, "documented: loaded objects keep what they had"


def test_what_has_no_fence_is_refused(place: Place) -> None:
    place.fresh(Base)
    change = update(Account).values(balance=1)
    for wrong in (None, object(), Grip("7"), Grip(True)):  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="has a fence"):
            rows.fenced(change, wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="mixin"):
        rows.fenced(update(Plain).values(id=1), Grip(1))
    with pytest.raises(UsageError, match="update"):
        rows.fenced(insert(Account), Grip(1))  # type: ignore[type-var]
