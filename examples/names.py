"""A name for everything new: the next free one of its project, however many are made at once.

pip install 'takehold[sqlalchemy]'
python -m examples.names sqlite:///fleets.db
"""

from __future__ import annotations

import argparse

from sqlalchemy import String, UniqueConstraint, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from takehold import rows


class Base(DeclarativeBase):
    """Of all tables."""


class Fleet(Base):
    """Some machines of a project; its name is unique there."""

    __tablename__ = "fleets"
    __table_args__ = (UniqueConstraint("project", "name"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    project: Mapped[str] = mapped_column(String(40))
    name: Mapped[str] = mapped_column(String(80))


def create(session: Session, project: str) -> Fleet:
    """A fleet with a name of its own. The name is safe from others until the transaction ends, and taken after it."""
    name = rows.unique_name(session, Fleet.name, base="fleet", within={"project": project})
    fleet = Fleet(project=project, name=name)
    session.add(fleet)
    session.flush()
    return fleet


def main(url: str) -> None:
    """Three fleets in each of two projects."""
    engine = create_engine(url)
    Base.metadata.create_all(engine)
    maker = sessionmaker(engine)
    for project in ("main", "main", "main", "other", "other", "other"):
        with maker.begin() as session:
            print(project, create(session, project).name)
    engine.dispose()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", default="sqlite:///fleets.db", help="a SQLAlchemy URL of the database")
    main(parser.parse_args().url)
