"""Operations of the specification that this catalog does not do: a typed answer instead of a missing path."""

from __future__ import annotations

from takehold.server.answers import Refused, Reply
from takehold.server.call import Call
from takehold.server.routing import operation

__all__: list[str] = []

NAMESPACE = "/v1/{prefix}/namespaces/{namespace}"
TABLE = f"{NAMESPACE}/tables/{{table}}"


@operation("GET", f"{NAMESPACE}/functions", "listFunctions", advertised=False)
@operation("GET", f"{NAMESPACE}/functions/{{function}}", "loadFunction", advertised=False)
@operation("POST", f"{TABLE}/plan", "planTableScan", scope="read", advertised=False)
@operation("GET", f"{TABLE}/plan/{{plan-id}}", "fetchPlanningResult", advertised=False)
@operation("DELETE", f"{TABLE}/plan/{{plan-id}}", "cancelPlanning", scope="read", advertised=False)
@operation("POST", f"{TABLE}/tasks", "fetchScanTasks", scope="read", advertised=False)
@operation("GET", f"{TABLE}/credentials", "loadCredentials", advertised=False)
@operation("POST", f"{TABLE}/sign", "signRequest", scope="read", advertised=False)
async def unsupported(call: Call) -> Reply:
    """Say so: 406, as the specification has it for what a server does not support."""
    raise Refused(f"{call.operation} is not supported by this catalog", type="UnsupportedOperationException", code=406)
