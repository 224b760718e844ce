"""The SQL of the ledger: every statement takes a whole batch, as one JSON text, and is the same text each time."""

# ruff: noqa: S608 - what is put together here are our own constants; values are parameters
from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final

__all__ = ["Statements", "batch", "facts_of", "statements_for"]

_COLUMNS: Final = {
    "id": "bigint",
    "identity": "text",
    "corpus": "text",
    "document": "text",
    "fence": "bigint",
    "hash": "text",
    "status": "text",
    "attempts": "int",
    "error": "text",
}
_NOW: Final = {
    "postgresql": "EXTRACT(epoch FROM clock_timestamp())::float8",
    "sqlite": "(julianday('now') - 2440587.5) * 86400.0",
}
_VERSION: Final = "0123456789."
_ANY_VERSION: Final = f"(r.profile = :kind OR rtrim(r.profile, '{_VERSION}') = :kind || '/')"
"""Whether a run is one of the same kind of result: `terms`, `terms/1` and `terms/2`, and not `terms/x` or `terms2`."""


def batch(rows: Iterable[Mapping[str, Any]]) -> str:
    """The rows as the one parameter that all statements take."""
    return json.dumps(list(rows))


def facts_of(profile: str) -> dict[str, str]:
    """A profile, and the kind of result that it is a version of: without a slash and a number, it is all kind."""
    stem = profile.rstrip(_VERSION)
    return {"profile": profile, "kind": stem[:-1] if stem.endswith("/") else profile}


@dataclass(frozen=True, slots=True)
class Statements:
    """For one database, in the words of its driver."""

    find: str
    """What is known of these identities in a profile."""
    stamp: str
    """Write fences, where there is no newer one; the ids of the rows, and whether they were there."""
    look: str
    """What is known of these rows in any version of a profile, and whether it is this one."""
    lock: str
    """The fences of these rows, which nobody changes until our transaction ends."""
    supersede: str
    """Forget what is known of these rows with another hash, or in another version of the profile."""
    record: str
    """What came of these, if they still have our fences; a run that is done stays. The rows of which that is so."""
    forget: str
    """What is known of these rows in any version of a profile."""
    drop: str
    """Rows of which nothing is known in any profile."""
    known: str
    """All identities of a corpus that have a run in any version of a profile."""
    status: str
    """How many runs of each status, per corpus."""
    failures: str
    """Those that failed, newest first."""
    named: str
    """Identities by the hash of their newest claim."""
    retry: str
    """Make what failed due again."""
    force: str
    """Make everything due again."""


@cache
def statements_for(dialect: str) -> Statements:
    """Those of `postgresql` or `sqlite`."""
    made = _of_workers(dialect) | _of_onlookers(dialect)
    return Statements(**{name: _in_words_of(dialect, sql) for name, sql in made.items()})


def _rows(dialect: str, *columns: str) -> str:
    """The batch as a table."""
    if dialect == "postgresql":
        shape = ", ".join(f"{column} {_COLUMNS[column]}" for column in columns)
        return f"jsonb_to_recordset(CAST(:batch AS jsonb)) AS b({shape})"
    picked = ", ".join(f"json_extract(value, '$.{column}') AS {column}" for column in columns)
    return f"(SELECT {picked} FROM json_each(:batch)) AS b"


def _of_workers(dialect: str) -> dict[str, str]:
    rows, now = partial(_rows, dialect), _NOW[dialect]
    ids = f"(SELECT b.id FROM {rows('id')})"
    given = rows("id", "fence", "hash", "status", "attempts", "error")
    # Locked, and compared with what is there when the lock is granted: a newer claim waits, or we are told of it.
    own = f"""SELECT f.id, b.hash, b.status, b.attempts, b.error FROM {given}
            JOIN takehold_fragments f ON f.id = b.id AND f.fence = b.fence ORDER BY f.id"""
    if dialect == "postgresql":
        own = f"""WITH own AS MATERIALIZED ({own} FOR UPDATE OF f)"""
    else:
        own = f"""WITH own AS ({own})"""
    return {
        "find": f"""SELECT f.identity, r.hash, r.status, r.attempts, r.error FROM {rows("identity")}
            JOIN takehold_fragments f ON f.identity = b.identity
            JOIN takehold_fragment_runs r ON r.fragment = f.id AND r.profile = :profile""",
        # Sorted, so that two replicas that stamp the same rows do not wait for each other. WHERE true: SQLite would
        # take ON for that of a join.
        "stamp": f"""INSERT INTO takehold_fragments AS f (identity, corpus, document, fence, hash, owner, claimed)
            SELECT b.identity, b.corpus, b.document, b.fence, b.hash, :owner, {now}
            FROM {rows("identity", "corpus", "document", "fence", "hash")} WHERE true ORDER BY b.identity
            ON CONFLICT (identity) DO UPDATE SET fence = excluded.fence, hash = excluded.hash,
                owner = excluded.owner, claimed = excluded.claimed WHERE f.fence < excluded.fence
            RETURNING id, identity, {"xmax <> 0" if dialect == "postgresql" else "true"}""",
        "look": f"""SELECT r.fragment, r.profile = :profile, r.hash, r.status, r.attempts, r.error FROM {rows("id")}
            JOIN takehold_fragment_runs r ON r.fragment = b.id AND {_ANY_VERSION}""",
        "lock": f"""SELECT f.id, f.fence FROM takehold_fragments f WHERE f.id IN {ids} ORDER BY f.id
            {"FOR UPDATE OF f" if dialect == "postgresql" else ""}""",
        "supersede": f"""DELETE FROM takehold_fragment_runs AS r WHERE r.fragment IN {ids} AND {_ANY_VERSION}
            AND (r.profile <> :profile OR r.hash <> (SELECT b.hash FROM {rows("id", "hash")} WHERE b.id = r.fragment))
            """,
        "record": f"""{own}
            INSERT INTO takehold_fragment_runs AS r
                (fragment, profile, hash, status, attempts, error, owner, finished)
            SELECT id, :profile, hash, status, attempts, error, :owner, {now} FROM own WHERE true
            ON CONFLICT (fragment, profile, hash) DO UPDATE SET status = excluded.status, error = excluded.error,
                attempts = excluded.attempts, owner = excluded.owner, finished = excluded.finished
                WHERE r.status <> 'done'
            RETURNING fragment""",
        "forget": f"DELETE FROM takehold_fragment_runs AS r WHERE r.fragment IN {ids} AND {_ANY_VERSION}",
        "drop": f"""DELETE FROM takehold_fragments WHERE id IN {ids}
            AND NOT EXISTS (SELECT 1 FROM takehold_fragment_runs r WHERE r.fragment = takehold_fragments.id)""",
    }


def _of_onlookers(dialect: str) -> dict[str, str]:
    rows = partial(_rows, dialect)
    of_corpus = "SELECT id FROM takehold_fragments WHERE :corpus IN ('', corpus)"
    return {
        "known": f"""SELECT DISTINCT f.identity, f.document, f.hash FROM takehold_fragments f
            JOIN takehold_fragment_runs r ON r.fragment = f.id AND {_ANY_VERSION} WHERE f.corpus = :corpus""",
        "status": """SELECT f.corpus, r.profile, r.status, count(*) FROM takehold_fragment_runs r
            JOIN takehold_fragments f ON f.id = r.fragment
            WHERE :profile IN ('', r.profile) AND :corpus IN ('', f.corpus)
            GROUP BY f.corpus, r.profile, r.status ORDER BY 1, 2, 3""",
        "failures": """SELECT f.identity, r.profile, r.attempts, r.error, r.owner, r.finished
            FROM takehold_fragment_runs r JOIN takehold_fragments f ON f.id = r.fragment
            WHERE r.status = 'failed' AND :profile IN ('', r.profile) AND :corpus IN ('', f.corpus)
            ORDER BY r.finished DESC LIMIT 100""",
        "named": f"""SELECT f.identity, f.hash FROM {rows("hash")}
            JOIN takehold_fragments f ON f.hash >= b.hash AND f.hash < b.hash || 'g'""",
        "retry": f"""UPDATE takehold_fragment_runs SET status = 'due', attempts = 0, error = NULL
            WHERE status = 'failed' AND :profile IN ('', profile) AND fragment IN ({of_corpus})""",
        "force": f"""UPDATE takehold_fragment_runs SET status = 'due', attempts = 0
            WHERE status <> 'due' AND profile = :profile AND fragment IN ({of_corpus})""",
    }


def _in_words_of(dialect: str, sql: str) -> str:
    """Names as `:name`; psycopg writes them as `%(name)s`, and needs the type of a text that stands alone."""
    if dialect == "sqlite":
        return sql
    return re.sub(r"(?<![:\w]):(\w+)", r"%(\1)s::text", sql.replace("%", "%%"))
