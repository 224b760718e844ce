"""What a client asks first: how to speak with this catalog. And the token exchange that older clients insist on."""

from __future__ import annotations

from urllib.parse import parse_qs, quote

from takehold.iceberg import NoSuchWarehouse
from takehold.server.answers import Refused, Reply, json_reply
from takehold.server.call import Call
from takehold.server.routing import OPERATIONS, operation

__all__: list[str] = []


@operation("GET", "/v1/config", "getConfig", advertised=False)
async def get_config(call: Call) -> Reply:
    """The warehouse's prefix, what can be asked of it, and how long an idempotency key is remembered."""
    warehouse = await _named(call, call.query.get("warehouse") or call.service.settings.warehouse)
    settings = call.service.settings
    return json_reply(
        {
            "defaults": dict(settings.table_config),
            "overrides": {"prefix": quote(warehouse, safe="")},
            "endpoints": [one.endpoint for one in OPERATIONS if one.advertised],
            "idempotency-key-lifetime": f"PT{round(settings.remembers / 60)}M",
        }
    )


async def _named(call: Call, wanted: str) -> str:
    """Clients give a warehouse by name or, as the specification allows, by location."""
    try:
        return (await call.service.catalog.get_warehouse(wanted)).name
    except NoSuchWarehouse:
        for one in await call.service.catalog.list_warehouses():
            if one.location.rstrip("/") == wanted.rstrip("/"):
                return one.name
        raise


@operation("POST", "/v1/oauth/tokens", "getToken", scope="none", advertised=False)
async def get_token(call: Call) -> Reply:
    """Client credentials for a bearer token: the secret is the token. Deprecated, and what some clients can do."""
    try:
        form = parse_qs(call.body.decode(), max_num_fields=20)
    except ValueError:
        form = {}
    secret = (form.get("client_secret") or [""])[-1]
    if form.get("grant_type") != ["client_credentials"]:
        return json_reply({"error": "unsupported_grant_type"}, status=400)
    if not call.service.access.knows(secret):
        return json_reply({"error": "invalid_client"}, status=401)
    return json_reply(
        {
            "access_token": secret,
            "token_type": "bearer",
            "expires_in": 86_400,
            "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
        }
    )


def reserved(name: str) -> Refused:
    """A warehouse that no path could reach."""
    return Refused(
        f"a warehouse cannot be called {name!r}: paths begin with that word", type="BadRequestException", code=400
    )
