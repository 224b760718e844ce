"""`swap`: compare and set in one statement, for whoever knows what the row looked like."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, overload

from sqlalchemy import update
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Mapper, Session, scoped_session

from takehold import UsageError
from takehold.rows.identity import key_columns, mapper_of
from takehold.rows.session import AnySession, on

__all__ = ["swap"]


@overload
def swap(
    session: Session | scoped_session[Session],
    model: type[Any],
    pk: Any,
    *,
    expect: Mapping[str, Any],
    set: Mapping[str, Any],
) -> bool: ...
@overload
def swap(
    session: AsyncSession | async_scoped_session[AsyncSession],
    model: type[Any],
    pk: Any,
    *,
    expect: Mapping[str, Any],
    set: Mapping[str, Any],
) -> Awaitable[bool]: ...
def swap(
    session: AnySession,
    model: type[Any],
    pk: Any,
    *,
    expect: Mapping[str, Any],
    set: Mapping[str, Any],  # noqa: A002
) -> bool | Awaitable[bool]:
    """Change the row with this primary key (a tuple, if it has several columns) if it is as expected.

    False when it is not, or not there: somebody was first. An object of it that the session has loaded is up to date
    afterwards, either way. The change is the transaction's: commit it.
    """
    mapper = mapper_of(model)
    for name, given in (("expect", expect), ("set", set)):
        _check(mapper, name, given)
    return on(session, _swap, mapper, pk if isinstance(pk, tuple) else (pk,), dict(expect), dict(set))


def _check(mapper: Mapper[Any], name: str, given: Mapping[str, Any]) -> None:
    columns = mapper.column_attrs
    if not given:
        raise UsageError(f"{name}= names no column; a swap compares and sets at least one")
    if unknown := [key for key in given if key not in columns]:
        raise UsageError(f"{name}= has {unknown}; the columns of {mapper.class_.__name__} are {sorted(columns.keys())}")


def _swap(
    session: Session, mapper: Mapper[Any], pk: tuple[Any, ...], expect: dict[str, Any], values: dict[str, Any]
) -> bool:
    model, keys = mapper.class_, key_columns(mapper.class_)
    if len(pk) != len(keys):
        raise UsageError(f"the primary key of {model.__name__} has {len(keys)} columns, not {len(pk)}: {pk!r}")
    same = [_is(getattr(model, name), value) for name, value in expect.items()]
    these = [column == value for column, value in zip(keys, pk, strict=True)]
    change = update(model).where(*these, *same).values(values).execution_options(synchronize_session=False)
    result: Any = session.execute(change)
    changed = bool(result.rowcount)
    if (loaded := session.identity_map.get(mapper.identity_key_from_primary_key(pk))) is not None:
        _bring_up_to_date(session, loaded, [*expect, *values])
    return changed


def _is(column: Any, value: Any) -> Any:
    return column.is_(None) if value is None else column == value


def _bring_up_to_date(session: Session, loaded: object, names: list[str]) -> None:
    """Now, not when it is looked at: an AsyncSession could not load it then."""
    try:
        session.refresh(loaded, dict.fromkeys(names))
    except InvalidRequestError:  # its row is gone
        session.expire(loaded)
