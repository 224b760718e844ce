"""What does it cost that a release before the commit is reported?

Condition: one thread or one task, nothing else held, an empty block, `memory:`, `takehold.rows` imported; with the hook
of the report and without it, in turns. Once nobody has written anything, once another thread has a session with
uncommitted writes.

Bar: at most 2 microseconds for each hold, the median of the rounds' differences.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import takehold
from benchmarks.measure import (
    MICRO,
    Report,
    Samples,
    Scale,
    Work,
    at_most,
    conditions,
    cost_table,
    interleave,
    loop,
    loop_async,
)
from benchmarks.peers import KEY
from takehold import locks as faces
from takehold.rows.uncommitted import released

OFF, ON = "without the report", "with the report"


class Base(DeclarativeBase):
    """Of the one table."""


class Note(Base):
    """Something to write."""

    __tablename__ = "note"
    id: Mapped[int] = mapped_column(primary_key=True)


def answer(scale: Scale, directory: Path) -> Report:
    """Measure and judge."""
    rounds, operations = scale.of(60, 8), scale.of(1000, 200)
    tables, bars = [], []
    for what, written in (("nobody has written", False), ("another thread has written", True)):
        with _written(directory / "notes.db", written=written):
            for face, works in (("with", _blocking()), ("async with", _asyncio())):
                samples = interleave(works, rounds=rounds, operations=operations)
                tables.append(cost_table(f"{face} locks.lock(key): pass, {what}", samples, OFF))
                bars.append(at_most(f"the report, {face}, {what}", _difference(samples), 2, "us"))
    return Report(tables, bars, conditions=conditions(None, ("SQLAlchemy",), rounds=rounds, operations=operations))


def _difference(samples: Samples) -> float:
    return statistics.median(on - off for on, off in zip(samples[ON], samples[OFF], strict=True)) * MICRO


def _blocking() -> dict[str, Work]:
    locks = takehold.Locks("memory:")
    work = loop(lambda: locks.lock(KEY))

    def hooked(operations: int) -> None:
        with _hook():
            work(operations)

    return {OFF: work, ON: hooked}


def _asyncio() -> dict[str, Work]:
    locks = takehold.AsyncLocks("memory:")
    work = loop_async(lambda: locks.lock(KEY))

    async def hooked(operations: int) -> None:
        with _hook():
            running: Any = work(operations)
            await running

    return {OFF: work, ON: hooked}


@contextmanager
def _hook() -> Iterator[None]:
    faces.on_release = released
    try:
        yield
    finally:
        faces.on_release = None


@contextmanager
def _written(path: Path, *, written: bool) -> Iterator[None]:
    """The hook off but where it is measured; beside it a thread whose session has not committed."""
    engine = create_engine(f"sqlite:///{path}")
    Base.metadata.create_all(engine)
    done, ready = threading.Event(), threading.Event()

    def write() -> None:
        with Session(engine) as session:
            session.add(Note())
            session.flush()
            ready.set()
            done.wait()

    before, faces.on_release = faces.on_release, None
    thread = threading.Thread(target=write)
    try:
        if written:
            thread.start()
            ready.wait()
        yield
    finally:
        done.set()
        if written:
            thread.join()
        faces.on_release = before
        engine.dispose()
