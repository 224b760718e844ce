"""The conformance suite on a lock server in memory, over a wire: what a backend with round trips looks like."""

from __future__ import annotations

import pytest

from takehold.testing.server import FakeBackend, FakeServer
from takehold.testing.suite import *  # noqa: F403


@pytest.fixture
def backend_url() -> FakeBackend:
    return FakeBackend(FakeServer(), latency=0.000_1)
