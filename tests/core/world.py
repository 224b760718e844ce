"""A small world for the desk under simulation: processes, actors, a canceller, a killer, and a checker.

The checker knows nothing of the desk: actors say when they enter (after the grant) and leave (before the
release), and it counts who is inside.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from takehold.backends.memory import MemoryBackend
from takehold.core.deadline import Deadline
from takehold.core.desk import Desk
from takehold.core.seat import HELD, Caller, Seat
from takehold.core.want import EXCLUSIVE, shared, wants_for
from takehold.errors import BackendUnavailable, LockTimeout, WouldDeadlock
from takehold.testing.server import FakeBackend, FakeServer
from takehold.testing.simulation import Cancelled, SimTask, Simulation

MakeDesk = Callable[..., Desk]
AGES = 10_000.0


class Violation(AssertionError):
    """Two that exclude each other were inside at once."""


class World:
    """One run of one seed."""

    def __init__(self, seed: int, kind: str, make_desk: MakeDesk = Desk) -> None:
        self.seed = seed
        self.kind = kind
        self.rng = random.Random(seed * 7919 + 1)
        self.sim = Simulation(seed)
        self.server = FakeServer()
        self.inside: dict[str, list[Seat]] = {}
        self.fences: dict[str, int] = {}
        self.grants = 0
        self.caller = Caller("", None, "off", coalesce=self.rng.random() < 0.8)
        self.desks = [make_desk(backend, self.sim) for backend in self._backends()]
        self.actors: list[SimTask] = []

    def _backends(self) -> list[Any]:
        if self.kind == "memory":
            return [MemoryBackend()]
        instant = self.kind == "host"
        return [FakeBackend(self.server, name, 0.002, instant=instant) for name in ("p1", "p2")]

    def enter(self, seats: list[Seat]) -> None:
        """Somebody says that these were granted."""
        for seat in seats:
            others = [other for other in self.inside.get(seat.want.text, []) if other.lost is None]
            if seat.lost is None and any(other.conflicts(seat) for other in others):
                raise Violation(f"seed {self.seed} {self.kind}: {seat.want.text} held twice")
            self.inside.setdefault(seat.want.text, []).append(seat)
            if seat.want.mode is EXCLUSIVE and seat.lost is None:
                assert seat.fence is not None
                if seat.fence <= self.fences.get(seat.want.text, 0):
                    raise Violation(f"seed {self.seed} {self.kind}: a fence of {seat.want.text} went back")
                self.fences[seat.want.text] = seat.fence
            self.grants += 1

    def leave(self, seats: list[Seat]) -> None:
        """Somebody is about to release."""
        for seat in seats:
            self.inside[seat.want.text].remove(seat)

    async def actor(self, desk: Desk, rounds: int) -> None:
        """Take, hold, release, in every way there is; a cancel ends a round, not the actor."""
        for _ in range(rounds):
            try:
                await self._round(desk)
            except (LockTimeout, WouldDeadlock, BackendUnavailable, Cancelled):
                continue

    async def _round(self, desk: Desk, held: tuple[str, ...] = ()) -> None:
        rng = self.rng
        free = [name for name in ("a", "b", "c") if name not in held]
        names = rng.sample(free, min(len(free), rng.choice((1, 1, 2))))
        keys = [shared(name) if rng.random() < 0.4 else name for name in names]
        wants = wants_for(keys, namespace="", mode=EXCLUSIVE, subtree=False, place=desk.backend.place)
        seats = [Seat(want, self.sim.current(), "line", self.caller) for want in wants]
        for seat in seats:
            seat.group = seats if len(seats) > 1 else None
        await self._take(desk, seats, nested=bool(held))
        if all(seat.state == HELD for seat in seats):
            self.enter(seats)
            try:
                for _ in range(rng.randrange(3)):
                    await self.sim.sleep(rng.choice((0.0, 0.001, 0.03)))
                if not held and len(names) < 3 and rng.random() < 0.3:
                    await self._round(desk, tuple(names))
            finally:
                self.leave(seats)
                if pending := desk.release(seats):
                    await self.sim.shield(desk.given_back(pending))

    async def _take(self, desk: Desk, seats: list[Seat], *, nested: bool) -> None:
        taken = desk.grab(seats)
        if taken == len(seats):
            return
        timeout = self.rng.choice((0.0, 0.005, 0.1, 5.0))
        if nested and self.kind == "memory":
            # One process sees every cycle: such a wait ends with the key, or with WouldDeadlock at once.
            try:
                await desk.acquire(seats, taken, Deadline(self.sim.now, AGES), self.sim)
            except LockTimeout as error:
                raise Violation(f"seed {self.seed}: a deadlock was not seen") from error
            return
        if self.rng.random() < 0.2:
            await desk.take_now(seats, taken, self.sim)
        else:
            await desk.acquire(seats, taken, Deadline(self.sim.now, timeout), self.sim)

    async def canceller(self) -> None:
        """Cancel actors at odd moments, sometimes twice."""
        for _ in range(self.rng.randrange(12)):
            await self.sim.sleep(self.rng.random() * 0.05)
            victim = self.rng.choice(self.actors)
            victim.cancel()
            if self.rng.random() < 0.3:
                victim.cancel()

    async def killer(self) -> None:
        """End a session, as a restart or an administrator does."""
        if self.kind == "memory" or self.rng.random() < 0.5:
            return
        await self.sim.sleep(self.rng.random() * 0.1)
        if self.server.sessions:
            self.rng.choice(self.server.sessions).die("killed by the test")

    def run(self, steps: int = 200_000) -> World:
        """Play the seed to its end and check that nothing is left."""

        async def play() -> None:
            self.actors = [
                self.sim.spawn(self.actor(self.rng.choice(self.desks), self.rng.randrange(2, 8)), f"actor-{n}")
                for n in range(self.rng.randrange(2, 7))
            ]
            others = [self.sim.spawn(self.canceller(), "canceller"), self.sim.spawn(self.killer(), "killer")]
            for task in [*self.actors, *others]:
                await task.join()
            # Releases of an abandoned answer are still on their way.
            await self.sim.sleep(60)

        self.sim.run(play(), steps=steps)
        for desk in self.desks:
            register = desk._register
            left = (register.entries, register.held, register.waits)
            assert not any(left), f"seed {self.seed} {self.kind}: left behind: {left}"
        assert not self.server.waiters, f"seed {self.seed}: waiters left on the server"
        assert not self.server.holders, f"seed {self.seed}: locks left on the server: {self.server.holders}"
        return self
