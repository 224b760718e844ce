"""Several tables read beside commits that never stop, with no lock that holds: each transaction is seen whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from takehold import LockTimeout
from takehold.iceberg import Catalog
from tests.iceberg.race import ACTS, beginning
from tests.iceberg.stage import Stage, Trusting
from tests.iceberg.test_returns import Hooked, closed
from tests.iceberg.world import WH, copied, own, setting, table

BOTH = [table("a"), table("b")]


def read_beside(at: int, act: str, last: int) -> Any:
    """What a reader gets when each of its looks at a pointer is followed by a commit, the `at`th by this act."""
    stage, store = Stage(7), copied(beginning())
    writer = Catalog(store, Trusting(), runtime=stage)
    looks = 0

    async def hook(work: Callable[..., Any], name: str, path: str, *args: Any) -> Any:
        nonlocal looks
        found = await work(path, *args)
        if name == "get" and "/tables/" in path:
            looks += 1
            if looks == at:
                await ACTS[act](writer)
            elif looks < last:
                await writer.commit_table(WH, BOTH[looks % 2], [], setting(x=str(looks)))
        return found

    reader = Catalog(Hooked(store, hook), Trusting(), runtime=stage)
    result = stage.play({"read": reader.load_tables(WH, BOTH)})["read"]
    closed(stage, reader, writer)
    return result


@pytest.mark.covers("M-29")
@pytest.mark.parametrize("act", ["transact ab", "transact hot"])
def test_beside_commits_that_never_stop_a_transaction_is_seen_whole(act: str) -> None:
    told = set()
    for at in range(1, 22):
        for last in (at, 1000):
            result = read_beside(at, act, last)
            if isinstance(result, LockTimeout):
                told.add("nothing")
                continue
            assert not isinstance(result, Exception), result
            one, other = ({"t", "h"} & own(each).keys() for each in result)
            assert one == other, (at, last)
            told.add("after" if one else "before")
    assert told >= {"before", "after"}
