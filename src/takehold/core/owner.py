"""Who holds or waits: host, pid, label, and the line of code, resolved only when somebody asks."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Final, TypeAlias

__all__ = ["Owner", "Site", "calling_site", "here", "site_text"]

MAX_SITES: Final = 4096
Site: TypeAlias = tuple[CodeType, int] | str
"""A code object and an instruction offset (0.2 us to note, a line number only when shown), or ready text."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The process and the line that hold or wait for a key."""

    host: str
    pid: int
    label: str | None
    site: str
    """`file:line` of the call that took or asked for the key."""

    def __str__(self) -> str:
        label = f" ({self.label})" if self.label else ""
        return f"{self.host}:{self.pid}{label} at {self.site}"


@lru_cache(maxsize=1)
def _host() -> str:
    return socket.gethostname()


def here(label: str | None, site: Site) -> Owner:
    """This process as an owner."""
    return Owner(_host(), os.getpid(), label, site_text(site))


def calling_site(depth: int) -> Site:
    """Where the caller's caller (and so on, by depth) stands."""
    frame = sys._getframe(depth + 1)
    return frame.f_code, frame.f_lasti


_resolved: dict[tuple[int, int], tuple[CodeType, str]] = {}


def site_text(site: Site) -> str:
    """`file:line` of a site. Remembered by the identity of the code object: hashing one costs more than a lock."""
    if isinstance(site, str):
        return site
    code, offset = site
    known = _resolved.get((id(code), offset))
    if known is not None:
        return known[1]
    line = code.co_firstlineno
    for start, stop, number in code.co_lines():
        if start <= offset < stop and number is not None:
            line = number
    text = f"{code.co_filename}:{line}"
    if len(_resolved) >= MAX_SITES:
        _resolved.clear()
    # The code object is kept, so that its id cannot come to mean another one.
    _resolved[id(code), offset] = code, text
    return text
