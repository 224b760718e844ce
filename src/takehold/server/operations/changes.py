"""What touches several names at once: renames, and transactions over several tables."""

from __future__ import annotations

from takehold import UsageError
from takehold.iceberg import Retrying, TableChange
from takehold.server.answers import NO_CONTENT, Reply
from takehold.server.call import Call, identifier_of, objects
from takehold.server.routing import operation

__all__: list[str] = []


@operation("POST", "/v1/{prefix}/tables/rename", "renameTable", replays=True)
async def rename_table(call: Call) -> Reply:
    """Move a table within its warehouse."""
    source = identifier_of(call.json.get("source"), "'source'")
    target = identifier_of(call.json.get("destination"), "'destination'")
    await call.service.catalog.rename_table(call.warehouse, source, target)
    return NO_CONTENT


@operation("POST", "/v1/{prefix}/views/rename", "renameView", replays=True)
async def rename_view(call: Call) -> Reply:
    """Move a view within its warehouse."""
    source = identifier_of(call.json.get("source"), "'source'")
    target = identifier_of(call.json.get("destination"), "'destination'")
    await call.service.catalog.rename_view(call.warehouse, source, target)
    return NO_CONTENT


@operation("POST", "/v1/{prefix}/transactions/commit", "commitTransaction", replays=True)
async def commit_transaction(call: Call) -> Reply:
    """Change several tables or none. Who meets somebody else's transaction tries again for a while, then 409."""
    wanted = objects(call.json.get("table-changes"), "'table-changes'")
    if not wanted:
        raise UsageError("Malformed request: 'table-changes' is empty")
    changes = [
        TableChange(
            identifier_of(one.get("identifier"), "the identifier of a table change"),
            objects(one.get("requirements"), "'requirements'"),
            objects(one.get("updates"), "'updates'"),
        )
        for one in wanted
    ]
    await call.service.catalog.transaction(
        call.warehouse, changes, retry=Retrying(), deadline=call.service.settings.patience, key=call.key
    )
    return NO_CONTENT
