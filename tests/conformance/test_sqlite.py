"""The conformance suite on `sqlite:`: the code of `file:` in another place, so `make check` does without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from takehold.testing.suite import *  # noqa: F403

pytestmark = pytest.mark.slow


@pytest.fixture
def backend_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/app.db"
