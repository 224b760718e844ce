"""Somebody to deadlock with, on purpose and every time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import update

from takehold.testing.faces.vocabulary import eventually
from tests.rows.models import Parent
from tests.rows.places import Place

PARENTS = 10


def add_parents(place: Place, count: int = PARENTS) -> None:
    """Ids from 1, named a, b, c ..."""
    with place.maker.begin() as session:
        session.add_all(Parent(id=number + 1, name=chr(ord("a") + number)) for number in range(count))


@contextmanager
def rival(place: Place) -> Iterator[None]:
    """Has every parent but the first, and wants that too once anybody waits: who then has the first is the victim.

    InnoDB spares whoever has written more, Postgres whoever has waited less.
    """
    change = update(Parent).values(number=Parent.number + 1)
    with place.engine.connect() as connection:
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
