"""Who may ask what: bearer tokens with a scope each, and what protects a server without tokens from web pages."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from takehold import UsageError
from takehold.server.answers import Refused
from takehold.server.routing import Scope

__all__ = ["Access", "is_loopback"]

RANKS: Final[dict[str, int]] = {"none": 0, "read": 1, "write": 2, "admin": 3}
SHORTEST: Final = 16
EXAMPLE: Final = "lines like `write TOKEN`, where the scope is read, write or admin"


class Access:
    """The tokens, as digests: comparing those tells a guesser nothing."""

    def __init__(self, tokens: Mapping[str, Scope] | None = None) -> None:
        self._ranks = {_digest(token): RANKS[scope] for token, scope in (tokens or {}).items()}

    @classmethod
    def of_file(cls, path: str) -> Access:
        """The tokens of a file that only its owner can read."""
        try:
            with open(path, encoding="utf-8") as file:
                mode = os.fstat(file.fileno()).st_mode
                lines = file.read().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"the token file {path!r} cannot be read: {error}") from error
        if stat.S_IMODE(mode) & 0o077:
            raise UsageError(f"the token file {path!r} can be read by others: chmod 600 {path}")
        tokens: dict[str, Scope] = {}
        for number, line in enumerate(lines, 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            # The line itself is not repeated: there is a secret in it.
            if len(words) != 2 or words[0] not in ("read", "write", "admin"):
                raise UsageError(f"line {number} of the token file {path!r} is not understood: {EXAMPLE}")
            if len(words[1]) < SHORTEST:
                raise UsageError(f"the token in line {number} of {path!r} is shorter than {SHORTEST} characters")
            tokens[words[1]] = words[0]  # type: ignore[assignment]
        if not tokens:
            raise UsageError(f"there is no token in {path!r}: {EXAMPLE}")
        return cls(tokens)

    @property
    def open(self) -> bool:
        """Whether nobody needs a token."""
        return not self._ranks

    def knows(self, token: str) -> bool:
        """Whether this is a token; where none are needed, anything is."""
        return self.open or _digest(token) in self._ranks

    def check(self, scope: Scope, headers: Mapping[bytes, bytes]) -> None:
        """Let it pass, or 401, or 403."""
        if self.open:
            _from_this_machine(headers)
        elif scope != "none":
            self._authorize(scope, headers)

    def _authorize(self, scope: Scope, headers: Mapping[bytes, bytes]) -> None:
        kind, _, token = headers.get(b"authorization", b"").partition(b" ")
        rank = self._ranks.get(_digest(token.strip().decode("latin-1"))) if kind.lower() == b"bearer" else None
        if rank is None:
            raise Refused(
                "a bearer token that this server knows is needed",
                type="NotAuthorizedException", code=401, headers={"WWW-Authenticate": "Bearer"},
            )  # fmt: skip
        if rank < RANKS[scope]:
            raise Refused(f"this needs a token of scope {scope}", type="ForbiddenException", code=403)


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    return host in ("localhost", "::1", "[::1]") or (host.startswith("127.") and host.replace(".", "").isdigit())


def _from_this_machine(headers: Mapping[bytes, bytes]) -> None:
    """Without tokens only programs of this machine may ask, and a page in a browser is a program of somebody else.

    It can reach a loopback port in two ways: across origins, and then the browser names the origin; or under a
    name of its own that it has pointed at 127.0.0.1 (DNS rebinding), and then the request names that host.
    """
    named = _host_of("//" + headers.get(b"host", b"localhost").decode("latin-1"))
    origin = headers.get(b"origin")
    if not is_loopback(named) or (origin is not None and not is_loopback(_host_of(origin.decode("latin-1")))):
        raise Refused(
            "a server without tokens answers programs of its own machine only", type="ForbiddenException", code=403
        )


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
