"""Requests that are not what they should be: a sentence, before anything is read or written."""

from __future__ import annotations

import gzip
from typing import Any

import orjson
import pytest

from takehold import TakeholdError, UsageError
from takehold.iceberg import Catalog, TableChange
from takehold.iceberg.metadata import BadUpdate
from takehold.iceberg.stores import MemoryStore
from tests.iceberg.race import beginning
from tests.iceberg.stage import Stage, Trusting
from tests.iceberg.world import UUID, WH, copied, live, setting, table

PLACE = "memory:///warehouses/x/y"
ODD: list[Any] = ["assert-create", None, 7, [], ["assert-create"], {}, {"type": 7}, {"type": None}]


def said(catalog: Catalog, stage: Stage, requirements: Any, updates: Any, *, together: bool) -> Any:
    """What a commit to a table that is not there yet gives."""
    if together:
        changes = [TableChange(table("a"), (), setting(z="1")), TableChange(table("new"), requirements, updates)]
        return stage.play({"act": catalog.transaction(WH, changes)})["act"]
    return stage.play({"act": catalog.commit_table(WH, table("new"), requirements, updates)})["act"]


@pytest.fixture
def store() -> MemoryStore:
    return copied(beginning())


@pytest.fixture
def stage() -> Stage:
    return Stage(5)


@pytest.fixture
def catalog(stage: Stage, store: MemoryStore) -> Any:
    made = Catalog(store, Trusting(), runtime=stage)
    yield made
    stage.play({"close": made.close()})


@pytest.mark.covers("M-26")
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_what_is_no_requirement_or_update_is_refused(catalog: Catalog, stage: Stage, odd: Any, together: bool) -> None:
    result = said(catalog, stage, [odd], live(PLACE), together=together)
    assert isinstance(result, BadUpdate), result
    result = said(catalog, stage, [{"type": "assert-create"}], [*live(PLACE), odd], together=together)
    assert isinstance(result, BadUpdate), result


@pytest.mark.covers("M-26")
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("odd", ["assert-create", 7, {"type": "assert-create"}], ids=repr)
def test_what_is_no_list_is_refused(catalog: Catalog, stage: Stage, odd: Any, together: bool) -> None:
    assert isinstance(said(catalog, stage, odd, live(PLACE), together=together), BadUpdate)
    assert isinstance(said(catalog, stage, [{"type": "assert-create"}], odd, together=together), BadUpdate)


@pytest.mark.covers("M-26")
@pytest.mark.parametrize("together", [False, True])
def test_letters_of_a_requirement_may_be_large(catalog: Catalog, stage: Stage, together: bool) -> None:
    location = stage.play({"place": catalog.get_warehouse(WH)})["place"].location
    updates = live(f"{location}/{UUID}")
    updates[0] = {"action": "Assign-UUID", "uuid": UUID}
    result = said(catalog, stage, [{"type": "ASSERT-CREATE"}], updates, together=together)
    assert not isinstance(result, TakeholdError), result
    made = result[1] if together else result
    assert made.uuid == UUID


@pytest.mark.covers("M-49")
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("missing", ["schemas", "last-updated-ms", "default-spec-id", "partition-specs"])
def test_a_file_that_no_commit_could_build_on_is_not_registered(
    catalog: Catalog, stage: Stage, store: MemoryStore, missing: str, overwrite: bool
) -> None:
    loaded = stage.play({"load": catalog.load_table(WH, table("a"))})["load"]
    metadata = {name: value for name, value in loaded.metadata.items() if name != missing}
    location = f"{loaded.metadata['location']}/metadata/from-outside.metadata.json"
    path = location.removeprefix("memory:///")
    stage.play({"put": store.put(path, orjson.dumps({**metadata, "table-uuid": UUID}))})
    register = catalog.register_table(WH, table("b" if overwrite else "new"), location, overwrite=overwrite)
    assert isinstance(stage.play({"act": register})["act"], BadUpdate)


@pytest.mark.covers("M-49")
def test_a_file_that_is_torn_is_not_registered(catalog: Catalog, stage: Stage, store: MemoryStore) -> None:
    loaded = stage.play({"load": catalog.load_table(WH, table("a"))})["load"]
    location = f"{loaded.metadata['location']}/metadata/from-outside.gz.metadata.json"
    data = bytearray(gzip.compress(orjson.dumps(loaded.metadata)))
    data[20:40] = bytes(20)
    stage.play({"put": store.put(location.removeprefix("memory:///"), bytes(data))})
    result = stage.play({"act": catalog.register_table(WH, table("new"), location)})["act"]
    assert isinstance(result, UsageError), result
