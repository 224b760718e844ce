"""The conformance suite on `file:`."""

from __future__ import annotations

from pathlib import Path

import pytest

from takehold.testing.suite import *  # noqa: F403


@pytest.fixture
def backend_url(tmp_path: Path) -> str:
    return f"file:{tmp_path}/locks"
