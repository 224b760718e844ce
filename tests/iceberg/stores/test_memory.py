"""The conformance suite on `memory:`, and what only memory does."""

from __future__ import annotations

import uuid

import pytest

from takehold.iceberg.stores import MemoryStore, open_store
from takehold.runtime import run
from takehold.testing.simulation import Simulation
from takehold.testing.stores import *  # noqa: F403


@pytest.fixture
def store_url() -> str:
    return f"memory:{uuid.uuid4().hex}"


def test_without_a_name_each_one_is_private() -> None:
    one, other = run(open_store("memory:")), run(open_store("memory:"))
    run(one.put_new("a", b"x"))
    assert run(other.get("a")) is None


def test_in_a_simulation_others_come_between_the_read_and_the_write() -> None:
    lost = 0
    for seed in range(20):
        sim = Simulation(seed)
        store = MemoryStore(pause=lambda sim=sim: sim.sleep(0.01))  # type: ignore[misc]

        async def count(store: MemoryStore = store) -> None:
            nonlocal lost
            found = await store.get("n")
            assert found is not None
            try:
                await store.put_if("n", b"%d" % (int(found.data) + 1), found.tag)
            except Exception:  # noqa: BLE001 - counted
                lost += 1

        sim.run(store.put_new("n", b"0"))
        sim.run(count(), count())
    assert lost
