"""A channel to the table: one question at a time, and the answer. Also the idle one that is kept for later.

All questions and answers are small JSON objects, the same for every database: `open`, `apply`, `beat`, `look`,
`evict`, `revoke`, `bye`.
"""

from __future__ import annotations

import threading
from typing import Any, Final, Protocol, TypeAlias

from takehold.backends.lease.address import Address
from takehold.core.backend import SessionLost
from takehold.runtime import Runtime

__all__ = [
    "FENCE_STEP",
    "LEASE_FORMAT",
    "MARK",
    "PATIENCE",
    "REVISION",
    "Channel",
    "ChannelLost",
    "Reply",
    "Request",
    "Side",
    "Troubled",
    "channel_to",
]

LEASE_FORMAT: Final = 1
"""Of the tables."""
REVISION: Final = 1
"""Of the functions in Postgres: releases with different ones can share a table."""
FENCE_STEP: Final = 2048
"""Between two fences of the table: room for local hand-overs and joins, which count up from there."""
PATIENCE: Final = 0.05
"""Seconds after which nobody overtakes a waiter any more; and for which one who has waited may then take again.

Without the second every round of a busy key would wait for the next one's question.
"""
MARK: Final = 1.0
"""Seconds for which a waiter that asks no more still keeps its place."""

Request: TypeAlias = dict[str, Any]
Reply: TypeAlias = dict[str, Any]


class ChannelLost(SessionLost):
    """The channel is broken; whether the last question was heard is unknown. The next one opens it again."""


class Troubled(Exception):
    """The database refused this question, and would refuse it again."""


class Channel(Protocol):
    """One way to ask. Broken, it is made again by the next question."""

    async def ask(self, what: str, request: Request, seconds: float) -> Reply | None:
        """The answer; None when it has not come within `seconds`: ask the same again to wait on.

        Raises `ChannelLost` or `Troubled`.
        """

    async def prepare(self, seconds: float, *, make: bool, fence_from: int | None = None) -> bool:
        """Whether the tables are there, made now if so wanted; `BackendRefused` for what cannot be trusted."""

    def last_words(self, what: str, request: Request) -> None:
        """Ask without waiting for the answer, and close. Only for tasks, on a channel that nobody is using."""

    def close(self) -> None:
        """For good, from any thread; whoever waits for an answer finds out soon."""

    def after_fork(self) -> None:
        """In a forked child: let go without a word."""


def channel_to(address: Address, rt: Runtime) -> Channel:
    """A channel for one face. No I/O, and nothing imported before it is needed."""
    if address.kind == "sqlite":
        from takehold.backends.lease.sqlite import SqliteChannel

        return SqliteChannel(address, rt)
    from takehold.backends.lease.postgres import PostgresChannel

    return PostgresChannel(address, rt)


class Side:
    """For questions beside the statements of a session: at most one idle channel is kept, more come and go."""

    def __init__(self, address: Address, rt: Runtime) -> None:
        self._address = address
        self._rt = rt
        self._mutex = threading.Lock()
        self._idle: Channel | None = None
        self._out: set[Channel] = set()
        self._closed = False

    async def ask(self, what: str, request: Request, seconds: float) -> Reply:
        """The answer within `seconds`, or `ChannelLost`. Only for questions that may be asked twice."""
        until = self._rt.now() + seconds
        with self._mutex:
            if self._closed:
                raise ChannelLost("closed")
            known, self._idle = self._idle, None
            channel = known or channel_to(self._address, self._rt)
            self._out.add(channel)
        try:
            reply = await self._asked(channel, what, request, until, known is not None)
        except BaseException:
            self._back(channel, good=False)
            raise
        self._back(channel, good=reply is not None)
        if reply is None:
            raise ChannelLost(f"no answer within {seconds:.2f} s")
        return reply

    async def _asked(self, channel: Channel, what: str, request: Request, until: float, known: bool) -> Reply | None:
        while True:
            left = until - self._rt.now()
            try:
                reply = await channel.ask(what, request, max(0.0, left))
            except ChannelLost:
                # One that was idle may have been cut long ago: that says nothing about the server now.
                if not known or left <= 0:
                    raise
                known, reply = False, None
            if reply is not None or left <= 0:
                return reply

    def _back(self, channel: Channel, *, good: bool) -> None:
        with self._mutex:
            self._out.discard(channel)
            keep = good and self._idle is None and not self._closed
            if keep:
                self._idle = channel
        if not keep:
            channel.close()

    def last_words(self, what: str, request: Request) -> bool:
        """Say this on the idle channel; False when there is none."""
        with self._mutex:
            idle, self._idle = self._idle, None
        if idle is None:
            return False
        idle.last_words(what, request)
        return True

    def close(self) -> None:
        """For good."""
        with self._mutex:
            self._closed = True
            idle, self._idle = self._idle, None
            out = list(self._out)
        for channel in (*out, *((idle,) if idle is not None else ())):
            channel.close()

    def after_fork(self) -> None:
        """In a forked child."""
        self._closed = True
        for channel in (*self._out, *((self._idle,) if self._idle is not None else ())):
            channel.after_fork()
