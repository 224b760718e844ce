"""The pure halves of the recipes: key templates, slot names, and the decorator that both faces use."""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Awaitable, Callable
from string import Formatter
from typing import Any

from takehold.core.deadline import Deadline
from takehold.core.key import checked
from takehold.core.record import HoldRecord
from takehold.core.want import Want
from takehold.errors import LockTimeout, UsageError

__all__ = ["guarded", "guarded_async", "left", "slot_keys", "slots_full"]


def left(deadline: Deadline) -> float | None:
    """What is left of a deadline, as a timeout."""
    return None if math.isinf(deadline.at) else deadline.left()


def key_maker(template: str, function: Callable[..., Any]) -> Callable[..., str]:
    """From a call's arguments to its key; `UsageError` now if the template names something unknown."""
    if not isinstance(template, str):
        raise UsageError(f"guard() takes a key template such as 'invoice/{{customer_id}}', not {template!r}")
    signature = inspect.signature(function)
    try:
        fields = [name for _, name, _, _ in Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise UsageError(f"guard({template!r}): {error}") from error
    for field in fields:
        root = field.split(".")[0].split("[")[0]
        if root not in signature.parameters:
            known = ", ".join(signature.parameters) or "none"
            raise UsageError(
                f"guard({template!r}): {function.__qualname__}() has no parameter {root!r}; it has: {known}"
            )
    if not fields:
        checked(template, "a key")

    def make(*args: Any, **kwargs: Any) -> str:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return template.format(**bound.arguments)

    return make


def _checked_busy(busy: object) -> None:
    if not callable(busy) and busy not in ("wait", "skip", "raise"):
        raise UsageError(f"busy is 'wait', 'skip', 'raise' or a callable, not {busy!r}")


def _refuse_generators(function: Callable[..., Any]) -> None:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(f"{function.__qualname__}() is a generator: its body would run after the lock was released")


_HOLD_ID = re.compile(r"[0-9]+(\.[0-9a-f]+)?-[0-9a-f]+(-[0-9a-f]+)?")


def check_hold_id(hold: object) -> None:
    """`UsageError` for what cannot be the id of a hold."""
    if not isinstance(hold, str) or not _HOLD_ID.fullmatch(hold):
        raise UsageError(f"evict() takes the id of a hold, as who() shows it: '4711.1f2e3d4c-0-17'; not {hold!r}")


def _site_of(function: Callable[..., Any]) -> str:
    code = inspect.unwrap(function).__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


def guarded(locks: Any, template: str, busy: Any, timeout: Any, mode: Any) -> Callable[..., Any]:
    """The blocking decorator."""
    _checked_busy(busy)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        _refuse_generators(function)
        if inspect.iscoroutinefunction(function):
            raise UsageError(f"{function.__qualname__}() is async: use AsyncLocks.guard, or the lock ends before it")
        key_of, site = key_maker(template, function), _site_of(function)

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            lock = locks.lock(key_of(*args, **kwargs), timeout=0 if busy == "raise" else timeout, mode=mode)
            lock._site = site
            if busy in ("wait", "raise"):
                with lock:
                    return function(*args, **kwargs)
            hold = lock.try_acquire()
            if hold is None:
                return busy(*args, **kwargs) if callable(busy) else None
            with hold:
                return function(*args, **kwargs)

        return wrapper

    return decorate


def guarded_async(locks: Any, template: str, busy: Any, timeout: Any, mode: Any) -> Callable[..., Any]:
    """The asyncio decorator."""
    _checked_busy(busy)

    def decorate(function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        _refuse_generators(function)
        if not inspect.iscoroutinefunction(function):
            raise UsageError(f"{getattr(function, '__qualname__', function)}() is not async: use Locks.guard")
        key_of, site = key_maker(template, function), _site_of(function)

        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            lock = locks.lock(key_of(*args, **kwargs), timeout=0 if busy == "raise" else timeout, mode=mode)
            lock._site = site
            if busy in ("wait", "raise"):
                async with lock:
                    return await function(*args, **kwargs)
            hold = await lock.try_acquire()
            if hold is None:
                answer = busy(*args, **kwargs) if callable(busy) else None
                return await answer if inspect.isawaitable(answer) else answer
            async with hold:
                return await function(*args, **kwargs)

        return wrapper

    return decorate


def slot_keys(key: object, count: object) -> tuple[list[str], str]:
    """The plain keys of a semaphore, and the key of the line in front of it."""
    if not isinstance(key, str):
        raise UsageError(f"slots() takes a text key, not {type(key).__name__}: {key!r}")
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= 1000:
        raise UsageError(f"slots() takes a count of 1 to 1000, not {count!r}")
    checked(key, "a key")
    return [f"{key}[{number}]" for number in range(count)], f"{key}[line]"


def slots_full(wants: tuple[Want, ...], waited: float, records: list[HoldRecord]) -> LockTimeout:
    """`LockTimeout` for a semaphore with no slot free."""
    names = {(want.namespace, want.text) for want in wants}
    held = [record for record in records if record.state == "held" and (record.namespace, record.key) in names]
    name = wants[0].text.rpartition("[")[0]
    owners = "; ".join(f"{record.key} by {record.owner} for {record.age:.1f} s" for record in held[:4])
    message = f"no slot of {name!r} ({len(wants)}) free after {waited:.1f} s" + (f": {owners}" if owners else "")
    first = held[0] if held else None
    return LockTimeout(message, key=name, waited=waited, owner=first and first.owner, held_for=first and first.age)
