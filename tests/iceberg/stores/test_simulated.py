"""The conformance suite on the local store with the simulated disk: the disk behaves as a real one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from takehold.iceberg.stores import LocalStore, Store
from takehold.testing.disk import SimulatedDisk
from takehold.testing.stores import *  # noqa: F403


@pytest.fixture
def store_url() -> Callable[[], Awaitable[Store]]:
    disk = SimulatedDisk()

    async def opened() -> Store:
        return LocalStore(disk)

    return opened
