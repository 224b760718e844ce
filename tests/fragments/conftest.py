"""Fixtures of fragments: a site is a database with a corpus; the embedded default, and Postgres."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fragments.site import TABLES, Diary, Site
from tests.servers.postgres import Postgres

DATABASE = "takehold_fragments"
FACES = ("threads", "asyncio")


@pytest.fixture(params=["sqlite", "postgresql"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """Both, one after the other."""
    yield from _made(request, request.param, tmp_path)


@pytest.fixture
def server_site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """On Postgres."""
    yield from _made(request, "postgresql", tmp_path)


@pytest.fixture
def file_site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """On SQLite with file locks."""
    yield from _made(request, "sqlite", tmp_path)


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest) -> str:
    """Worker or AsyncWorker."""
    return str(request.param)


def _made(request: pytest.FixtureRequest, name: str, folder: Path) -> Iterator[Site]:
    url = f"sqlite:///{folder}/fragments.db"
    server: Postgres | None = None
    if name == "postgresql":
        server = request.getfixturevalue("postgres_server")
        assert server is not None
        if not server.running:
            server.up()
        url = server.database(DATABASE)
        server.evict(DATABASE)
        server.query(f"DROP TABLE IF EXISTS {', '.join(TABLES)}", database=DATABASE)
    site = Site(name, url, folder / "corpus", Diary(folder / "diary"))
    site.folder.mkdir()
    yield site
    site.end()
    if server is not None:
        # Sessions of killed processes end a little later than these.
        server.evict(DATABASE)
