"""The conformance suite on `lease+postgresql:`."""

from __future__ import annotations

import pytest

from takehold.testing.suite import *  # noqa: F403

pytestmark = pytest.mark.slow


@pytest.fixture
def backend_url(postgres_url: str) -> str:
    return f"lease+{postgres_url}?ttl=3"
