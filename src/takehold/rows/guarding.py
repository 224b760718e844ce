"""`guard`: a task locks the rows it changes. A flush that changes a guarded row without its lock is reported."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from sqlalchemy import Connection, event
from sqlalchemy.orm import Mapper, Session, SessionTransaction, object_session

from takehold import UsageError
from takehold.rows.identity import Identity, mapper_of, state_of
from takehold.rows.locked import locked_by
from takehold.rows.locker import owned
from takehold.rows.party import application_line
from takehold.rows.unprotected import warn

__all__ = ["guard", "vouch"]

Check: TypeAlias = Literal["raise", "warn", "off"]
_CHANGED: Final = "takehold.rows.changed"
"""Where an object keeps the line that changed it last."""
_VOUCHED: Final = "takehold.rows.vouched"


@dataclass(frozen=True, slots=True)
class _Rule:
    check: Check
    namespace: str
    held: Callable[[Any], object] | None


_rules: weakref.WeakKeyDictionary[Mapper[Any], _Rule] = weakref.WeakKeyDictionary()


def guard(
    model: type[Any],
    check: Check = "raise",
    *,
    namespace: str | None = None,
    held: Callable[[Any], object] | None = None,
) -> None:
    """Report each flush that updates or deletes a row of this model, or of a subclass, which the session did not lock.

    A row is locked by `lock_rows`, `claim_rows` and the like, by a lockset with its primary key in `namespace` (the
    table's name, if you do not say), or when `held(row)` is true: `held=lambda job: locks.held(f"job/{job.id}")`.
    The report names the line that changed the row and the line that flushed: a `UsageError`, or a warning,
    `UnprotectedWrite`. Call it once, where the model is; a later call replaces it, and `"off"` ends it.
    """
    if check not in ("raise", "warn", "off"):
        raise UsageError(f"check is 'raise', 'warn' or 'off', not {check!r}")
    mapper = mapper_of(model)
    if mapper not in _rules:
        event.listen(model, "before_update", _updating, propagate=True)
        event.listen(model, "before_delete", _deleting, propagate=True)
        for attribute in mapper.column_attrs:
            event.listen(getattr(model, attribute.key), "set", _set, propagate=True)
    _rules[mapper] = _Rule(check, namespace or str(mapper.local_table), held)


def _rule_of(mapper: Mapper[Any]) -> _Rule | None:
    """The nearest class that is guarded decides."""
    return next((rule for one in mapper.iterate_to_root() if (rule := _rules.get(one)) is not None), None)


def _set(row: object, _value: object, _before: object, _initiator: object) -> None:
    state_of(row).info[_CHANGED] = application_line()


def _updating(mapper: Mapper[Any], _connection: Connection, row: object) -> None:
    session = object_session(row)
    # Called for whatever may have changed: an equal value, or only a collection, is no update of the row.
    if session is not None and session.is_modified(row, include_collections=False):
        changed = state_of(row).info.get(_CHANGED)
        _look(session, mapper, row, f"updated, changed at {changed}" if changed else "updated")
    state_of(row).info.pop(_CHANGED, None)


def _deleting(mapper: Mapper[Any], _connection: Connection, row: object) -> None:
    if (session := object_session(row)) is not None:
        _look(session, mapper, row, "deleted")


def _look(session: Session, mapper: Mapper[Any], row: object, what: str) -> None:
    rule = _rule_of(mapper)
    if rule is None or rule.check == "off" or _is_locked(session, row, rule):
        return
    key = state_of(row).identity
    name = f"{type(row).__name__} {key[0] if key and len(key) == 1 else key}"
    sentence = (
        f"{name} is {what} and flushed at {application_line()}, by a session that has not locked it: somebody else may "
        "be changing it too. Call rows.lock_rows(...) first"
    )
    if rule.check == "raise":
        raise UsageError(sentence)
    warn(sentence)


def vouch(session: Session, model: type[Any], identities: Iterable[Identity]) -> None:
    """Until the session's transaction ends, these rows are its own: by a lease, which `locked_by` knows nothing of."""
    mapper = mapper_of(model)
    keys = session.info.setdefault(_VOUCHED, set())
    keys.update(mapper.identity_key_from_primary_key(identity) for identity in identities)


@event.listens_for(Session, "after_transaction_end")
def _ended(session: Session, transaction: SessionTransaction) -> None:
    if transaction.parent is None:
        session.info.pop(_VOUCHED, None)


def _is_locked(session: Session, row: object, rule: _Rule) -> bool:
    key = state_of(row).identity or ()
    value = key[0] if len(key) == 1 else ",".join(map(str, key))
    vouched = state_of(row).key in session.info.get(_VOUCHED, ())
    if vouched or locked_by(session, row) is not None or owned(rule.namespace, value):
        return True
    return rule.held is not None and bool(rule.held(row))
