"""The conformance suite on Azurite: conditional writes of another family."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from takehold.testing.stores import *  # noqa: F403
from tests import lanes

pytestmark = pytest.mark.slow


@pytest.fixture
def store_url(azure_url: str) -> str:
    return azure_url


@pytest.fixture  # type: ignore[no-redef]
def scaled() -> Callable[[int], int]:
    """Fewer than of a local store: each call is a request."""
    return lambda full: full if lanes.PROVE else max(1, full // 50)
