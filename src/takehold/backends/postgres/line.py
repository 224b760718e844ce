"""Where the server is, how our connections look there, and what the URL may say about them."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from takehold.backends._drivers.wire import Target, Wire, connect
from takehold.backends.postgres.proving import pid_of, settings_for
from takehold.errors import UsageError
from takehold.runtime import Runtime

__all__ = ["Line", "Options", "parse"]

NAME_BYTES: Final = 63


@dataclass(frozen=True, slots=True)
class Options:
    """What the URL may say, beside what the driver takes."""

    pooler: str | None = None
    """`session` accepts a pooler that keeps one server process per client."""
    max_held: int | None = None
    """Locks this process may hold; a fifth of what the server's lock table is sure to hold."""
    connect: float = 5.0
    """Seconds for a connection."""
    reply: float = 10.0
    """Seconds without an answer after which the session, and every hold on it, is given up."""
    silence: float = 5.0
    """Seconds after which either side gives up a connection whose bytes are not acknowledged."""


_NUMBERS: Final = {"max_held": int, "connect": float, "reply": float, "silence": float}


def parse(url: str) -> tuple[str, Options]:
    """The URL for the driver, and our own options out of its query."""
    parts = urlsplit(url)
    ours: dict[str, object] = {}
    theirs: list[tuple[str, str]] = []
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name == "pooler":
            if value != "session":
                raise UsageError(f"?pooler= takes 'session', for a pooler in session mode; not {value!r}")
            ours[name] = value
        elif name in _NUMBERS:
            try:
                ours[name] = _NUMBERS[name](value)
            except ValueError:
                raise UsageError(f"?{name}= takes a number, not {value!r}") from None
            if not 0 < ours[name] < 1e9:  # type: ignore[operator]
                raise UsageError(f"?{name}= takes a number above 0, not {value!r}")
        else:
            theirs.append((name, value))
    # By hand: `urlunsplit` drops the slashes of an empty host, and libpq takes no plus for a space.
    query = "?" + urlencode(theirs, safe="/", quote_via=quote) if theirs else ""
    return f"postgresql://{parts.netloc}{parts.path}{query}", Options(**ours)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Line:
    """What all connections of one session have in common: the server, and a token that names the session."""

    url: str
    options: Options
    token: str = field(default_factory=lambda: secrets.token_hex(4))

    @property
    def name(self) -> str:
        """The first part of the ids of its holds."""
        return f"{os.getpid()}.{self.token}"

    async def raw(self, rt: Runtime, seconds: float, role: str = "") -> Wire:
        """A connection as the server gives it."""
        return await connect(rt, self.target(role), seconds)

    def target(self, role: str = "") -> Target:
        """Where to connect, with a name that shows the role in `pg_stat_activity`."""
        name = f"takehold{role} {self.token} {socket.gethostname()[:30]}:{os.getpid()}"[:NAME_BYTES]
        return Target(self.url, name, self.options.silence)

    async def connect(self, rt: Runtime, seconds: float, role: str = "") -> Wire:
        """A connection set up for locks."""
        wire = await self.raw(rt, seconds, role)
        try:
            await wire.run(self.settings(wire), seconds)
            if self.options.pooler is not None:
                wire.pid = await pid_of(wire, seconds)
        except BaseException:
            wire.close()
            raise
        return wire

    def settings(self, wire: Wire) -> str:
        """What a connection needs before it may lock."""
        silence = int(self.options.silence * 1000)
        idle = self.target().idle
        return settings_for(wire, check_ms=min(500, silence), user_timeout_ms=silence, idle=idle)
