"""One server for the tests that do not care what else is in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from takehold.server import Serving
from tests.server.http import Http


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """In this process, on a directory."""
    with Serving(str(tmp_path_factory.mktemp("lake") / "lake")) as running:
        yield running


@pytest.fixture
def http(server: Serving) -> Iterator[Http]:
    with Http(server.uri) as client:
        yield client
