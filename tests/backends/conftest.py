"""Fixtures of the backends: a lock directory, a lease table, a server."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from takehold.locks._sync import Locks
from takehold.runtime import Threads, run
from takehold.testing.faces import AsyncioFace, Face, ThreadFace
from tests.backends.lease_table import TTL, LeaseTable
from tests.backends.onlooker import Onlooker
from tests.servers.fixtures import DATABASE
from tests.servers.postgres import Postgres


def initialise(url: str, fence_from: int | None = None) -> str:
    """`takehold init`."""
    said: str = run(Locks(url)._backend.init(Threads(), fence_from=fence_from))
    return said


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a lock directory will be."""
    return tmp_path / "locks"


@pytest.fixture
def url(path: Path) -> str:
    """Of that directory, where a module has no other."""
    return f"file:{path}"


@pytest.fixture
def locks(url: str) -> Iterator[Locks]:
    """One object on it."""
    with Locks(url, timeout=20) as made:
        yield made


@pytest.fixture
def others(table: LeaseTable) -> Iterator[Locks]:
    """Another session of this process at a lease table: another ttl is another desk."""
    with Locks(table.to(ttl=TTL + 1), timeout=20) as made:
        yield made


@pytest.fixture
def fenced_url(postgres_url: str) -> str:
    """The shared database, with fences."""
    initialise(postgres_url)
    return postgres_url


@pytest.fixture
def onlooker(postgres_server: Postgres) -> Onlooker:
    """The shared database, seen from outside."""
    return Onlooker(postgres_server, DATABASE)


@pytest.fixture
def own_database(postgres_server: Postgres, postgres_url: str) -> Iterator[Onlooker]:
    """A database of its own, for a test that changes its settings."""
    name = f"own_{secrets.token_hex(4)}"
    postgres_server.database(name)
    yield Onlooker(postgres_server, name)
    postgres_server.query(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=[ThreadFace, AsyncioFace], ids=["threads", "asyncio"])
def colour(request: pytest.FixtureRequest) -> type[Face]:
    """Each face in turn, to be made on some URL."""
    made: type[Face] = request.param
    return made


@pytest.fixture
def pg(colour: type[Face], fenced_url: str) -> Iterator[Face]:
    """Each face in turn, on the shared server."""
    face = colour(fenced_url)
    yield face
    face.close()
    assert not face.troubles
