"""The SQL of advisory locks. A fence is drawn only by whoever was granted the key: never the other way round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from takehold.backends._drivers.wire import Statement

__all__ = [
    "FENCE_FROM",
    "FENCE_STEP",
    "FORMAT",
    "INIT",
    "UNLOCK",
    "UNLOCK_ALL",
    "UNLOCK_SHARED",
    "Statements",
    "statements",
]

FORMAT: Final = 1
"""Of the schema `takehold`: the sequence, its step, its name."""
FENCE_STEP: Final = 1024
"""Room between two fences of the server for local hand-overs."""

UNLOCK: Final = Statement("takehold_unlock", "SELECT pg_advisory_unlock($1::bigint)")
UNLOCK_SHARED: Final = Statement("takehold_unlock_shared", "SELECT pg_advisory_unlock_shared($1::bigint)")
_FREED: Final = """
    (SELECT count(*) FILTER (WHERE NOT pg_advisory_unlock(k)) FROM unnest($1::text::bigint[]) AS r(k))
  + (SELECT count(*) FILTER (WHERE NOT pg_advisory_unlock_shared(k)) FROM unnest($2::text::bigint[]) AS r(k))"""
UNLOCK_ALL: Final = Statement("takehold_unlock_many", f"SELECT {_FREED}")
_UNFENCED: Final = "0::bigint"
_NEXT: Final = "nextval('takehold.fence')"


@dataclass(frozen=True, slots=True)
class Statements:
    """What is sent to take keys, with or without fences."""

    one: Statement
    """One key, and nothing else: the answer is a fence, or null when it is busy."""
    one_shared: Statement
    ride: Statement
    """The release of one key, then one other key: most of what a single busy task sends."""
    batch: Statement
    """Releases, then keys of callers that want one each."""
    walk: Statement
    """The same, and then callers that want several: each stops at its first busy key."""
    wait: Statement
    """Stand in the server's queue for one key, for so long."""
    wait_shared: Statement

    @property
    def keeping(self) -> tuple[Statement, ...]:
        """What a keeper sends."""
        return (self.one, self.one_shared, self.ride, self.batch, self.walk, UNLOCK, UNLOCK_SHARED, UNLOCK_ALL)

    @property
    def waiting(self) -> tuple[Statement, ...]:
        """What a waiting connection sends."""
        return (self.wait, self.wait_shared, self.one, self.one_shared, UNLOCK, UNLOCK_SHARED)


def statements(fenced: bool) -> Statements:
    """The statements of one session."""
    fence, kind = (_NEXT, "fenced") if fenced else (_UNFENCED, "plain")
    tries = f"""
    ARRAY(SELECT CASE WHEN pg_try_advisory_lock(k) THEN {fence} END FROM unnest($3::text::bigint[]) AS t(k)),
    ARRAY(SELECT CASE WHEN pg_try_advisory_lock_shared(k) THEN {fence} END FROM unnest($4::text::bigint[]) AS t(k))"""  # noqa: S608 - put together from constants
    # $5 keys, $6 which of them shared, $7 and $8 where each caller's begin and end. A row that was locked does not
    # pass the filter, so the first one that passes is the first busy one, and no key behind it is touched.
    walk = """
    (SELECT array_agg(COALESCE(busy, 0) ORDER BY o) FROM walked), (SELECT array_agg(fence ORDER BY o) FROM walked)"""
    walked = f"""WITH given AS MATERIALIZED (SELECT $5::text::bigint[] AS keys, $6::text::boolean[] AS shared),
    walked AS MATERIALIZED (
        SELECT a.o, b.busy, CASE WHEN b.busy IS DISTINCT FROM 1 THEN {fence} END AS fence
        FROM given AS g, unnest($7::text::int[], $8::text::int[]) WITH ORDINALITY AS a(first, last, o)
        CROSS JOIN LATERAL (
            SELECT (SELECT t.n FROM unnest(g.keys[a.first:a.last], g.shared[a.first:a.last])
                WITH ORDINALITY AS t(k, s, n)
                WHERE NOT CASE WHEN t.s THEN pg_try_advisory_lock_shared(t.k) ELSE pg_try_advisory_lock(t.k) END
                LIMIT 1) AS busy OFFSET 0) AS b)"""  # noqa: S608

    def named(name: str, sql: str) -> Statement:
        return Statement(f"takehold_{name}_{kind}", sql)

    def waiting(function: str) -> str:
        # The functions of one target are evaluated from the outside in: the limit, the lock, the fence.
        return (
            "SELECT CASE WHEN set_config('lock_timeout', $2::text, false) <> '' THEN "
            f"CASE WHEN {function}($1::bigint)::text = '' THEN {fence} END END"
        )

    return Statements(
        one=named("one", f"SELECT CASE WHEN pg_try_advisory_lock($1::bigint) THEN {fence} END"),
        one_shared=named("one_shared", f"SELECT CASE WHEN pg_try_advisory_lock_shared($1::bigint) THEN {fence} END"),
        ride=named(
            "ride",
            f"SELECT pg_advisory_unlock($1::bigint), CASE WHEN pg_try_advisory_lock($2::bigint) THEN {fence} END",
        ),
        batch=named("batch", f"SELECT {_FREED}, {tries}"),
        walk=named("walk", f"{walked} SELECT {_FREED}, {tries}, {walk}"),
        wait=named("wait", waiting("pg_advisory_lock")),
        wait_shared=named("wait_shared", waiting("pg_advisory_lock_shared")),
    )


INIT: Final = f"""
SET LOCAL transaction_read_only = off;
CREATE SCHEMA IF NOT EXISTS takehold;
COMMENT ON SCHEMA takehold IS 'takehold format {FORMAT}';
CREATE SEQUENCE IF NOT EXISTS takehold.fence AS bigint INCREMENT BY {FENCE_STEP} MINVALUE 1 START 1 CACHE 1;
GRANT USAGE ON SCHEMA takehold TO PUBLIC;
GRANT USAGE, SELECT ON SEQUENCE takehold.fence TO PUBLIC;
"""
FENCE_FROM: Final = f"""
BEGIN READ WRITE;
ALTER SEQUENCE takehold.fence INCREMENT BY {FENCE_STEP};
SELECT setval('takehold.fence', greatest(last_value, {{}})) FROM takehold.fence;
COMMIT
"""  # noqa: S608 - put together from numbers
"""The first line with a sequence keeps others from it: one that draws a fence meanwhile would see it go back."""
