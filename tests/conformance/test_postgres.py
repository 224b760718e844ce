"""The conformance suite on `postgresql:`, on a real server."""

from __future__ import annotations

import pytest

from takehold.locks._sync import Locks
from takehold.runtime import Threads, run
from takehold.testing.suite import *  # noqa: F403
from tests.servers.postgres import Postgres

pytestmark = pytest.mark.slow


@pytest.fixture
def backend_url(postgres_url: str, fences: None) -> str:
    return postgres_url


@pytest.fixture(scope="module")
def fences(postgres_server: Postgres) -> None:
    backend = Locks(postgres_server.url("takehold_tests"))._backend
    run(backend.init(Threads(), fence_from=None))
