"""Fixtures of rows: a place is a database, a face on it is Session or AsyncSession."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rows import faces, places
from tests.rows.faces import Face
from tests.rows.places import Place
from tests.servers.mariadb import MariaDB
from tests.servers.postgres import Postgres


@pytest.fixture(params=places.NAMES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """One of the three databases. ``place.fresh(Base)`` makes the tables."""
    made = _place(request, tmp_path)
    yield made
    made.dispose()


@pytest.fixture(params=faces.NAMES)
def face(request: pytest.FixtureRequest, place: Place) -> Iterator[Face]:
    """Session or AsyncSession on ``place``."""
    made = faces.FACES[request.param](place)
    yield made
    made.close()


def _place(request: pytest.FixtureRequest, folder: Path) -> Place:
    """What a failed test before left open there is ended, so that no other waits for it."""
    if request.param == "sqlite":
        return Place.sqlite(folder / "rows.db")
    server: Postgres | MariaDB
    if request.param == "postgresql":
        server = request.getfixturevalue("postgres_server")
    else:
        server = request.getfixturevalue("mariadb_server")
    if not server.running:
        server.up()
    url = server.database(places.DATABASE)
    server.evict(places.DATABASE)
    return Place.server(request.param, url)
