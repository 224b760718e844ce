"""The desk on virtual time, in seeded orders, with cancels and dying sessions."""

from __future__ import annotations

from typing import Any

import pytest

from takehold.core.deadline import Deadline
from takehold.core.desk import Desk
from takehold.core.register import Aftermath, Register
from takehold.core.seat import HELD, Seat
from takehold.runtime import Runtime
from takehold.testing.simulation import Hang
from tests.core.world import Violation, World
from tests.lanes import scaled

SEEDS = max(500, scaled(20_000))


@pytest.mark.covers("L-1", "L-5", "L-9", "L-10", "L-19", "L-21")
@pytest.mark.parametrize("kind", ["memory", "host", "server"])
def test_no_seed_lets_two_in_or_leaves_anything_behind(kind: str) -> None:
    """Exclusion, growing fences, no lost wake-up and nothing left, whatever the order, the cancels and the deaths."""
    grants = sum(World(seed, kind).run().grants for seed in range(SEEDS))
    assert grants > SEEDS


class ChecksThenSets(Desk):
    """The first classical bug: look whether the key is free, let others run, then take it."""

    async def acquire(self, seats: list[Seat], taken: int, deadline: Deadline, rt: Runtime) -> None:
        """Wait until the key looks free, then sit down without looking again."""
        await self.ready()
        for seat in seats[taken:]:
            while self._register.holders(seat.want):
                await rt.sleep(0.001)
            await rt.sleep(0)
            self._sit_down_anyway(seat, rt)

    def _sit_down_anyway(self, seat: Seat, rt: Runtime) -> None:
        session: Any = self._register.session
        with self._mutex:
            entry = self._register.queue_up(seat, rt)
            entry.agent = None
            self._register.settle(seat, session.take(seat.want, beside=False), Aftermath())


class ReleasesWhatItNeverGot(Desk):
    """The second: the `finally` of a failed acquire frees the key, whoever holds it."""

    async def acquire(self, seats: list[Seat], taken: int, deadline: Deadline, rt: Runtime) -> None:
        """On any failure let go of the keys, ours or not."""
        try:
            await super().acquire(seats, taken, deadline, rt)
        except BaseException:
            register: Register = self._register
            for seat in seats:
                for holder in register.holders(seat.want):
                    with self._mutex:
                        register.release(holder, after := Aftermath())
                    self._finish(after)
            raise


@pytest.mark.parametrize("planted", [ChecksThenSets, ReleasesWhatItNeverGot])
def test_a_planted_bug_is_found(planted: type[Desk]) -> None:
    """Either classical bug is caught within a few seeds; otherwise the test above could not fail."""
    found = 0
    for seed in range(40):
        try:
            World(seed, "memory", planted).run(steps=5_000)
        except (Violation, Hang, AssertionError, KeyError):
            found += 1
    assert found > 4


def test_the_same_seed_plays_the_same_run() -> None:
    """A failing seed can be replayed."""
    first, second = World(7, "server").run(), World(7, "server").run()
    assert (first.grants, first.sim.now(), first.fences) == (second.grants, second.sim.now(), second.fences)


def test_a_session_that_dies_loses_every_hold_on_it() -> None:
    """All seats of the session are told, and the key can be had again."""
    world = World(1, "server")

    async def play() -> None:
        desk = world.desks[0]
        wants = desk.backend.place(b"x", None)
        assert wants
        from takehold.core.want import EXCLUSIVE, wants_for

        told: list[str] = []
        held: list[Seat] = []
        for name in ("a", "b"):
            (want,) = wants_for([name], namespace="", mode=EXCLUSIVE, subtree=False, place=desk.backend.place)
            seat = Seat(want, world.sim.current(), "line", world.caller)
            seat.watch = [lambda name=name: told.append(name)]  # type: ignore[misc]
            await desk.acquire([seat], 0, Deadline(world.sim.now, 1), world.sim)
            assert seat.state == HELD
            held.append(seat)
        world.server.kill("restart")
        assert sorted(told) == ["a", "b"]
        assert [seat.lost for seat in held] == ["restart", "restart"]

    world.sim.run(play())
