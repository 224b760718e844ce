"""The lease table in Postgres: tables, and one function per question, so that each is one statement.

Nothing here needs a session of the server: every function is one short transaction, and what it locks ends with
it. So it works behind a pooler in transaction mode.

`lease_apply` takes the stripes of its keys first, in ascending order, as transaction-level advisory locks: two
of them never deadlock, and each of its inner statements sees what the one before it committed. That needs READ
COMMITTED, so anything else is refused. A session is dead when somebody has *deleted* its row after it expired;
a heartbeat of it either came first or finds nothing. Rows of sessions are never waited for (SKIP LOCKED).
"""

# ruff: noqa: S608 - put together from constants of this package alone
from __future__ import annotations

from typing import Final

from takehold.backends.lease.channel import FENCE_STEP, LEASE_FORMAT, MARK, PATIENCE, REVISION

__all__ = ["ADVISORY_CLASS", "FACTS", "FUNCTIONS", "QUESTIONS", "SCHEMA", "STRIPES"]

STRIPES: Final = 1024
ADVISORY_CLASS: Final = 0x7468_6C64  # "thld"
QUESTIONS: Final = ("open", "apply", "beat", "look", "evict", "revoke", "bye")

SCHEMA: Final = f"""
CREATE SCHEMA IF NOT EXISTS takehold;
CREATE TABLE takehold.lease_format (number integer NOT NULL);
INSERT INTO takehold.lease_format VALUES ({LEASE_FORMAT});
CREATE SEQUENCE takehold.lease_fence AS bigint
    INCREMENT BY {FENCE_STEP} MINVALUE {FENCE_STEP} START {FENCE_STEP} CACHE 1;
CREATE SEQUENCE takehold.lease_ticket AS bigint CACHE 1;
CREATE TABLE takehold.lease_session (
    name text PRIMARY KEY, host text NOT NULL, pid integer NOT NULL,
    ttl double precision NOT NULL, beat timestamptz NOT NULL, expires timestamptz NOT NULL,
    batch bigint NOT NULL DEFAULT 0, answer text, board text, evict text[] NOT NULL DEFAULT '{{}}'
) WITH (fillfactor = 50);
CREATE TABLE takehold.lease (
    key bigint NOT NULL, fence bigint NOT NULL, session text NOT NULL,
    shared boolean NOT NULL, revoked boolean NOT NULL DEFAULT false, since timestamptz NOT NULL,
    hold text NOT NULL, text text NOT NULL, namespace text NOT NULL, implied boolean NOT NULL,
    label text, site text NOT NULL, party bigint NOT NULL,
    PRIMARY KEY (key, fence)
);
CREATE INDEX lease_by_session ON takehold.lease (session);
CREATE TABLE takehold.lease_waiter (
    key bigint NOT NULL, session text NOT NULL, ticket bigint NOT NULL,
    shared boolean NOT NULL, since timestamptz NOT NULL, expires timestamptz NOT NULL,
    hold text NOT NULL, text text NOT NULL, namespace text NOT NULL, implied boolean NOT NULL,
    label text, site text NOT NULL, party bigint NOT NULL,
    PRIMARY KEY (key, session)
);
CREATE INDEX lease_waiter_by_session ON takehold.lease_waiter (session);
"""


def _function(name: str, body: str, declare: str = "") -> str:
    return f"""
CREATE OR REPLACE FUNCTION takehold.lease_{name}_{REVISION}(request text) RETURNS text LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    r jsonb := request::jsonb;
    me text := r->>'me';
    present timestamptz := clock_timestamp();
    {declare}
BEGIN
    {body}
END $function$;
"""


_BURY: Final = f"""
CREATE OR REPLACE FUNCTION takehold.lease_bury_{REVISION}(present timestamptz, keys bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    one text;
    dead text[] := '{{}}';
BEGIN
    FOR one IN
        SELECT s.name FROM takehold.lease_session s WHERE s.expires <= present AND (keys IS NULL OR s.name IN (
            SELECT l.session FROM takehold.lease l WHERE l.key = ANY (keys)))
        FOR UPDATE SKIP LOCKED
    LOOP
        dead := dead || one;
    END LOOP;
    IF cardinality(dead) > 0 THEN
        DELETE FROM takehold.lease_session WHERE name = ANY (dead);
        DELETE FROM takehold.lease WHERE session = ANY (dead);
        DELETE FROM takehold.lease_waiter WHERE session = ANY (dead);
    END IF;
END $function$;
"""

_READ_COMMITTED: Final = """
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'leases need READ COMMITTED, the default here is %', current_setting('transaction_isolation')
            USING ERRCODE = 'invalid_transaction_state';
    END IF;"""

_OPEN: Final = _function(
    "open",
    f"""{_READ_COMMITTED}
    PERFORM takehold.lease_bury_{REVISION}(present, NULL);
    INSERT INTO takehold.lease_session (name, host, pid, ttl, beat, expires)
        VALUES (me, r->>'host', (r->>'pid')::integer, (r->>'ttl')::float8, present,
            present + (r->>'ttl')::float8 * interval '1 second')
        ON CONFLICT (name) DO NOTHING;
    RETURN jsonb_build_object('now', extract(epoch FROM present))::text;
    """,
)

_APPLY: Final = _function(
    "apply",
    f"""{_READ_COMMITTED}
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    SELECT coalesce(array_agg(DISTINCT (w->>'key')::bigint), '{{}}') INTO keys
        FROM jsonb_array_elements(r->'asks') a, jsonb_array_elements(a->'wants') w;
    FOR stripe IN SELECT DISTINCT (k & {STRIPES - 1})::integer FROM unnest(keys) k ORDER BY 1 LOOP
        PERFORM pg_advisory_xact_lock({ADVISORY_CLASS}, stripe);
    END LOOP;
    present := clock_timestamp();
    IF changed THEN
        PERFORM FROM takehold.lease_session s WHERE s.name = me FOR NO KEY UPDATE;
    END IF;
    SELECT s.batch, s.answer INTO known FROM takehold.lease_session s WHERE s.name = me;
    IF NOT FOUND THEN
        RETURN '{{"gone": true}}';
    ELSIF known.batch >= number THEN
        RETURN CASE WHEN known.batch = number THEN known.answer ELSE '{{"stale": true}}' END;
    END IF;
    WITH given AS (SELECT (g->>0)::bigint AS key, (g->>1)::bigint AS fence FROM jsonb_array_elements(r->'give') g),
        gone AS (DELETE FROM takehold.lease l USING given g
            WHERE l.key = g.key AND l.fence = g.fence AND l.session = me RETURNING l.key, l.fence)
        SELECT coalesce(jsonb_agg(jsonb_build_array(g.key, g.fence)), '[]') INTO missing
            FROM given g WHERE (g.key, g.fence) NOT IN (SELECT key, fence FROM gone);
    DELETE FROM takehold.lease_waiter w
        WHERE w.session = me AND w.key IN (SELECT k::bigint FROM jsonb_array_elements_text(r->'leave') k);
    PERFORM takehold.lease_bury_{REVISION}(present, keys);
    FOR ask IN SELECT a FROM jsonb_array_elements(r->'asks') WITH ORDINALITY t(a, i) ORDER BY i LOOP
        fences := '[]';
        before := 0;
        FOR want IN SELECT w FROM jsonb_array_elements(ask->'wants') WITH ORDINALITY t(w, i) ORDER BY i LOOP
            wanted := (want->>'key')::bigint;
            share := (want->>'shared')::boolean;
            mine := NULL;
            IF (ask->>'wait')::boolean THEN
                SELECT w.ticket INTO mine FROM takehold.lease_waiter w WHERE w.key = wanted AND w.session = me;
            END IF;
            SELECT count(*) INTO before FROM takehold.lease_waiter w
                WHERE NOT (want->>'turn')::boolean
                AND w.key = wanted AND w.session <> me AND w.expires > present AND NOT (w.shared AND share)
                AND CASE WHEN mine IS NULL THEN w.since <= present - interval '{PATIENCE} s' ELSE w.ticket < mine END;
            IF before > 0 OR EXISTS (SELECT FROM takehold.lease l
                    WHERE l.key = wanted AND NOT l.revoked AND NOT (l.shared AND share)) THEN
                IF (ask->>'wait')::boolean AND mine IS NULL THEN
                    INSERT INTO takehold.lease_waiter (key, session, ticket, shared, since, expires, hold, text,
                            namespace, implied, label, site, party)
                        VALUES (wanted, me, nextval('takehold.lease_ticket'), share, present,
                            present + interval '{MARK} s', want->>'hold', want->>'text', want->>'namespace',
                            (want->>'implied')::boolean, want->>'label', want->>'site', (want->>'party')::bigint);
                ELSIF mine IS NOT NULL THEN
                    UPDATE takehold.lease_waiter w SET expires = present + interval '{MARK} s'
                        WHERE w.key = wanted AND w.session = me AND w.expires < present + interval '{MARK / 2} s';
                END IF;
                EXIT;
            END IF;
            INSERT INTO takehold.lease (key, fence, session, shared, since, hold, text, namespace, implied, label,
                    site, party)
                VALUES (wanted, nextval('takehold.lease_fence'), me, share, present, want->>'hold', want->>'text',
                    want->>'namespace', (want->>'implied')::boolean, want->>'label', want->>'site',
                    (want->>'party')::bigint)
                RETURNING fence INTO got;
            DELETE FROM takehold.lease_waiter w WHERE w.key = wanted AND w.session = me;
            fences := fences || to_jsonb(got);
            changed := true;
        END LOOP;
        granted := granted || jsonb_build_array(fences);
        ahead := ahead || to_jsonb(before);
    END LOOP;
    reply := jsonb_build_object('missing', missing, 'granted', granted, 'ahead', ahead);
    IF changed THEN
        UPDATE takehold.lease_session s SET batch = number, answer = reply WHERE s.name = me AND s.batch < number;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the session ended meanwhile' USING ERRCODE = 'serialization_failure';
        END IF;
    END IF;
    RETURN reply;
    """,
    f"""number bigint := (r->>'n')::bigint;
    changed boolean := (r->>'again')::boolean OR jsonb_array_length(r->'give') > 0;
    keys bigint[];
    stripe integer;
    known record;
    ask jsonb;
    want jsonb;
    wanted bigint;
    share boolean;
    mine bigint;
    before bigint;
    got bigint;
    fences jsonb;
    missing jsonb;
    granted jsonb := '[]';
    ahead jsonb := '[]';
    reply text; -- revision {REVISION}""",
)

_BEAT: Final = _function(
    "beat",
    f"""
    UPDATE takehold.lease_session s SET beat = present, expires = present + s.ttl * interval '1 second',
        board = r->>'board',
        evict = ARRAY(SELECT e FROM unnest(s.evict) e WHERE NOT r->'done' ? e)
        WHERE s.name = me RETURNING s.evict INTO asked;
    IF NOT FOUND THEN
        RETURN '{{"gone": true}}';
    END IF;
    IF (r->>'clean')::boolean THEN
        PERFORM takehold.lease_bury_{REVISION}(present, NULL);
    END IF;
    RETURN (SELECT jsonb_build_object('now', extract(epoch FROM present), 'evict', to_jsonb(asked),
        'held', count(*) FILTER (WHERE NOT l.revoked),
        'revoked', coalesce(jsonb_agg(jsonb_build_array(l.key, l.fence)) FILTER (WHERE l.revoked), '[]'))::text
        FROM takehold.lease l WHERE l.session = me);
    """,
    "asked text[];",
)

_ABOUT: Final = "hold, {0}.text, namespace, implied, label, site, party"
_LOOK: Final = _function(
    "look",
    f"""
    RETURN jsonb_build_object('now', extract(epoch FROM present),
        'sessions', (SELECT coalesce(jsonb_agg(jsonb_build_array(name, host, pid, extract(epoch FROM present - beat),
            ttl, board)), '[]') FROM takehold.lease_session WHERE expires > present),
        'leases', (SELECT coalesce(jsonb_agg(jsonb_build_array(key, session, fence, shared,
            extract(epoch FROM since), {_ABOUT.format("l")})), '[]')
            FROM takehold.lease l JOIN takehold.lease_session s ON s.name = l.session
            WHERE s.expires > present AND NOT revoked AND (wanted IS NULL OR key = wanted)),
        'waiters', (SELECT coalesce(jsonb_agg(jsonb_build_array(key, session, ticket, shared,
            extract(epoch FROM since), {_ABOUT.format("w")}) ORDER BY ticket), '[]')
            FROM takehold.lease_waiter w JOIN takehold.lease_session s ON s.name = w.session
            WHERE s.expires > present AND w.expires > present - interval '{MARK} s'
            AND (wanted IS NULL OR key = wanted)))::text;
    """,
    "wanted bigint := (r->>'key')::bigint;",
)

_EVICT: Final = _function(
    "evict",
    """
    UPDATE takehold.lease_session SET evict = evict || (r->>'hold') WHERE name = r->>'session';
    RETURN jsonb_build_object('found', FOUND)::text;
    """,
)

_REVOKE: Final = _function(
    "revoke",
    """
    UPDATE takehold.lease SET revoked = true WHERE key = (r->>'key')::bigint AND fence = (r->>'fence')::bigint;
    RETURN jsonb_build_object('found', FOUND)::text;
    """,
)

_BYE: Final = _function(
    "bye",
    """
    DELETE FROM takehold.lease_session WHERE name = me;
    DELETE FROM takehold.lease WHERE session = me;
    DELETE FROM takehold.lease_waiter WHERE session = me;
    RETURN '{}';
    """,
)

FUNCTIONS: Final = _BURY + _OPEN + _APPLY + _BEAT + _LOOK + _EVICT + _REVOKE + _BYE

FACTS: Final = f"""
SELECT pg_is_in_recovery(), to_regclass('takehold.lease_format') IS NOT NULL,
    (SELECT count(*) FROM unnest('{{{",".join(QUESTIONS)}}}'::text[]) q
        WHERE to_regprocedure('takehold.lease_' || q || '_{REVISION}(text)') IS NULL),
    current_setting('transaction_isolation')
"""
