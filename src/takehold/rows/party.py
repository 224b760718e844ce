"""Who is at work, and at which line of the application: the running task or thread, seen from below SQLAlchemy."""

from __future__ import annotations

import asyncio
import sys
import threading
from types import FrameType
from typing import Final

__all__ = ["application_line", "party"]

_BETWEEN: Final = ("takehold.", "sqlalchemy.", "contextlib", "asyncio.")
"""Modules whose lines say nothing to the application's author."""


def party() -> object:
    """The running task, else the thread. The object itself: an id may come back for another one."""
    # Every release asks: `get_running_loop` would raise an error for each one without a loop.
    loop = asyncio._get_running_loop()
    return (asyncio.current_task(loop) if loop is not None else None) or threading.current_thread()


def application_line() -> str:
    """`file:line` of the innermost call that is not ours, nor SQLAlchemy's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and f"{frame.f_globals.get('__name__', '')}.".startswith(_BETWEEN):
        frame = frame.f_back or _awaiting(frame)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "unknown:0"


def _awaiting(outermost: FrameType) -> FrameType | None:
    """The frame that awaits us: `AsyncSession` runs a `Session` in a greenlet, where the chain of frames ends."""
    greenlet = sys.modules.get("greenlet")
    around = greenlet.getcurrent().parent if greenlet is not None else None
    frame: FrameType | None = around.gr_frame if around is not None else None
    return None if frame is outermost else frame
