"""Many rows in one statement, next to others who do the same: sorted by their key, so that nobody waits in a circle."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from operator import is_, itemgetter
from typing import Any, Final, Literal, NamedTuple, TypeAlias, overload

from sqlalchemy import Column, ColumnElement, Table, literal
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import QueryableAttribute, Session, scoped_session

from takehold import UsageError
from takehold.rows.dialects import dialect_of
from takehold.rows.dialects.merging import Merge, Merged, Where
from takehold.rows.identity import mapper_of
from takehold.rows.keys import unique_keys
from takehold.rows.session import AnySession, on

__all__ = ["Inserted", "Upserted", "insert_missing", "upsert"]

log = logging.getLogger(__name__)
Rows: TypeAlias = Iterable[Mapping[str, Any]]
Row: TypeAlias = "dict[str, Any]"
Key: TypeAlias = "str | Sequence[str]"
CHUNK: Final = 10_000


class Inserted(NamedTuple):
    """How many of the rows are new. The others were skipped: their key was there, or came again later, or was None."""

    inserted: int
    skipped: int


class Upserted(NamedTuple):
    """How many keys are new, how many rows have changed, and how many were to stay as they are."""

    inserted: int
    updated: int
    unchanged: int


# -- what is missing -------------------------------------------------------------------------------------------


@overload
def insert_missing(
    session: AsyncSession | async_scoped_session[AsyncSession],
    model: type[Any],
    rows: Rows,
    *,
    key: Key | None = None,
    duplicates: Literal["last", "raise"] = "last",
) -> Awaitable[Inserted]: ...
@overload
def insert_missing(
    session: Session | scoped_session[Session],
    model: type[Any],
    rows: Rows,
    *,
    key: Key | None = None,
    duplicates: Literal["last", "raise"] = "last",
) -> Inserted: ...
def insert_missing(
    session: AnySession,
    model: type[Any],
    rows: Rows,
    *,
    key: Key | None = None,
    duplicates: Literal["last", "raise"] = "last",
) -> Inserted | Awaitable[Inserted]:
    """Insert the rows whose `key` is not in the table yet, and skip the others.

    Rows map attributes of the model to values, all of them the same attributes. `key` is a unique key of the model; it
    need not be named when the rows have only one. Nothing else is forgiven: what is too long, NULL, refers to nothing
    or collides on another key is an error. Of rows with the same key the last one counts. A row with None in its key is
    left out, with a warning: the database would insert it each time.
    """
    return on(session, _insert_missing, model, rows, key, duplicates)


def _insert_missing(
    session: Session, model: type[Any], rows: Rows, key: Key | None, duplicates: Literal["last", "raise"]
) -> Inserted:
    batch = _Batch(model, rows)
    if not batch.rows:
        return Inserted(0, 0)
    columns = batch.key(key)
    merge = Merge(batch.table, tuple(columns.values()))
    attempted = len(batch.rows)
    if left_out := batch.leave_out_none(merge.key):
        log.warning("Left out %d rows of %s with None in %s", left_out, batch.table, ", ".join(columns))
    kept = _by_key(batch, merge.key, duplicates)
    merged = _merge(session, merge, kept)
    skipped = attempted - merged.inserted
    log.info(
        "Attempted %d rows of %s: %d inserted, %d skipped",
        attempted,
        batch.table,
        merged.inserted,
        skipped,
        extra={"event": "rows.insert_missing"},
    )
    return Inserted(merged.inserted, skipped)


# -- new or changed --------------------------------------------------------------------------------------------


@overload
def upsert(
    session: AsyncSession | async_scoped_session[AsyncSession],
    model: type[Any],
    rows: Rows,
    *,
    key: Key,
    update: Key,
    where: Where | None = None,
    duplicates: Literal["last", "raise"] = "last",
) -> Awaitable[Upserted]: ...
@overload
def upsert(
    session: Session | scoped_session[Session],
    model: type[Any],
    rows: Rows,
    *,
    key: Key,
    update: Key,
    where: Where | None = None,
    duplicates: Literal["last", "raise"] = "last",
) -> Upserted: ...
def upsert(  # noqa: PLR0913 - all but three are said by name
    session: AnySession,
    model: type[Any],
    rows: Rows,
    *,
    key: Key,
    update: Key,
    where: Where | None = None,
    duplicates: Literal["last", "raise"] = "last",
) -> Upserted | Awaitable[Upserted]:
    """Insert each row, or where its `key` is there give that row the new values of `update`, if they differ.

    `where` is a further condition on the row that is there, or a function that is given the new values and returns one:
    `where=lambda new: Price.seen_at < new.seen_at`. Rows that it refuses count as unchanged. Of rows with the same key
    the last one has the final say, as if they came one by one. Objects that the session has loaded are not refreshed.
    """
    return on(session, _upsert, model, rows, key, update, where, duplicates)


def _upsert(  # noqa: PLR0913, PLR0917 - as it is called
    session: Session,
    model: type[Any],
    rows: Rows,
    key: Key,
    update: Key,
    where: Where | None,
    duplicates: Literal["last", "raise"],
) -> Upserted:
    batch = _Batch(model, rows)
    if not batch.rows:
        return Upserted(0, 0, 0)
    columns, changing = batch.key(key), batch.columns(update, "update=")
    if not changing or not changing.keys().isdisjoint(columns):
        raise UsageError(
            "update= names one attribute or more, none of them in key=; to change none is insert_missing()"
        )
    merge = Merge(
        batch.table,
        tuple(columns.values()),
        tuple(changing.values()),
        _touched(batch.table, {*columns.values(), *changing.values()}),
        where,
        dict(batch.mapper.columns.items()),
    )
    kept = _by_key(batch, merge.key, duplicates, merge.update)
    if any(map(is_, chain.from_iterable(kept) if len(columns) > 1 else kept, repeat(None))):
        raise UsageError(
            f"a row of {batch.table} has None in ({', '.join(columns)}): no row that is there could match it"
        )
    merged = _merge(session, merge, kept)
    return Upserted(*merged, len(kept) - sum(merged))


def _touched(table: Table, given: set[Column[Any]]) -> dict[str, ColumnElement[Any]]:
    """The columns with `onupdate`, which SQLAlchemy leaves out of an upsert."""
    found = {}
    for column in table.columns:
        default: Any = column.onupdate
        if default is None or column in given or default.is_sequence:
            continue
        value = default.arg(None) if default.is_callable else default.arg
        found[column.key] = value if default.is_clause_element else literal(value, column.type)
    return found


# -- rows ------------------------------------------------------------------------------------------------------


class _Batch:
    """The rows of a call, with the keys of the table's columns; checked to have the same ones."""

    def __init__(self, model: type[Any], rows: Rows) -> None:
        self.mapper = mapper_of(model)
        if not isinstance(self.mapper.local_table, Table) or len(self.mapper.tables) > 1:
            raise UsageError(f"{model.__name__} is stored in several tables: add its objects to the session")
        self.table = self.mapper.local_table
        # What is asked of every row here and below is asked in calls that loop by themselves: three times as fast.
        given: list[Any] = [] if isinstance(rows, Mapping) else list(rows)
        if isinstance(rows, Mapping) or not all(issubclass(kind, Mapping) for kind in set(map(type, given))):
            raise UsageError(f"rows is a list of mappings from attributes of {model.__name__} to values")
        if set(map(type, given)) != {dict}:
            given = [dict(row) for row in given]
        self.names = given[0].keys() if given else {}.keys()
        if len(set(map(len, given))) > 1 or not all(map(frozenset(self.names).issuperset, given)):
            odd = ", ".join(sorted(next(row.keys() ^ self.names for row in given if row.keys() != self.names)))
            raise UsageError(f"all rows have the same attributes; these are in some of them only: {odd}")
        self.rows = self._translated(given)

    def _translated(self, given: list[Row]) -> list[Row]:
        keys = {name: column.key for name, column in self.columns(list(self.names), "a row").items()}
        more: Row = {}
        kind, identity = self.mapper.polymorphic_on, self.mapper.polymorphic_identity
        if isinstance(kind, Column) and identity is not None and kind.key not in keys.values():
            more = {kind.key: identity}
        if not more and all(name == key for name, key in keys.items()):
            return given
        return [{keys[name]: value for name, value in row.items()} | more for row in given]

    def leave_out_none(self, key: Sequence[Column[Any]]) -> int:
        """Drop the rows without their key; how many those were."""
        before, names = len(self.rows), [column.key for column in key]
        for name in names:
            if any(map(is_, map(itemgetter(name), self.rows), repeat(None))):
                self.rows = [row for row in self.rows if row[name] is not None]
        return before - len(self.rows)

    def columns(self, names: Key, where: str) -> dict[str, Column[Any]]:
        """Those of attributes of the model that all rows have."""
        names = [names] if isinstance(names, str | QueryableAttribute) else list(names)
        for name in names:
            if not isinstance(name, str):
                raise UsageError(f"{where} takes names of attributes, such as 'name'; not {name!r}")
            if not isinstance(self.mapper.columns.get(name), Column):
                raise UsageError(f"{where} names {name!r}, which is no column of {self.mapper.class_.__name__}")
            if name not in self.names:
                raise UsageError(f"{where} names {name!r}, which the rows do not have")
        return {name: self.mapper.columns[name] for name in names}

    def key(self, names: Key | None) -> dict[str, Column[Any]]:
        """The unique key that was named, else the only one that the rows have."""
        uniques = unique_keys(self.table)
        if names is not None:
            found = self.columns(names, "key=")
            if not any(set(found.values()) == set(one) for one in uniques):
                raise UsageError(
                    f"({', '.join(found)}) is no unique key of {self.mapper.class_.__name__}: declare it, in the model "
                    "and in the database"
                )
            return found
        attributes = {self.mapper.columns[name]: name for name in self.names}
        candidates = [one for one in uniques if one and attributes.keys() >= set(one)]
        if not candidates:
            raise UsageError(
                f"no unique key of {self.mapper.class_.__name__} is among ({', '.join(self.names)}): declare one in "
                "the model and in the database"
            )
        if len(candidates) > 1:
            which = " or ".join("(" + ", ".join(attributes[column] for column in one) + ")" for one in candidates)
            raise UsageError(f"the rows have several unique keys of {self.mapper.class_.__name__}: say key= {which}")
        return {attributes[column]: column for column in candidates[0]}


def _by_key(
    batch: _Batch, key: Sequence[Column[Any]], duplicates: str, update: Sequence[Column[Any]] = ()
) -> dict[Any, Row]:
    """One row for each key: the last one, or the first one with the last values of `update`.

    A key is the value of its column, or a tuple of several.
    """
    if duplicates not in {"last", "raise"}:
        raise UsageError(f'duplicates= is "last" or "raise", not {duplicates!r}')
    read = itemgetter(*(column.key for column in key))
    kept: dict[Any, Row] = dict(zip(map(read, batch.rows), batch.rows, strict=True))
    if duplicates == "raise" and len(kept) < len(batch.rows):
        twice = next(one for one, times in Counter(map(read, batch.rows)).items() if times > 1)
        names = ", ".join(column.name for column in key)
        raise UsageError(f"two rows have the same ({names}): {twice if len(key) > 1 else (twice,)!r}")
    if not update or len(kept) == len(batch.rows):
        return kept
    kept = {}
    for row in batch.rows:
        one = read(row)
        first = kept.setdefault(one, row)
        if first is not row:
            kept[one] = first | {column.key: row[column.key] for column in update}
    return kept


def _chunks(kept: dict[Any, Row], ordered: Callable[[Collection[Any]], list[Any]]) -> Iterator[list[Row]]:
    """The rows in the order of their keys, which is the same for everybody, cut into pieces."""
    try:
        keys = ordered(kept)
    except TypeError:  # an enumeration, say: any order will do that everybody has
        keys = sorted(kept, key=repr)
    for start in range(0, len(keys), CHUNK):
        yield list(map(kept.__getitem__, keys[start : start + CHUNK]))


# -- in the database -------------------------------------------------------------------------------------------


def _merge(session: Session, merge: Merge, kept: dict[Any, Row]) -> Merged:
    if not kept:
        return Merged(0, 0)
    if session.autoflush:
        session.flush()
    merging = dialect_of(session).merging
    steps = merging.steps(merge, _chunks(kept, merging.ordered))
    result: Any = None
    try:
        step = next(steps)
        while True:
            statement, rows = step
            try:
                result = session.execute(statement, rows)
            except DBAPIError as error:
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        merged: Merged = end.value
        return merged
