"""Going through every crash of a simulated disk, and through the crashes of what recovers from it."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, combinations, product
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

from takehold.runtime import run as run_inline

if TYPE_CHECKING:
    from takehold.testing.disk import SimulatedDisk, State

__all__ = ["Crashes", "Explored", "Killed", "PowerLoss", "explore"]

SCRATCH = ".takehold/"
HALF_WRITTEN = ".takehold/new/"
MOST_OUTCOMES = 4096
"""Of one step. A scenario that leaves more pending has that many of them tried, picked by the step's number."""

Notes = tuple[Hashable, ...]
Left = tuple[Hashable, Callable[[], "State"], Callable[[], str]]
"""What tells an image from others, how to make it, and how to say what of the pending had lasted."""


class Kind(Protocol):
    """A way to end."""

    name: str

    def sees(self, path: str) -> bool:
        """Whether a step on this path makes a difference."""

    def left(self, state: State, step: int) -> Iterator[Left]:
        """All that can be left of a state."""


class Crashes:
    """The images of one disk, each once; how many there were with repetitions, when one has gone through them."""

    def __init__(self, disk: SimulatedDisk, kind: Kind) -> None:
        self.disk = disk
        self.kind = kind
        self.points = 0
        """Steps after which it crashed."""
        self.images = 0
        """Outcomes over all of them; most are what an earlier step could leave as well."""

    def __iter__(self) -> Iterator[SimulatedDisk]:
        return (make() for _, make in self.keyed())

    def keyed(self) -> Iterator[tuple[Hashable, Callable[[], SimulatedDisk]]]:
        """What makes each image different, and how to make it before going on: disks with one key need one check."""
        seen: set[Hashable] = set()
        outcomes: list[Left] = []
        for step, (state, notes, paths) in enumerate(self.disk.replayed()):
            self.points += 1
            if not step or any(map(self.kind.sees, paths)):
                outcomes = list(self.kind.left(state, step))
            self.images += len(outcomes)
            for what, build, lasted in outcomes:
                key = (self.kind.name, what, notes)
                if key not in seen:
                    seen.add(key)
                    yield key, partial(self._image, build, notes, step, lasted)

    def _image(self, build: Callable[[], State], notes: Notes, step: int, lasted: Callable[[], str]) -> SimulatedDisk:
        origin = self._origin(step, lasted)
        return type(self.disk).image(build(), notes, self.disk.generation + 1, origin)

    def _origin(self, step: int, lasted: Callable[[], str]) -> Callable[[], str]:
        def told() -> str:
            before = f"{self.disk.origin}, then " if self.disk.origin else ""
            last = self.disk.steps[step - 1] if step else "nothing"
            return f"{before}{self.kind.name} after step {step} ({last}){lasted()}"

        return told


class PowerLoss:
    """What is synced is left; of what is pending any part, and of unsynced bytes all, half or none."""

    name = "power lost"

    def __init__(self, *, scratch: bool) -> None:
        self.scratch = scratch

    def sees(self, path: str) -> bool:
        """The store's own is gone afterwards, unless asked for."""
        return self.scratch or not path.startswith(SCRATCH)

    def left(self, state: State, step: int) -> Iterator[Left]:
        """Every combination of what each pending path may turn out to be."""
        pending = state.pending()
        paths = list(pending)
        certain = {
            path: data
            for path, data in state.files.items()
            if path not in pending and (self.scratch or not path.startswith(SCRATCH))
        }
        sums = sum(map(hash, certain.items()))
        for lost in _subsets(state.new_folders):
            folders = {one for one in state.folders if not _inside(one, lost)}
            kept = sums - sum(hash(item) for item in certain.items() if lost and _inside(item[0], lost))
            for values in _combinations(list(pending.values()), step):
                found = [
                    (path, value)
                    for path, value in zip(paths, values, strict=True)
                    if value is not None and not (lost and _inside(path, lost))
                ]
                what = (kept + sum(map(hash, found)), frozenset(folders))
                made = _Maker(certain, found, folders, lost)
                yield what, made, made.told


class _Maker:
    """Builds the state of an image when it is wanted."""

    __slots__ = ("certain", "folders", "found", "lost")

    def __init__(
        self, certain: dict[str, bytes], found: list[tuple[str, bytes]], folders: set[str], lost: tuple[str, ...]
    ) -> None:
        self.certain, self.found, self.folders, self.lost = certain, found, folders, lost

    def __call__(self) -> State:
        from takehold.testing.disk import State

        files = {**self.certain, **dict(self.found)}
        if self.lost:
            files = {path: data for path, data in files.items() if not _inside(path, self.lost)}
        return State(files, set(self.folders))

    def told(self) -> str:
        """What of the pending had lasted."""
        found = ", ".join(f"{path}: {data[:60]!r}" for path, data in self.found)
        return "".join(
            [found and f"; of what was pending, {found}", f"; without {', '.join(self.lost)}" if self.lost else ""]
        )


class Killed:
    """Everything is there, as the kernel has it. What is pending can still be lost later."""

    name = "killed"

    def sees(self, path: str) -> bool:
        """A half-written new file is in nobody's way: the next writer makes another one."""
        return not path.startswith(HALF_WRITTEN)

    def left(self, state: State, step: int) -> Iterator[Left]:
        """One image."""
        pending = (state.unsynced, state.names)
        what = (
            sum(hash(item) for item in state.files.items() if self.sees(item[0])),
            *(frozenset(item for item in one.items() if self.sees(item[0])) for one in pending),
            frozenset(state.new_folders),
            frozenset(state.folders),
        )
        yield what, state.copy, str


def _inside(path: str, folders: Sequence[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def _subsets(folders: set[str]) -> Iterator[tuple[str, ...]]:
    ordered = sorted(folders)
    return chain.from_iterable(combinations(ordered, count) for count in range(len(ordered) + 1))


def _combinations(outcomes: list[tuple[bytes | None, ...]], step: int) -> Iterator[tuple[bytes | None, ...]]:
    if prod(map(len, outcomes)) <= MOST_OUTCOMES:
        return product(*outcomes)
    pick = random.Random(step).choice
    return (tuple(map(pick, outcomes)) for _ in range(MOST_OUTCOMES))


# ------------------------------------------------------------------------------------------------ going through all


@dataclass(slots=True)
class Explored:
    """What `explore` went through."""

    images: int = 0
    """Crash images, repetitions included."""
    checked: int = 0
    """Different ones: each was recovered from and checked."""
    points: int = 0
    """Steps after which there was a crash."""
    levels: list[int] = field(default_factory=list)
    """Of those checked, how many after one crash, after two, and so on."""


Work = Callable[["SimulatedDisk"], Coroutine[Any, Any, Any]]


def explore(
    disk: SimulatedDisk,
    check: Work,
    *,
    shares: Sequence[float] = (1.0, 1.0),
    kills: bool = True,
    run: Callable[[Coroutine[Any, Any, Any]], Any] = run_inline,
) -> Explored:
    """Check every disk that a crash of what was done on `disk` can leave, and every one after that.

    `check` is given an image, recovers on it and asserts what must be so, by `image.notes`; being a crash victim
    itself, it may be called at any stage of its own work. `shares` says how many crashes deep to go, and which
    share of the images of each level to take: `(1, 1, 0.01)` is two levels complete and a sample of the third.
    `run` runs a coroutine to its end; the default needs no event loop, `asyncio.Runner().run` has one.
    """
    found = Explored(levels=[0] * len(shares))
    _Exploration(check, shares, kills, run, found).below(disk, 0)
    return found


@dataclass(slots=True)
class _Exploration:
    check: Work
    shares: Sequence[float]
    kills: bool
    run: Callable[[Coroutine[Any, Any, Any]], Any]
    found: Explored
    seen: dict[Hashable, int] = field(default_factory=dict)
    """By key of an image: at which level, the first is 0; seen higher up it was followed further."""
    rng: random.Random = field(default_factory=lambda: random.Random(0))

    def below(self, disk: SimulatedDisk, level: int) -> None:
        """All images of a disk, and theirs."""
        for crashes in (disk.crashes(), disk.kills())[: 1 + self.kills]:
            for key, make in crashes.keyed():
                if self.seen.get(key, len(self.shares)) <= level or self.rng.random() > self.shares[level]:
                    continue
                self.seen[key] = level
                self._checked(make(), level)
            self.found.images += crashes.images
            self.found.points += crashes.points

    def _checked(self, image: SimulatedDisk, level: int) -> None:
        self.found.checked += 1
        self.found.levels[level] += 1
        try:
            self.run(self.check(image))
        except BaseException as error:
            error.add_note(f"on a disk as it was left: {image.origin}; known then: {image.notes}")
            raise
        if level + 1 < len(self.shares):
            self.below(image, level + 1)
