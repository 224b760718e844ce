"""Two models and the table between them: pairs that several workers add at once, each pair once.

The rows on one side are locked in one order, so two workers with the same rows in another order wait and do not
deadlock. Under the lock existing pairs can be read and trusted; what is missing goes in with one statement.

    pip install 'takehold[sqlalchemy]'
    python -m examples.junction sqlite:///cases.db
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from sqlalchemy import ForeignKey, String, UniqueConstraint, create_engine, select, tuple_
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from takehold import rows


class Base(DeclarativeBase):
    """Of all tables."""


class Custodian(Base):
    """Somebody who had a document."""

    __tablename__ = "custodians"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(80), unique=True)


class Exhibit(Base):
    """A document."""

    __tablename__ = "exhibits"
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str] = mapped_column(String(200))


class Custody(Base):
    """Who had which document."""

    __tablename__ = "custodies"
    __table_args__ = (UniqueConstraint("exhibit_id", "custodian_id"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    exhibit_id: Mapped[int] = mapped_column(ForeignKey("exhibits.id"))
    custodian_id: Mapped[int] = mapped_column(ForeignKey("custodians.id"))


def assign(session: Session, pairs: Iterable[tuple[int, int]]) -> int:
    """Add (exhibit, custodian) pairs that are not there yet; how many those were. Twice adds nothing."""
    wanted = set(pairs)
    rows.lock_rows(session, Custodian, [custodian for _, custodian in wanted])
    there = select(Custody.exhibit_id, Custody.custodian_id).where(
        tuple_(Custody.exhibit_id, Custody.custodian_id).in_(wanted)
    )
    missing = wanted - {(exhibit, custodian) for exhibit, custodian in session.execute(there)}
    added = rows.insert_missing(
        session,
        Custody,
        [{"exhibit_id": exhibit, "custodian_id": custodian} for exhibit, custodian in missing],
        key=["exhibit_id", "custodian_id"],
    )
    return added.inserted


def main(url: str) -> None:
    """Two exhibits, two custodians, all four pairs; then the same again."""
    engine = create_engine(url)
    Base.metadata.create_all(engine)
    maker = sessionmaker(engine)
    with maker.begin() as session:
        rows.insert_missing(session, Custodian, [{"id": 1, "name": "Ada"}, {"id": 2, "name": "Grace"}], key=["id"])
        rows.insert_missing(session, Exhibit, [{"id": 1, "title": "letter"}, {"id": 2, "title": "memo"}], key=["id"])
    everything = [(exhibit, custodian) for exhibit in (2, 1) for custodian in (2, 1)]
    for _ in range(2):
        # Again as a whole, should the database choose us as the victim of somebody else's disorder.
        print(rows.transaction(maker, lambda session: assign(session, everything)), "pairs added")
    engine.dispose()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", default="sqlite:///cases.db", help="a SQLAlchemy URL of the database")
    main(parser.parse_args().url)
