"""The bytes of records: every flipped bit is refused, and so is a record in another's place."""

from __future__ import annotations

import asyncio

import pytest

from takehold.iceberg import BrokenRecord, Catalog, Identifier
from takehold.iceberg.directory import Directory, Entry, Target
from takehold.iceberg.pending import Pending
from takehold.iceberg.pointer import Body, Intent, Pointer
from takehold.iceberg.records import Record, seal, unseal
from takehold.iceberg.stores import MemoryStore, Stored
from tests.iceberg.stage import Stage, Trusting
from tests.iceberg.world import WH, built, seen, table

BODY = Body(Identifier(("a", "b"), "t"), "memory:///x.metadata.json")
RECORDS: list[Record] = [
    Pointer("u", "table", "b", BODY, Intent("tx", None, "mark"), 7, ("one", "two")),
    Pointer("u", "view", "b", None, Intent("tx", BODY, "mark")),
    Directory("shard", 3, 0, False, {"t": Entry(Target("table", "u", "b"), None, "tx").fields()}, 2, ("m",)),
    Directory("registry", 3, 9, True),
    Pending("tx", "m", "rename", "pending", ("p",), ("s", "t"), ("l",), ("n.t",), "host:1", 1.5, 3),
]


@pytest.mark.covers("M-32")
@pytest.mark.parametrize("record", RECORDS, ids=lambda record: f"{record.kind} {record.version}")
def test_what_is_written_is_what_is_read(record: Record) -> None:
    fields = unseal("catalog/p.bin", record.kind, seal("catalog/p.bin", record))
    fields["kind"] = record.kind
    assert type(record).of(fields, fields["version"], tuple(fields["recent"])) == record


@pytest.mark.covers("M-32")
@pytest.mark.parametrize("record", RECORDS, ids=lambda record: f"{record.kind} {record.version}")
def test_no_flipped_bit_is_believed(record: Record) -> None:
    data = seal("catalog/p.bin", record)
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BrokenRecord):
            unseal("catalog/p.bin", record.kind, bytes(flipped))
    for length in range(len(data)):
        with pytest.raises(BrokenRecord):
            unseal("catalog/p.bin", record.kind, data[:length])


@pytest.mark.covers("M-32")
def test_a_record_in_the_place_of_another_is_refused() -> None:
    data = seal("catalog/p.bin", RECORDS[0])
    with pytest.raises(BrokenRecord, match=r"was written as catalog/p\.bin"):
        unseal("catalog/q.bin", "pointer", data)
    with pytest.raises(BrokenRecord, match="record of kind"):
        unseal("catalog/p.bin", "shard", data)
    with pytest.raises(BrokenRecord, match="knows 1"):
        unseal("catalog/p.bin", "pointer", data.replace(b"pointer 1", b"pointer 2"))


@pytest.mark.covers("M-32")
def test_a_damaged_pointer_stops_its_table_and_no_other_and_fsck_says_which() -> None:
    stage, store = Stage(1), MemoryStore()
    catalog = Catalog(store, Trusting(), runtime=stage)

    async def act() -> None:
        await built(catalog, "a", "b")
        loaded = await catalog.load_table(WH, table("a"))
        path = f"catalog/wh/tables/{loaded.uuid}.bin"
        data = store._objects[path].data
        store._objects[path] = Stored(data[:-2] + b"}", "damaged")
        with pytest.raises(BrokenRecord):
            await catalog.load_table(WH, table("a"))
        with pytest.raises(BrokenRecord):
            await catalog.commit_table(WH, table("a"))
        await catalog.load_table(WH, table("b"))
        faults = await catalog.fsck(WH, repair=True)
        assert [(fault.kind, fault.path) for fault in faults if fault.kind == "broken"][-1:] == [("broken", path)]
        store._objects[path] = Stored(data, "restored")
        assert len(await seen(catalog)) == 5

    assert stage.play({"act": act()})["act"] is None


def test_a_catalog_closes_more_than_once() -> None:
    async def act() -> None:
        catalog = Catalog(MemoryStore(), Trusting())
        await catalog.close()
        await catalog.close()

    asyncio.run(act())
