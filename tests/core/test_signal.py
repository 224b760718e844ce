"""What a task awaits that is woken by the answer itself, and not a turn of the loop later."""

from __future__ import annotations

import asyncio

import pytest

from takehold.runtime.aio import Aio, AioSignal


def test_a_task_runs_inside_the_call_that_wakes_it() -> None:
    async def main() -> list[str]:
        seen: list[str] = []
        task, signal = await _waiting(seen, "woken")

        def wake() -> None:
            signal.set()
            seen.append("set")

        asyncio.get_running_loop().call_soon(wake)
        await task
        return seen

    assert asyncio.run(main()) == ["woken", "set"]


def test_from_inside_a_task_it_is_woken_in_the_next_turn() -> None:
    async def main() -> list[str]:
        seen: list[str] = []
        task, signal = await _waiting(seen, "woken")
        signal.set()
        signal.set()
        seen.append("set")
        await task
        return seen

    assert asyncio.run(main()) == ["set", "woken"]


def test_a_signal_that_was_set_before_is_not_waited_for() -> None:
    async def main() -> None:
        signal = Aio(asyncio.get_running_loop()).signal()
        signal.set()
        await signal

    asyncio.run(main())


@pytest.mark.covers("L-9")
@pytest.mark.parametrize("set_after", [False, True])
def test_a_cancel_reaches_its_task_and_wins_over_an_answer_that_comes_later(set_after: bool) -> None:
    async def main() -> tuple[list[str], object]:
        seen: list[str] = []
        task, signal = await _waiting(seen, "woken")
        task.cancel("enough")
        if set_after:
            asyncio.get_running_loop().call_soon(signal.set)
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        signal.set()
        return seen, caught.value.args

    assert asyncio.run(main()) == ([], ("enough",))


def test_an_exit_in_one_task_ends_the_loop_and_the_others_are_woken_all_the_same() -> None:
    woken: list[int] = []
    tasks: list[asyncio.Task[None]] = []

    async def leaving(signal: AioSignal) -> None:
        await signal
        raise SystemExit(3)

    async def going_on(signal: AioSignal, number: int) -> None:
        await signal
        woken.append(number)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        signals = [Aio(loop).signal() for _ in range(3)]
        tasks.extend(
            loop.create_task(leaving(signal) if number == 0 else going_on(signal, number))
            for number, signal in enumerate(signals)
        )
        await asyncio.sleep(0)
        loop.call_soon(lambda: [signal.set() for signal in signals])
        await asyncio.wait(tasks)

    with pytest.raises(SystemExit):
        asyncio.run(main())
    assert isinstance(tasks[0].exception(), SystemExit)
    assert woken == [1, 2]


async def _waiting(seen: list[str], word: str) -> tuple[asyncio.Task[None], AioSignal]:
    """A task that has begun to wait."""
    loop = asyncio.get_running_loop()
    signal = Aio(loop).signal()

    async def wait() -> None:
        await signal
        seen.append(word)

    task = loop.create_task(wait())
    await asyncio.sleep(0)
    return task, signal
