"""Losses: what an event says, how it is logged, who else is told. Used by everything here that can lose something."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Lock
from types import TracebackType
from typing import Literal, Self, TypeAlias, TypedDict

logger = logging.getLogger("takehold.rows.clean")

Kind: TypeAlias = Literal["replaced", "stripped", "truncated", "dropped"]


class Event(TypedDict):
    """One loss, or all of a kind in one column of a bulk run. `before - after` is what was lost; nothing of it is told.

    Of `count` values; in characters, or in entries for the kind "dropped". Without a column, both names are None.
    """

    eventType: Literal["WARNING"]
    kind: Kind
    table: str | None
    column: str | None
    before: int
    after: int
    count: int


Notifier: TypeAlias = Callable[[Event], object]
"""Is told of every loss, after it was logged. What it raises is logged and goes no further."""


def loss(kind: Kind, where: tuple[str | None, str | None], before: int, after: int) -> Event:
    """The event of one value."""
    table, column = where
    return Event(eventType="WARNING", kind=kind, table=table, column=column, before=before, after=after, count=1)


def log(event: Event) -> None:
    """Write a warning. This happens to every event; as a notifier, it means that nobody else is told."""
    logger.warning("%s", _sentence(event), extra={"event": f"rows.clean.{event['kind']}", "loss": event})


def tell(event: Event, notify: Notifier) -> None:
    """Log the event and pass it on; a summary does both later, for all of them."""
    if isinstance(notify, Summary):
        notify(event)
        return
    log(event)
    if notify is log:
        return
    try:
        notify(event)
    except Exception:
        # The value is still to be written: who could not be told must not stop that.
        logger.exception("a notifier failed: %r", notify, extra={"event": "rows.clean.notify", "loss": event})


def _sentence(event: Event) -> str:
    before, after, count = event["before"], event["after"], event["count"]
    where = ".".join(filter(None, (event["table"], event["column"])))
    among = f" in {count} values" if count > 1 else ""
    match event["kind"]:
        case "truncated":
            return f"{where} truncated: {before} → {after}{among}"
        case "dropped":
            where = where or "document_properties"
            return f"{where} exceeded TEXT limit. Dropped {before - after}/{before} keys{among}"
        case "stripped":
            return f"{where or 'text'}: stripped {before - after} of {before} characters, beyond U+FFFF{among}"
        case "replaced":
            return f"{where or 'text'}: replaced {before - after} of {before} characters, not encodable, by ?{among}"


class Summary:
    """A notifier for a run: inside its block losses are added up, at the end one event per column and kind goes out.

    They go out also when the block raises. Outside a block each event goes out at once. Threads may share it.
    """

    def __init__(self, notify: Notifier = log) -> None:
        self._notify = notify
        self._mutex = Lock()
        self._events: dict[tuple[str | None, str | None, Kind], Event] = {}
        self._open = False

    @property
    def events(self) -> list[Event]:
        """What was lost so far in this block."""
        with self._mutex:
            return [event.copy() for event in self._events.values()]

    def __call__(self, event: Event) -> None:
        """Add it, or outside a block pass it on."""
        with self._mutex:
            if self._open:
                self._add(event)
                return
        tell(event, self._notify)

    def _add(self, event: Event) -> None:
        key = event["table"], event["column"], event["kind"]
        total = self._events.setdefault(key, Event(**event | {"before": 0, "after": 0, "count": 0}))
        total["before"] += event["before"]
        total["after"] += event["after"]
        total["count"] += event["count"]

    def __enter__(self) -> Self:
        with self._mutex:
            self._open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._mutex:
            self._open = False
            events, self._events = self._events, {}
        for event in events.values():
            tell(event, self._notify)

    def __repr__(self) -> str:
        return f"<Summary of {len(self._events)} columns and kinds for {self._notify!r}>"
