"""The conformance suite on `memory:`."""

from __future__ import annotations

import secrets

import pytest

from takehold.testing.suite import *  # noqa: F403


@pytest.fixture
def backend_url() -> str:
    return f"memory:{secrets.token_hex(8)}"
