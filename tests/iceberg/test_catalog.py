"""What a catalog does, operation by operation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from takehold import BackendUnavailable, Conflict, HoldLost, LockTimeout, OperationConflict, UnknownOutcome, UsageError
from takehold.iceberg import (
    AlreadyExists,
    Catalog,
    NamespaceNotEmpty,
    NoSuchNamespace,
    NoSuchTable,
    NoSuchView,
    NoSuchWarehouse,
    TableChange,
    Unprocessable,
    WarehouseNotEmpty,
    answer_of,
)
from takehold.iceberg.metadata import BadUpdate, RequirementFailed
from takehold.iceberg.stores import MemoryStore
from tests.iceberg.stage import Stage, Turnstiles
from tests.iceberg.world import (
    CREATE,
    NS,
    OTHER,
    UUID,
    WH,
    built,
    live,
    own,
    request,
    setting,
    table,
    view_request,
)

A, B, V = table("a"), table("b"), table("v")


def played(test: Callable[[Catalog], Awaitable[None]]) -> Callable[[], None]:
    """A test with a catalog that has a warehouse, two namespaces and two tables."""

    def run() -> None:
        stage = Stage(1)
        catalog = Catalog(MemoryStore(), Turnstiles(stage), runtime=stage)

        async def act() -> None:
            await built(catalog, "a", "b")
            await test(catalog)
            assert not [fault for fault in await catalog.fsck(WH) if fault.kind != "orphan file"]

        error = stage.play({"act": act()})["act"]
        if isinstance(error, BaseException):
            raise error

    run.__name__ = test.__name__
    return run


@pytest.mark.covers("M-14", "M-15", "M-16", "M-53")
@played
async def test_warehouses(catalog: Catalog) -> None:
    made = await catalog.create_warehouse("w/2", location="memory:///lake", properties={"a": "b"})
    assert (made.location, made.properties) == ("memory:///lake", {"a": "b"})
    assert [each.name for each in await catalog.list_warehouses()] == ["w/2", WH]
    assert await catalog.get_warehouse("w/2") == made
    with pytest.raises(AlreadyExists):
        await catalog.create_warehouse("w/2")
    with pytest.raises(UsageError, match="is not below"):
        await catalog.create_warehouse("w3", location="s3://elsewhere/x")
    with pytest.raises(UsageError, match="its own records"):
        await catalog.create_warehouse("w3", location="memory:///catalog/x")
    with pytest.raises(WarehouseNotEmpty):
        await catalog.delete_warehouse(WH)
    await catalog.delete_warehouse("w/2")
    with pytest.raises(NoSuchWarehouse):
        await catalog.get_warehouse("w/2")
    with pytest.raises(NoSuchWarehouse):
        await catalog.delete_warehouse("w/2")
    with pytest.raises(NoSuchWarehouse):
        await catalog.create_namespace("w/2", ("n",))
    await catalog.create_warehouse("w/2")
    await catalog.create_namespace("w/2", ("n",))
    assert await catalog.list_namespaces("w/2") == [("n",)]


@pytest.mark.covers("M-17", "M-18", "M-19")
@played
async def test_namespaces_nest_have_properties_and_are_deleted_when_empty(catalog: Catalog) -> None:
    deep = ("ns", "é/..", "c")
    with pytest.raises(NoSuchNamespace, match="Namespace does not exist: ns"):
        await catalog.create_namespace(WH, deep)
    await catalog.create_namespace(WH, deep[:2])
    assert await catalog.create_namespace(WH, deep, {"k": "v"}) == {"k": "v"}
    assert await catalog.list_namespaces(WH) == [NS, OTHER]
    assert await catalog.list_namespaces(WH, NS) == [deep[:2]]
    with pytest.raises(NoSuchNamespace):
        await catalog.list_namespaces(WH, ("none",))
    with pytest.raises(AlreadyExists, match="Namespace already exists: ns"):
        await catalog.create_namespace(WH, NS)
    done = await catalog.update_namespace(WH, deep, removals=["k", "no"], updates={"a": "1"})
    assert (done.updated, done.removed, done.missing) == (["a"], ["k"], ["no"])
    assert await catalog.load_namespace(WH, deep) == {"a": "1"}
    with pytest.raises(Unprocessable):
        await catalog.update_namespace(WH, deep, removals=["a"], updates={"a": "1"})
    for namespace in (NS, deep[:2]):
        with pytest.raises(NamespaceNotEmpty, match="is not empty"):
            await catalog.delete_namespace(WH, namespace)
    await catalog.delete_namespace(WH, deep)
    assert not await catalog.namespace_exists(WH, deep)
    with pytest.raises(NoSuchNamespace):
        await catalog.delete_namespace(WH, deep)
    await catalog.create_namespace(WH, deep)
    await catalog.create_table(WH, deep, request("t"))
    assert await catalog.list_tables(WH, deep) == ["t"]


@pytest.mark.covers("M-20", "M-22", "M-27")
@played
async def test_tables(catalog: Catalog) -> None:
    place = (await catalog.get_warehouse(WH)).location
    made = await catalog.load_table(WH, A)
    assert made.metadata["location"] == f"{place}/{made.uuid}"
    assert str(made.metadata_location).startswith(f"{made.metadata['location']}/metadata/00000-")
    with pytest.raises(AlreadyExists, match=r"^Table already exists: ns\.a$"):
        await catalog.create_table(WH, NS, request("a"))
    with pytest.raises(NoSuchNamespace):
        await catalog.create_table(WH, ("none",), request("a"))
    with pytest.raises(NoSuchTable, match=r"^Table does not exist: none\.a$"):
        await catalog.load_table(WH, table("a", ("none",)))
    done = await catalog.commit_table(WH, A, [{"type": "assert-table-uuid", "uuid": made.uuid}], setting(x="1"))
    assert own(done) == {"born": "a", "x": "1"}
    assert "/00001-" in str(done.metadata_location)
    assert done.metadata["metadata-log"][-1]["metadata-file"] == made.metadata_location
    assert await catalog.commit_table(WH, A) == done, "nothing changes: nothing is written"
    with pytest.raises(RequirementFailed):
        await catalog.commit_table(WH, A, [{"type": "assert-table-uuid", "uuid": UUID}], setting(x="2"))
    with pytest.raises(BadUpdate):
        await catalog.commit_table(WH, A, [], [{"action": "no-such-action"}])
    with pytest.raises(NoSuchTable):
        await catalog.commit_table(WH, table("none"), [], setting(x="1"))
    with pytest.raises(RequirementFailed, match="table already exists"):
        await catalog.commit_table(WH, A, CREATE, live(f"{place}/x"))
    await catalog.drop_table(WH, A)
    assert (await catalog.list_tables(WH, NS), await catalog.table_exists(WH, A)) == (["b"], False)
    with pytest.raises(NoSuchTable):
        await catalog.drop_table(WH, A)
    again = await catalog.create_table(WH, NS, request("a"))
    assert again.uuid != made.uuid
    assert again.metadata["location"] != made.metadata["location"]


@pytest.mark.covers("M-12")
@pytest.mark.parametrize("way", ["create", "stage", "commit", "property", "register", "transaction"])
@pytest.mark.parametrize(
    "location",
    [
        "memory:///elsewhere/t",
        "s3://other/t",
        "relative/t",
        "{place}-evil/t",
        "{place}/../../catalog/t",
        "{place}/a//b",
        "{place}/a/./b",
        "{place}/a\x00b",
        "{place}/a\u202eb",
        "{place}",
        "",
    ],
)
def test_no_location_leads_out_of_the_warehouse_and_nothing_is_written(way: str, location: str) -> None:
    async def act(catalog: Catalog) -> None:
        at = location.format(place=(await catalog.get_warehouse(WH)).location)
        before = await catalog._ground.store.list("")
        moved = [{"action": "set-location", "location": at}]
        ways: dict[str, Callable[[], Awaitable[Any]]] = {
            "create": lambda: catalog.create_table(WH, NS, request("t", location=at)),
            "stage": lambda: catalog.create_table(WH, NS, request("t", location=at, **{"stage-create": True})),
            "commit": lambda: catalog.commit_table(WH, A, [], moved),
            "property": lambda: catalog.commit_table(WH, A, [], setting(**{"write.metadata.path": at})),
            "register": lambda: catalog.register_table(WH, table("t"), f"{at}/metadata/x.metadata.json"),
            "transaction": lambda: catalog.transaction(
                WH, [TableChange(B, (), setting(x="1")), TableChange(A, (), moved)]
            ),
        }
        with pytest.raises(UsageError):
            await ways[way]()
        assert await catalog._ground.store.list("") == before

    played(act)()


@pytest.mark.covers("M-26", "M-35")
@played
async def test_a_crash_between_pointer_and_shard_is_taken_over_by_the_next_commit(catalog: Catalog) -> None:
    place = (await catalog.get_warehouse(WH)).location
    ground, reached = catalog._ground, []

    async def dies(*args: Any) -> Any:
        reached.append(args)
        raise BackendUnavailable("the process is gone")

    keep, ground.shelf.keep = ground.shelf.keep, lambda path, *a: dies() if "shard" in path else keep(path, *a)  # type: ignore[method-assign]
    with pytest.raises(BackendUnavailable):
        await catalog.commit_table(WH, table("s"), CREATE, live(f"{place}/{UUID}", first="1"))
    ground.shelf.keep = keep  # type: ignore[method-assign]
    assert reached
    assert not await catalog.table_exists(WH, table("s"))
    assert [fault.kind for fault in await catalog.fsck(WH)] == ["orphan pointer"]
    await catalog.commit_table(WH, table("s"), CREATE, live(f"{place}/{UUID}", second="1"))
    assert own(await catalog.load_table(WH, table("s"))) == {"second": "1"}


@pytest.mark.covers("M-47", "M-49")
@played
async def test_register_and_unregister(catalog: Catalog) -> None:
    gone = await catalog.unregister_table(WH, A)
    assert own(gone) == {"born": "a"}
    with pytest.raises(NoSuchTable):
        await catalog.commit_table(WH, A, [], setting(x="1"))
    location = str(gone.metadata_location)
    again = await catalog.register_table(WH, table("c"), location)
    assert (again.uuid, again.metadata_location) == (gone.uuid, location)
    with pytest.raises(AlreadyExists):
        await catalog.register_table(WH, table("d"), location)
    with pytest.raises(AlreadyExists, match=r"Table already exists: ns\.b"):
        await catalog.register_table(WH, B, location)
    moved = await catalog.commit_table(WH, table("c"), [], setting(x="1"))
    back = await catalog.register_table(WH, table("c"), location, overwrite=True)
    assert own(back) == {"born": "a"} != own(moved)
    assert own(await catalog.load_table(WH, table("c"))) == {"born": "a"}
    await catalog.unregister_table(WH, table("c"))
    await catalog.register_table(WH, B, location, overwrite=True)
    assert (await catalog.load_table(WH, B)).uuid == gone.uuid
    with pytest.raises(UsageError, match="does not exist"):
        await catalog.register_table(WH, table("e"), location.replace("00000", "00009"))


@pytest.mark.covers("M-21")
@played
async def test_renames(catalog: Catalog) -> None:
    uuid = (await catalog.load_table(WH, A)).uuid
    await catalog.rename_table(WH, A, table("a", OTHER))
    assert (await catalog.load_table(WH, table("a", OTHER))).uuid == uuid
    assert await catalog.list_tables(WH, NS) == ["b"]
    with pytest.raises(NoSuchTable, match=r"Table does not exist: ns\.a"):
        await catalog.rename_table(WH, A, table("z"))
    with pytest.raises(AlreadyExists, match="Table already exists"):
        await catalog.rename_table(WH, B, table("a", OTHER))
    with pytest.raises(NoSuchNamespace):
        await catalog.rename_table(WH, B, table("b", ("none",)))
    await catalog.rename_table(WH, B, B)
    await catalog.rename_table(WH, table("a", OTHER), A)
    assert own(await catalog.commit_table(WH, A, [], setting(x="1"))) == {"born": "a", "x": "1"}


@pytest.mark.covers("M-49")
@played
async def test_views_share_their_names_with_tables(catalog: Catalog) -> None:
    made = await catalog.create_view(WH, NS, view_request("v"))
    assert (await catalog.list_views(WH, NS), await catalog.list_tables(WH, NS)) == (["v"], ["a", "b"])
    with pytest.raises(AlreadyExists, match=r"View with same name already exists: ns\.v"):
        await catalog.create_table(WH, NS, request("v"))
    with pytest.raises(AlreadyExists, match=r"Table with same name already exists: ns\.a"):
        await catalog.create_view(WH, NS, view_request("a"))
    with pytest.raises(NoSuchTable):
        await catalog.load_table(WH, V)
    with pytest.raises(NoSuchView, match=r"View does not exist: ns\.a"):
        await catalog.load_view(WH, A)
    done = await catalog.replace_view(WH, V, [{"type": "assert-view-uuid", "uuid": made.uuid}], setting(x="1"))
    assert own(done) == {"x": "1"}
    with pytest.raises(AlreadyExists, match="Table already exists"):
        await catalog.rename_view(WH, V, A)
    await catalog.rename_view(WH, V, table("w"))
    assert await catalog.view_exists(WH, table("w"))
    location = str((await catalog.load_view(WH, table("w"))).metadata_location)
    await catalog.drop_view(WH, table("w"))
    assert (await catalog.register_view(WH, V, location)).uuid == made.uuid
    with pytest.raises(NamespaceNotEmpty):
        await catalog.delete_namespace(WH, NS)


@pytest.mark.covers("M-29", "M-49")
@played
async def test_a_transaction_over_several_tables(catalog: Catalog) -> None:
    changes = [
        TableChange(B, (), setting(t="1")),
        TableChange(A, (), setting(t="1")),
        TableChange(B, (), setting(u="2")),
    ]
    done = await catalog.transaction(WH, changes)
    assert [str(each.identifier) for each in done] == ["ns.b", "ns.a"]
    assert [own(each) for each in done] == [{"born": "b", "t": "1", "u": "2"}, {"born": "a", "t": "1"}]
    assert await catalog.load_tables(WH, [B, A]) == done
    failing = [*changes, TableChange(A, [{"type": "assert-table-uuid", "uuid": UUID}], setting(v="1"))]
    with pytest.raises(RequirementFailed):
        await catalog.transaction(WH, failing)
    with pytest.raises(NoSuchTable):
        await catalog.transaction(WH, [*changes, TableChange(table("none"), (), setting(v="1"))])
    assert await catalog.load_tables(WH, [B, A]) == done
    assert await catalog.transaction(WH, []) == []
    assert await catalog.transaction(WH, [TableChange(A), TableChange(B)]) == done[::-1]
    assert not await catalog.transactions(WH)


@pytest.mark.covers("M-27", "M-32")
@played
async def test_an_idempotency_key_does_it_once(catalog: Catalog) -> None:
    key = "0192f0c1-7a3e-7000-8000-0000000000"
    first = await catalog.commit_table(WH, A, [], setting(x="1"), key=f"{key}01")
    await catalog.commit_table(WH, A, [], setting(x="2"))
    again = await catalog.commit_table(WH, A, [], setting(x="1"), key=f"{key}01")
    assert own(first)["x"] == "1"
    assert own(again)["x"] == "2", "it was done before, and somebody changed it since"
    made = await catalog.create_table(WH, NS, request("k"), key=f"{key}02")
    assert await catalog.create_table(WH, NS, request("k"), key=f"{key}02") == made
    changes = [TableChange(A, (), setting(t="1")), TableChange(B, (), setting(t="1"))]
    await catalog.transaction(WH, changes, key=f"{key}03")
    await catalog.commit_table(WH, A, [], setting(t="2"))
    assert [own(each)["t"] for each in await catalog.transaction(WH, changes, key=f"{key}03")] == ["2", "1"]
    place = (await catalog.get_warehouse(WH)).location
    staged = await catalog.commit_table(WH, table("s"), CREATE, live(f"{place}/{UUID}"), key=f"{key}04")
    assert await catalog.commit_table(WH, table("s"), CREATE, live(f"{place}/{UUID}"), key=f"{key}04") == staged


@pytest.mark.covers("M-20")
@played
async def test_a_purge_deletes_what_is_below_a_location_of_ours_and_nothing_else(catalog: Catalog) -> None:
    store = catalog._ground.store
    a, place = await catalog.load_table(WH, A), (await catalog.get_warehouse(WH)).location
    root = place.removeprefix("memory:///")
    await store.put(f"{root}/{a.uuid}/data/x.parquet", b"1")
    await store.put(f"{root}/{a.uuid}x/data/y.parquet", b"2")
    await catalog.drop_table(WH, A, purge=True)
    assert await store.list(f"{root}/{a.uuid}") == []
    assert await store.list(f"{root}/{a.uuid}x") == [f"{root}/{a.uuid}x/data/y.parquet"]
    await catalog.create_table(WH, NS, request("own", location=f"{place}/chosen"))
    await store.put(f"{root}/chosen/data/z.parquet", b"3")
    await catalog.drop_table(WH, table("own"), purge=True)
    assert f"{root}/chosen/data/z.parquet" in await store.list(root)


@pytest.mark.covers("M-27")
@played
async def test_old_metadata_goes_when_the_table_says_so(catalog: Catalog) -> None:
    store = catalog._ground.store
    keep = {"write.metadata.previous-versions-max": "2", "write.metadata.delete-after-commit.enabled": "true"}
    done = await catalog.load_table(WH, A)
    for number in range(6):
        done = await catalog.commit_table(WH, A, [], setting(x=str(number), **keep))
    root = done.metadata["location"].removeprefix("memory:///")
    assert len(await store.list(f"{root}/metadata")) == 3
    await catalog.commit_table(WH, A, [], setting(**{"write.metadata.compression-codec": "gzip"}))
    catalog._ground.files._kept.clear()
    assert own(await catalog.load_table(WH, A))["x"] == "5"


def test_every_error_has_the_answer_that_clients_expect() -> None:
    expected = [
        (NoSuchTable(""), 404, "NoSuchTableException"),
        (NoSuchNamespace(""), 404, "NoSuchNamespaceException"),
        (NoSuchView(""), 404, "NoSuchViewException"),
        (AlreadyExists(""), 409, "AlreadyExistsException"),
        (NamespaceNotEmpty(""), 409, "NamespaceNotEmptyException"),
        (Unprocessable(""), 422, "UnprocessableEntityException"),
        (RequirementFailed(""), 409, "CommitFailedException"),
        (OperationConflict(""), 409, "CommitFailedException"),
        (BadUpdate(""), 400, "BadRequestException"),
        (UsageError(""), 400, "BadRequestException"),
        (UnknownOutcome(""), 500, "CommitStateUnknownException"),
        (LockTimeout(""), 503, "ServiceUnavailableException"),
        (HoldLost(""), 503, "ServiceUnavailableException"),
        (BackendUnavailable(""), 503, "ServiceUnavailableException"),
        (Conflict(""), 409, "CommitFailedException"),
        (KeyError(""), 500, "ServiceFailureException"),
    ]
    for error, code, kind in expected:
        assert answer_of(error)[:2] == (code, kind)
        assert (answer_of(error).retry_after is not None) == (code == 503)
