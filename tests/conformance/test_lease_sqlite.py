"""The conformance suite on `lease+sqlite:`."""

from __future__ import annotations

from pathlib import Path

import pytest

from takehold.testing.suite import *  # noqa: F403

pytestmark = pytest.mark.slow


@pytest.fixture
def backend_url(tmp_path: Path) -> str:
    return f"lease+sqlite:///{tmp_path}/app.db?ttl=3"
