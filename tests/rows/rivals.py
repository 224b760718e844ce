"""Somebody to deadlock with, on purpose and every time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import text, update

from takehold.testing.faces.vocabulary import eventually
from tests.rows.models import Parent
from tests.rows.places import DATABASE, Place

PARENTS = 10


def add_parents(place: Place, count: int = PARENTS) -> None:
    """Ids from 1, named a, b, c ..."""
    with place.maker.begin() as session:
        session.add_all(Parent(id=number + 1, name=chr(ord("a") + number)) for number in range(count))


@contextmanager
def rival(place: Place) -> Iterator[None]:
    """Has every parent but the first, and wants that too once anybody waits: who then has the first is the victim.

    InnoDB spares whoever has written more. Postgres looks once, some time after a wait began: the rival hardly ever,
    and whoever connects from here on late enough to find the circle closed, also on a busy machine.
    """
    change = update(Parent).values(number=Parent.number + 1)
    with _looking_late(place), place.engine.connect() as connection:
        if place.name == "postgresql":
            connection.execute(text("SET LOCAL deadlock_timeout = '60s'"))
        connection.execute(change.where(Parent.id > 1))
        failures: list[BaseException] = []

        def close_the_cycle() -> None:
            try:
                eventually(lambda: place.waiters() == 1)
                connection.execute(change.where(Parent.id == 1))
                connection.commit()
            except BaseException as error:  # noqa: BLE001 - it is the test's
                failures.append(error)

        thread = threading.Thread(target=close_the_cycle, daemon=True)
        thread.start()
        try:
            yield
        finally:
            thread.join(60)
        for error in failures:
            raise error


@contextmanager
def _looking_late(place: Place) -> Iterator[None]:
    if place.name != "postgresql":
        yield
        return
    with place.engine.begin() as connection:
        connection.execute(text(f"ALTER DATABASE {DATABASE} SET deadlock_timeout = '3s'"))
    try:
        yield
    finally:
        with place.engine.begin() as connection:
            connection.execute(text(f"ALTER DATABASE {DATABASE} RESET deadlock_timeout"))
