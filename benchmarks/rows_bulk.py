"""What do 100 000 rows cost, half of which are there already?

Condition: rows of three columns with a unique name, in its order already, which suits the statement by hand, into a
table that has every second one; one session, one transaction, commit included; the loaded table is made anew before
each round, outside of the time. SQLite in a file with a write-ahead log; real servers on loopback, without fsync.

Peers: by hand, many rows in a statement that is compiled once, with neither sorting nor counting:
`connection.execute(statement, rows)`, on PostgreSQL with a RETURNING, which makes it one statement for many rows, and
without, which psycopg sends as a pipeline of single ones; and the way people write first, `insert().values(1000 rows)`,
compiled anew for each chunk. The latter and the SAVEPOINT for each row are measured on fewer rows: the cost of one is
the same. `upsert` changes every second of the rows that are there; by hand it counts nothing.

Bar: at least 20 times faster than a SAVEPOINT for each row, and within 1.3 times the quickest statement by hand.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from sqlalchemy import String, insert
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from benchmarks.measure import MICRO, Cell, Report, Samples, Scale, Table, at_least, at_most, conditions, ratio
from takehold import rows
from tests.rows.places import DATABASE, Place
from tests.servers.mariadb import MariaDB
from tests.servers.postgres import Postgres

CHUNK = 1_000
MISSING, UPSERT = "rows.insert_missing", "rows.upsert, with counts"
PREPARED, WRITTEN = "by hand, compiled once", "by hand, values(1000 rows)"
BY_HAND_UPSERT, ONE_BY_ONE = "upsert by hand, no counts", "SAVEPOINT for each row"
PIPELINE = "pipeline, a statement for each row"
Row: TypeAlias = "dict[str, Any]"


class Base(DeclarativeBase):
    """Of the one table."""


class Article(Base):
    """What is imported every night."""

    __tablename__ = "article"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(40), unique=True)
    size: Mapped[int]
    note: Mapped[str | None] = mapped_column(String(40))


def answer(scale: Scale, directory: Path) -> Report:
    """Measure and judge."""
    count, rounds, few = scale.of(100_000, 4_000), scale.of(3, 2), scale.of(2_000, 400)
    tables, bars = [], []
    for name, place in _places(directory):
        samples = _measured(place, count, rounds, few)
        rows_of_table: list[list[Cell]] = [
            [way, min(costs) * MICRO, statistics.median(costs) * MICRO, ratio(samples, way, MISSING)]
            for way, costs in samples.items()
        ]
        tables.append(
            Table(f"{name}, for each row", ["", "best, us", "median, us", "times the first row"], rows_of_table)
        )
        best = {way: [min(costs)] for way, costs in samples.items()}
        by_hand = min(best[way][0] for way in (PREPARED, WRITTEN, PIPELINE) if way in best)
        bars += [
            at_least(f"{name}, insert_missing against a SAVEPOINT for each row", ratio(best, ONE_BY_ONE, MISSING), 20),
            at_most(f"{name}, insert_missing against the statement by hand", best[MISSING][0] / by_hand, 1.3, "x"),
            at_least(f"{name}, upsert against a SAVEPOINT for each row", ratio(best, ONE_BY_ONE, UPSERT), 20),
            at_most(
                f"{name}, upsert against the statement by hand", best[UPSERT][0] / best[BY_HAND_UPSERT][0], 1.3, "x"
            ),
        ]
    found = conditions(directory, ["sqlalchemy", "psycopg", "pymysql"], rows=count, rounds=rounds, savepoints=few)
    return Report(tables, bars, conditions=found)


def _places(directory: Path) -> Iterator[tuple[str, Place]]:
    place = Place.sqlite(directory / "bench.db")
    yield "SQLite", place
    place.dispose()
    with Postgres.start(directory, fsync="off") as postgres:
        place = Place.server("postgresql", postgres.database(DATABASE))
        yield "PostgreSQL", place
        place.dispose()
    if not MariaDB.missing():
        with MariaDB.start(directory) as mariadb:
            place = Place.server("mariadb", mariadb.database(DATABASE))
            yield "MariaDB", place
            place.dispose()


def _measured(place: Place, count: int, rounds: int, few: int) -> Samples:
    batch = [{"name": f"article {number:07}", "size": number, "note": "as it was"} for number in range(count)]
    loaded = batch[::2]
    changed = [row | {"size": -1} if number % 4 == 0 else row for number, row in enumerate(batch)]
    ways: dict[str, tuple[Callable[[Session, list[Row]], Any], list[Row]]] = {
        MISSING: (lambda session, given: rows.insert_missing(session, Article, given), batch),
        PREPARED: (lambda session, given: session.connection().execute(_batched(place, _skipping), given), batch),
        WRITTEN: (lambda session, given: _chunk_by_chunk(session, place, given), batch[: few * 5]),
        ONE_BY_ONE: (_one_by_one, batch[:few]),
        UPSERT: (_upsert, changed),
        BY_HAND_UPSERT: (
            lambda session, given: session.connection().execute(_updating(place), given),
            changed,
        ),
    }
    if place.name == "postgresql":
        ways[PIPELINE] = (lambda session, given: session.connection().execute(_skipping(place), given), batch)
    samples: Samples = {way: [] for way in ways}
    for number in range(rounds):
        order = list(ways.items())
        for way, (work, given) in reversed(order) if number % 2 else order:
            place.fresh(Base)
            with place.maker() as session:
                session.execute(insert(Article), loaded)
                session.commit()
                start = time.perf_counter()
                work(session, given)
                session.commit()
                samples[way].append((time.perf_counter() - start) / len(given))
    return samples


# -- by hand -----------------------------------------------------------------------------------------------------


def _batched(place: Place, statement: Callable[[Place], Any]) -> Any:
    return statement(place).returning(Article.id) if place.name == "postgresql" else statement(place)


def _skipping(place: Place) -> Any:
    if place.name == "mariadb":
        return mysql.insert(Article.__table__).on_duplicate_key_update(id=Article.__table__.c.id)  # type: ignore[arg-type]
    module = sqlite if place.name == "sqlite" else postgresql
    return module.insert(Article.__table__).on_conflict_do_nothing(index_elements=["name"])


def _updating(place: Place) -> Any:
    if place.name == "mariadb":
        statement = mysql.insert(Article.__table__)  # type: ignore[arg-type]
        return statement.on_duplicate_key_update(size=statement.inserted.size)
    module = sqlite if place.name == "sqlite" else postgresql
    made = module.insert(Article.__table__)
    return made.on_conflict_do_update(index_elements=["name"], set_={"size": made.excluded.size})


def _chunk_by_chunk(session: Session, place: Place, given: list[Row]) -> None:
    for start in range(0, len(given), CHUNK):
        session.connection().execute(_skipping(place).values(given[start : start + CHUNK]))


def _one_by_one(session: Session, given: list[Row]) -> None:
    for row in given:
        with contextlib.suppress(IntegrityError), session.begin_nested():
            session.add(Article(**row))
            session.flush()


def _upsert(session: Session, given: list[Row]) -> None:
    rows.upsert(session, Article, given, key="name", update="size")
