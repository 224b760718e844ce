"""A cancel at every suspension of every operation: it happened or did not, no lock is kept, nothing stays half done."""

from __future__ import annotations

import pytest

from takehold.iceberg import Catalog
from takehold.iceberg.stores import MemoryStore
from takehold.testing.simulation import Cancelled
from tests.iceberg.race import ACTS, beginning, in_order
from tests.iceberg.stage import Stage, Turnstiles
from tests.iceberg.world import WH, copied, frozen, seen


@pytest.mark.covers("M-30", "M-32", "M-35")
@pytest.mark.parametrize(
    "name",
    ["transact ab", "transact hot", "stage c and a", "rename a to c", "drop a", "overwrite a", "create c", "stage c"],
)
def test_a_cancel_at_any_step_leaves_all_or_nothing_and_no_lock(name: str) -> None:
    outcomes = set()
    for at in range(1, 200):
        stage = Stage(3)
        store: MemoryStore = copied(beginning(), stage.step)
        locks = Turnstiles(stage)
        catalog = Catalog(store, locks, runtime=stage)

        async def cancel(stage: Stage = stage) -> None:
            stage._mains[name].cancel()

        results = stage.play({name: ACTS[name](catalog), "cancel": cancel()}, [name] * at + ["cancel"])
        stage.play({"let what it began come to an end": stage.sleep(30)})
        assert not locks.held, at
        later = Stage(4)
        other = Catalog(copied(store, skip=300_000), Turnstiles(later), runtime=later)
        world = frozen(later.play({"see": seen(other)})["see"])
        assert world in (in_order(())[1], in_order((name,))[1]), at
        outcomes.add(world)
        later.play({"recover": other.recover([WH])})
        assert frozen(later.play({"see": seen(other)})["see"]) == world, at
        assert not later.play({"look": other.transactions(WH)})["look"], at
        later.play({"close": other.close()})
        stage.play({"close": catalog.close()})
        if not isinstance(results[name], Cancelled):
            assert len(outcomes) == 2
            return
    raise AssertionError("never came to the end")
