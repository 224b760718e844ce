"""A messy corpus, loaded from many processes at once: every document once, and every loss on a list.

Texts come with emoji that the column's character set cannot store, half surrogates, titles longer than their column,
properties larger than TEXT. Custodians repeat in every process. Nothing of it stops the load, nothing is cut silently:
each process sums up what was lost, and the last lines name it by column and kind.

    pip install 'takehold[sqlalchemy,mysql]'
    python -m examples.ingest mysql+pymysql://root@127.0.0.1/corpus --processes 8 --documents 4000
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from sqlalchemy import ForeignKey, String, Text, create_engine, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from takehold import rows
from takehold.rows import clean

BATCH = 200
NAMES = ["Ada", "Grace", "Edsger", "Barbara", "Tony", "Leslie", "<nil>", "Radia 🍩"]


class Base(DeclarativeBase):
    """Of all tables."""


class Custodian(Base):
    """Whose documents these are."""

    __tablename__ = "custodians"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(40), unique=True)


class Document(Base):
    """One of the corpus."""

    __tablename__ = "documents"
    id: Mapped[int] = mapped_column(primary_key=True)
    control_number: Mapped[str] = mapped_column(String(20), unique=True)
    title: Mapped[str] = mapped_column(String(60))
    custodian_id: Mapped[int | None] = mapped_column(ForeignKey("custodians.id"))
    properties: Mapped[str] = mapped_column(Text)


def corpus(documents: int, seed: int) -> Iterator[dict[str, Any]]:
    """What a vendor delivers. Control numbers of several processes overlap: deliveries are repeated."""
    rng = random.Random(seed)
    for _ in range(documents):
        number = rng.randrange(documents * 2)
        content = random.Random(number)  # of one number always the same
        yield {
            "control_number": f"DOC-{number:08}",
            "title": content.choice(["memo", "café ☕", "party 🎉🎉", "half \ud83c emoji", "a long title " * 8]),
            "custodian": content.choice(NAMES),
            "properties": {"pages": content.randrange(90), "text": "x" * content.choice([10, 100, 70_000])},
        }


def cleaned(delivery: list[dict[str, Any]], notify: clean.Notifier) -> list[dict[str, Any]]:
    """Fit for the tables. Before the transaction, which may run twice: a loss is counted once."""
    fitted = [
        {
            "control_number": one["control_number"],
            "title": one["title"],
            "custodian": clean.text(one["custodian"], column=Custodian.name, notify=notify),
            "properties": clean.fit_properties(one["properties"], column=Document.properties, notify=notify),
        }
        for one in delivery
    ]
    return clean.records(Document, fitted, notify=notify)


def load(session: Session, batch: list[dict[str, Any]]) -> int:
    """Custodians by name, then the documents that are not there yet; how many were new."""
    names = sorted({one["custodian"] for one in batch if one["custodian"]})
    ids = {name: rows.get_or_insert(session, Custodian, name=name)[0].id for name in names}
    documents = [
        {**{key: value for key, value in one.items() if key != "custodian"}, "custodian_id": ids.get(one["custodian"])}
        for one in batch
    ]
    return rows.insert_missing(session, Document, documents, key=["control_number"]).inserted


def work(url: str, documents: int, seed: int) -> tuple[int, list[clean.Event]]:
    """One process: how many documents it added, and what was lost."""
    engine = create_engine(url)
    maker = sessionmaker(engine)
    losses: list[clean.Event] = []
    with clean.Summary(losses.append) as summary:
        delivery = cleaned(list(corpus(documents, seed)), summary)
    added = 0
    for start in range(0, documents, BATCH):
        batch = delivery[start : start + BATCH]
        added += rows.transaction(maker, functools.partial(load, batch=batch))
    engine.dispose()
    return added, losses


def main(argv: list[str] | None = None) -> int:
    """Load, then say what is there and what was lost."""
    parser = argparse.ArgumentParser(description="load a messy corpus from several processes")
    parser.add_argument("url", help="a SQLAlchemy URL of the database")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--documents", type=int, default=1000, help="per process")
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    chosen = parser.parse_args(argv)
    engine = create_engine(chosen.url)
    Base.metadata.create_all(engine)
    with ProcessPoolExecutor(chosen.processes, mp_context=get_context("spawn")) as pool:
        running = [pool.submit(work, chosen.url, chosen.documents, seed) for seed in range(chosen.processes)]
        done = [one.result() for one in running]
    with Session(engine) as session:
        there = session.scalar(select(func.count()).select_from(Document)) or 0
    engine.dispose()
    losses: Counter[str] = Counter()
    for _, events in done:
        for event in events:
            losses[f"{event['table']}.{event['column']} {event['kind']}"] += event["count"]
    report = {"added": sum(added for added, _ in done), "documents": there, "losses": dict(sorted(losses.items()))}
    if chosen.json:
        print(json.dumps(report))
    else:
        print(f"{report['added']} documents added, {there} in the table")
        for what, count in sorted(losses.items()):
            print(f"  {what}: {count} values")
    return 0


if __name__ == "__main__":
    sys.exit(main())
