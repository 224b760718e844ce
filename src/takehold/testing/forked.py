"""Run something in a forked child and see what it says."""

from __future__ import annotations

import os
import pickle
import signal
import time
import traceback
import warnings
from collections.abc import Callable
from typing import TypeVar

from takehold.testing.pipe import readable

__all__ = ["in_a_fork"]

T = TypeVar("T")
PATIENCE = 20.0


def in_a_fork(function: Callable[[], T], *, within: float = PATIENCE) -> T:
    """What the function returns in a forked child, which then ends without tidying up."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 warns about forking with threads around. That is what is being tested.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        _child(function, writing)
    os.close(writing)
    try:
        said = _message(reading, within)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        os.close(reading)
        os.waitpid(child, 0)
    value, error = pickle.loads(said)  # noqa: S301 - our own child wrote it
    if error is not None:
        raise AssertionError(f"in the forked child:\n{error}")
    return value  # type: ignore[no-any-return]


def _child(function: Callable[[], object], writing: int) -> None:
    """Never returns: nothing of the parent's test run may go on here."""
    try:
        try:
            said = pickle.dumps((function(), None))
        except BaseException:  # noqa: BLE001 - the parent raises it
            said = pickle.dumps((None, traceback.format_exc()))
        said = len(said).to_bytes(8, "big") + said
        while said:
            said = said[os.write(writing, said) :]
    finally:
        os._exit(0)


def _message(reading: int, within: float) -> bytes:
    """Read it by its length: a grandchild may keep the pipe open for longer."""
    said = b""
    until = time.monotonic() + within
    while len(said) < 8 or len(said) < 8 + int.from_bytes(said[:8], "big"):
        if not readable(reading, until - time.monotonic()):
            raise AssertionError(f"the forked child said nothing within {within:g} s")
        more = os.read(reading, 65_536)
        if not more:
            raise AssertionError("the forked child died")
        said += more
    return said[8:]
