"""Several reads at once: sixteen shards in the time of one."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from takehold.runtime import Runtime

__all__ = ["together"]

T = TypeVar("T")


async def together(runtime: Runtime, coros: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all of them, and return their results in order; the first error is raised when all have ended."""
    results: dict[int, T] = {}
    errors: dict[int, BaseException] = {}

    async def one(number: int, coro: Coroutine[Any, Any, T]) -> None:
        try:
            results[number] = await coro
        except BaseException as error:  # noqa: BLE001 - raised below, where somebody waits for it
            errors[number] = error

    tasks = [runtime.spawn(one(number, coro), "read") for number, coro in enumerate(coros)]
    for task in tasks:
        await task.join()
    for error in errors.values():
        raise error
    return [results[number] for number in range(len(coros))]
