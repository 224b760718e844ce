"""`lock_rows`: the rows with these values, locked in an order that everybody shares, and read after the lock.

Sorted here and by the database, so that two who want the same rows wait for each other in one direction only. Where
the database has no row locks, keys of the desk stand for the rows.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast, overload
from uuid import UUID

from sqlalchemy import ColumnElement, Select, TypeDecorator, and_, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import (
    InstrumentedAttribute,
    Mapper,
    RelationshipProperty,
    Session,
    aliased,
    lazyload,
    scoped_session,
)
from sqlalchemy.orm.interfaces import ORMOption

from takehold import Conflict, Key, LockTimeout, UsageError
from takehold.rows.attempts import Attempts
from takehold.rows.desk import within
from takehold.rows.dialects import RETRYABLE, Dialect, Trouble, dialect_of, trouble_of
from takehold.rows.identity import Identity, among, identity_of, key_columns, key_names, mapper_of, reader, row_key
from takehold.rows.locked import locked_by, note
from takehold.rows.party import application_line
from takehold.rows.session import AnySession, on, pause, settled

__all__ = ["lock", "lock_rows", "refuse_to_overwrite"]

log = logging.getLogger(__name__)
M = TypeVar("M")
CHUNK: Final = 1000


@overload
def lock_rows(
    session: Session | scoped_session[Session],
    model: type[M],
    values: Any,
    *,
    field: str = "id",
    deleting: bool = False,
    of: Any = (),
    options: ORMOption | Sequence[ORMOption] = (),
    nowait: bool = False,
    attempts: int | None = None,
    delay: float | None = None,
) -> list[M]: ...
@overload
def lock_rows(
    session: AsyncSession | async_scoped_session[AsyncSession],
    model: type[M],
    values: Any,
    *,
    field: str = "id",
    deleting: bool = False,
    of: Any = (),
    options: ORMOption | Sequence[ORMOption] = (),
    nowait: bool = False,
    attempts: int | None = None,
    delay: float | None = None,
) -> Awaitable[list[M]]: ...
def lock_rows(  # noqa: PLR0913 - keywords, each on its own
    session: AnySession,
    model: type[M],
    values: Any,
    *,
    field: str = "id",
    deleting: bool = False,
    of: Any = (),
    options: ORMOption | Sequence[ORMOption] = (),
    nowait: bool = False,
    attempts: int | None = None,
    delay: float | None = None,
) -> list[M] | Awaitable[list[M]]:
    """Lock the rows whose `field` is one of `values`, until the transaction ends; the objects, read after the lock.

    Others may insert rows that refer to them, unless `deleting=True`: say so to delete them or to change their primary
    key. `options` are loader options; related rows are locked only when `of` names them, by class or relationship.
    `nowait=True` raises `LockTimeout` instead of waiting. After a deadlock it tries again if nothing came before it in
    this transaction, at last a `Conflict`; otherwise the error is for `retry` or `transaction`, which run all of it.
    """
    asked = _asked(model, values, field, of, options, deleting=deleting, nowait=nowait, line=application_line())
    return on(session, _lock_rows, asked, Attempts.of(attempts, delay))


lock = lock_rows


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is to be locked."""

    mapper: Mapper[Any]
    field: str
    values: Sequence[Any]
    """Without duplicates, sorted."""
    single: bool
    """Whether a value was given, not an iterable of them."""
    related: Sequence[Any]
    """Relationships of the model whose rows are locked too."""
    options: Sequence[ORMOption]
    deleting: bool
    nowait: bool
    line: str

    @property
    def model(self) -> Any:
        return self.mapper.class_

    @property
    def chunks(self) -> Iterable[Sequence[Any]]:
        return (self.values[start : start + CHUNK] for start in range(0, len(self.values), CHUNK))

    def matches(self, chunk: Sequence[Any]) -> ColumnElement[bool]:
        column = getattr(self.model, self.field)
        return cast("ColumnElement[bool]", column == chunk[0] if self.single else column.in_(chunk))

    def locking(self, dialect: Dialect, query: Select[Any], entity: Any) -> Select[Any]:
        """The query of rows of `entity`, which locks them and refreshes objects that are loaded already."""
        query = dialect.locking(query, [entity], deleting=self.deleting, nowait=self.nowait)
        return query.execution_options(populate_existing=True)


# -- what was asked ------------------------------------------------------------------------------------------


def _asked(model: Any, values: Any, field: str, of: Any, options: Any, **rest: Any) -> _Asked:
    mapper = mapper_of(model)
    if field not in mapper.column_attrs:
        names = ", ".join(mapper.column_attrs.keys())
        raise UsageError(f"{model.__name__} has no column {field!r} to lock by; it has {names}; say field='...'")
    single = isinstance(values, str | bytes) or not isinstance(values, Iterable)
    return _Asked(
        mapper=mapper,
        field=field,
        values=_in_order(mapper, field, [values] if single else values),
        single=single,
        related=[found for one in _several(of) if (found := _relationship(mapper, one)) is not None],
        options=_several(options),
        **rest,
    )


def _several(one_or_more: Any) -> Sequence[Any]:
    return list(one_or_more) if isinstance(one_or_more, list | tuple | set | frozenset) else [one_or_more]


def _in_order(mapper: Mapper[Any], field: str, values: Iterable[Any]) -> Sequence[Any]:
    kind = mapper.column_attrs[field].columns[0].type
    # No row has the value None, not even one where it is NULL.
    once = dict.fromkeys(_canonical(kind, value) for value in values if value is not None)
    try:
        return sorted(once)
    except TypeError:
        return sorted(once, key=lambda value: (type(value).__name__, str(value)))


def _canonical(kind: Any, value: Any) -> Any:
    """The value as the column's Python type has it: "1" would sort elsewhere, and be another key than 1."""
    if isinstance(value, str) and not isinstance(kind, TypeDecorator):
        for wanted in (int, UUID):
            if _python_type(kind) is wanted:
                try:
                    return wanted(value)
                except ValueError:
                    raise UsageError(f"{value!r} is no {wanted.__name__}, as this column has") from None
    return value


def _python_type(kind: Any) -> Any:
    try:
        return kind.python_type
    except NotImplementedError:
        return None


def _relationship(mapper: Mapper[Any], named: Any) -> Any:
    """The relationship that `of=` means; None for the model itself, which is locked anyway."""
    if named is mapper.class_:
        return None
    if isinstance(named, InstrumentedAttribute) and isinstance(named.property, RelationshipProperty):
        if named.property.key in mapper.relationships:
            return named
        fitting = []
    else:
        fitting = [one for one in mapper.relationships if one.mapper.class_ is named]
    if len(fitting) != 1:
        names = ", ".join(mapper.relationships.keys()) or "it has none"
        raise UsageError(f"of= takes relationships of {mapper.class_.__name__} ({names}), not {named!r}")
    return getattr(mapper.class_, fitting[0].key)


# -- until it is locked --------------------------------------------------------------------------------------


def _lock_rows(session: Session, asked: _Asked, attempts: Attempts) -> list[Any]:
    if not asked.values:
        return []
    refuse_to_overwrite(session, asked.model, asked.field, asked.values)
    first = not session.in_transaction()
    for number, seconds in attempts:
        try:
            return _locked(session, asked)
        except DBAPIError as error:
            trouble = trouble_of(error)
            if trouble is Trouble.LOCKED and asked.nowait:
                raise _taken(asked) from error
            if trouble not in RETRYABLE:
                raise
            name, field, count = asked.model.__name__, asked.field, attempts.count
            log.warning(
                "Deadlock on %s.%s, attempt %d/%d", name, field, number, count, extra={"event": "rows.deadlock"}
            )
            if not first:
                raise  # The transaction is undone, with work that only its owner can do again.
            session.rollback()
            if seconds is None:
                raise Conflict(f"Failed to acquire lock after {number} attempts") from error
        pause(session, seconds)
    raise AssertionError("the last attempt returns or raises")


def refuse_to_overwrite(session: Session, model: type[Any], field: str = "", values: Sequence[Any] = ()) -> None:
    """Rows are read again after the lock. What was changed before it would be written over what others wrote since.

    Without autoflush the change itself would be gone, also in objects that are joined.
    """
    for row in session.dirty:
        if not session.is_modified(row, include_collections=False):
            continue
        name = f"{type(row).__name__} {identity_of(row)}"
        asked = isinstance(row, model) and field and getattr(row, field) in values
        if asked and locked_by(session, row) is None:
            raise UsageError(
                f"{name} was changed before it is locked, from what was read without the lock. Lock first, then read "
                "and change; or roll back"
            )
        if not session.autoflush:
            raise UsageError(f"{name} has changes that are not flushed, and a lock reads rows again. Flush first")


def _taken(asked: _Asked) -> LockTimeout:
    return LockTimeout(f"a row of {asked.model.__name__} is locked by somebody else, and nowait=True does not wait")


def _locked(session: Session, asked: _Asked) -> list[Any]:
    dialect = dialect_of(session)
    seen = {} if dialect.row_locks else _take_keys(session, asked)
    apart = _loads_apart(dialect, asked)
    rows: list[Any] = []
    for number, chunk in enumerate(asked.chunks):
        condition = asked.matches(chunk)
        if number in seen:
            condition = and_(condition, among(asked.model, seen[number]))
        column = getattr(asked.model, asked.field)
        query = select(asked.model).where(condition).order_by(dialect.ordering(column))
        query = query.options(*(_not_joined(asked.mapper) if apart else asked.options))
        if key_names(asked.model) == [asked.field]:
            query = dialect.by_key(query, asked.mapper.local_table)
        rows += session.scalars(asked.locking(dialect, query, asked.model)).unique()
    note(session, rows, deleting=asked.deleting, line=asked.line)
    if apart:
        _lock_related(session, dialect, asked, rows)
        _load(session, asked, rows)
    return rows


# -- related rows --------------------------------------------------------------------------------------------


def _loads_apart(dialect: Dialect, asked: _Asked) -> bool:
    """Whether loader options are left to a statement after the lock, which would lock what they join."""
    return bool(asked.related) or (dialect.greedy and bool(asked.options or _not_joined(asked.mapper)))


def _not_joined(mapper: Mapper[Any]) -> list[ORMOption]:
    """Options that leave out what the model joins by itself."""
    joined = [one.key for one in mapper.relationships if one.lazy in ("joined", False)]
    return [lazyload(getattr(mapper.class_, name)) for name in joined]


def _lock_related(session: Session, dialect: Dialect, asked: _Asked, rows: Sequence[Any]) -> None:
    identities = sorted(map(identity_of, rows))
    for relationship in asked.related:
        for start in range(0, len(identities), CHUNK):
            entity, query = _related(asked, relationship, among(asked.model, identities[start : start + CHUNK]))
            query = query.order_by(*map(dialect.ordering, key_columns(entity)))
            found = session.scalars(asked.locking(dialect, query, entity)).unique().all()
            note(session, found, deleting=asked.deleting, line=asked.line)


def _related(asked: _Asked, relationship: Any, condition: ColumnElement[bool]) -> tuple[Any, Select[Any]]:
    """An inner join, never an outer one: Postgres refuses to lock rows that may be absent."""
    entity = aliased(relationship.property.mapper.class_)
    query = select(entity).select_from(asked.model).join(relationship.of_type(entity)).where(condition)
    return entity, query.options(*_not_joined(relationship.property.mapper))


def _load(session: Session, asked: _Asked, rows: Sequence[Any]) -> None:
    """Load what the options say, and nothing again that the lock has read: a snapshot may be older than it."""
    identities = [identity_of(row) for row in rows]
    for start in range(0, len(identities), CHUNK):
        query = select(asked.model).where(among(asked.model, identities[start : start + CHUNK]))
        session.scalars(query.options(*asked.options)).unique().all()


# -- where keys of the desk stand for rows -------------------------------------------------------------------


def _take_keys(session: Session, asked: _Asked) -> dict[int, Sequence[Identity]]:
    """Take the keys of the rows; by number of the chunk the rows they stand for, if that had to be looked up.

    Rows that come to match between the look and the grant are left alone, as a row lock at READ COMMITTED does.
    """
    keys: list[Key] = []
    seen: dict[int, Sequence[Identity]] = {}
    names = key_names(asked.model)
    for number, chunk in enumerate(asked.chunks):
        if names == [asked.field] and not asked.related:
            keys += [row_key(asked.model, (value,)) for value in chunk]
            continue
        with reader(session) as look:
            found = look.execute(select(*key_columns(asked.model)).where(asked.matches(chunk))).all()
            seen[number] = [tuple(one) for one in found]
            keys += [row_key(asked.model, one) for one in seen[number]]
            for relationship in asked.related:
                entity, query = _related(asked, relationship, asked.matches(chunk))
                others = look.execute(query.with_only_columns(*key_columns(entity))).all()
                keys += [row_key(relationship.property.mapper.class_, tuple(one)) for one in others]
    if keys:
        desk = within(session)
        if not asked.nowait:
            settled(session, desk.acquire(*keys))
        elif settled(session, desk.try_acquire(*keys)) is None:
            raise _taken(asked)
    return seen
