"""A simulated disk: what a loss of power, or a kill, can leave behind at every step, as disks to go on with.

    disk = SimulatedDisk()
    run(scenario(LocalStore(disk)))                     # no event loop needed; `disk.note(...)` says what is known
    for image in disk.crashes():                        # power lost after each step, every outcome once
        run(check(LocalStore(image), image.notes))      # recovery; and `image.crashes()` crashes that in turn

`explore` does this to a depth, kills included, and counts. SIGKILL alone never shows a missing sync: the kernel
keeps what the process wrote. Here nothing lasts that was not synced: of what was pending, any part may have.
The model is more pessimistic than a journaling file system: names may last in any order.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, TypeVar

from takehold.testing.crashes import Crashes, Killed, PowerLoss

__all__ = ["SimulatedDisk"]

T = TypeVar("T")
SCRATCH = ".takehold/"

Content = bytes | None
Outcomes = tuple[Content, ...]


class State:
    """Files, directories, and what of them has not lasted yet."""

    __slots__ = ("files", "folders", "names", "new_folders", "unsynced")

    def __init__(self, files: Mapping[str, bytes], folders: set[str]) -> None:
        self.files: dict[str, bytes] = dict(files)
        self.folders = folders
        self.unsynced: dict[str, Outcomes] = {}
        """By path: what its bytes may turn out to be, when there is more than one possibility."""
        self.names: dict[str, Outcomes] = {}
        """By path: what may turn out to be there under an older directory entry; None is nothing."""
        self.new_folders: set[str] = set()

    def copy(self) -> State:
        """One that changes apart from this one."""
        made = State(self.files, set(self.folders))
        made.unsynced, made.names, made.new_folders = dict(self.unsynced), dict(self.names), set(self.new_folders)
        return made

    def outcomes(self, path: str) -> Outcomes:
        """All that may be found at a path after a loss of power."""
        return tuple(dict.fromkeys((*self.names.get(path, ()), *self._bytes(path))))

    def _bytes(self, path: str) -> Outcomes:
        return self.unsynced.get(path) or (self.files.get(path),)

    # Each effect on its own; `data` is there for `write` only.

    def write(self, path: str, data: bytes) -> None:
        torn = data[: len(data) // 2]
        if path in self.files:
            self.unsynced[path] = tuple(dict.fromkeys((*self._bytes(path), torn, data)))
        else:
            self._entry_changes(path)
            self.unsynced[path] = tuple(dict.fromkeys((b"", torn, data)))
        self.files[path] = data

    def sync(self, path: str) -> None:
        self.unsynced.pop(path, None)

    def rename(self, source: str, target: str) -> None:
        self._entry_changes(target)
        self._entry_changes(source)
        self.files[target] = self.files.pop(source)
        self.unsynced.pop(target, None)
        if source in self.unsynced:
            self.unsynced[target] = self.unsynced.pop(source)

    def unlink(self, path: str) -> None:
        self._entry_changes(path)
        del self.files[path]
        self.unsynced.pop(path, None)

    def make_directory(self, path: str) -> None:
        self.folders.add(path)
        self.new_folders.add(path)

    def sync_directory(self, path: str) -> None:
        start = f"{path}/" if path else ""
        for name in [name for name in self.names if name.startswith(start) and "/" not in name[len(start) :]]:
            del self.names[name]
        self.new_folders -= {f for f in self.new_folders if f.startswith(start) and "/" not in f[len(start) :]}

    def _entry_changes(self, path: str) -> None:
        if not path.startswith(SCRATCH):
            self.names[path] = self.outcomes(path)

    def pending(self) -> dict[str, Outcomes]:
        """By path, what may be found there, when that is not certain."""
        return {
            path: outcomes
            for path in {**self.names, **self.unsynced}
            if not path.startswith(SCRATCH) and len(outcomes := self.outcomes(path)) > 1
        }


class _Lock:
    """Like a generator with `contextmanager`, in a third of the time."""

    __slots__ = ("disk", "held", "name")

    def __init__(self, disk: SimulatedDisk, name: str, held: set[str]) -> None:
        self.disk, self.name, self.held = disk, name, held

    def __enter__(self) -> SimulatedDisk:
        assert self.name not in self.held, "a lock inside itself, or a suspension under a lock"
        self.held.add(self.name)
        return self.disk

    def __exit__(self, *_: object) -> None:
        self.held.discard(self.name)


Effect = tuple[str, tuple[Any, ...]]


class SimulatedDisk:
    """A `takehold.iceberg.stores.disk.Disk` in memory that remembers every step.

    `notes` are facts for the one who checks: what clients had been told when the power went. `faults` is called
    before each step with its number and its name; what it raises (an `OSError`) happens instead of the step.
    `pause` is awaited before and after each call, where a simulation lets others come between.
    """

    location = "file:///simulated"

    def __init__(
        self,
        files: Mapping[str, bytes] | None = None,
        *,
        faults: Callable[[int, str], None] | None = None,
        pause: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        folders = {path[:end] for path in files or () for end in _slashes(path)}
        self._begin(State(files or {}, folders), (), 0, str)
        self.faults = faults
        self.pause = pause

    @classmethod
    def image(cls, state: State, notes: tuple[Any, ...], generation: int, origin: Callable[[], str]) -> SimulatedDisk:
        """A disk to go on with after a crash; `crashes` and `kills` make them."""
        made = cls.__new__(cls)
        made.faults = made.pause = None
        made._begin(state, notes, generation, origin)
        return made

    def _begin(self, state: State, notes: tuple[Any, ...], generation: int, origin: Callable[[], str]) -> None:
        self._state = state
        self._start: State | None = None
        self._before = notes
        self.generation = generation
        """How many crashes ago it all began."""
        self._tokens = 0
        self._effects: list[Effect] = []
        self._held: set[str] = set()
        self.notes = notes
        self._origin = origin

    def __repr__(self) -> str:
        return f"<SimulatedDisk {len(self._state.files)} files, {len(self._effects)} steps; {self.origin or 'new'}>"

    @property
    def origin(self) -> str:
        """How this image came about: the step after which the power went, and what of the rest had lasted."""
        return self._origin()

    def note(self, fact: Any) -> None:
        """From this step on this hashable fact is known: "commit 7 was acknowledged"."""
        self.notes = (*self.notes, fact)
        self._effects.append(("note", (fact,)))

    @property
    def steps(self) -> list[str]:
        """Everything that was done, for reading."""
        return [_told(effect) for effect in self._effects]

    @property
    def files(self) -> dict[str, bytes]:
        """What is there now, without the store's own."""
        return {path: data for path, data in self._state.files.items() if not path.startswith(SCRATCH)}

    # ------------------------------------------------------------------------------------- the port

    def token(self) -> str:
        """A number, so that the same scenario gives the same disk; no token of before the crash comes again."""
        self._tokens += 1
        return f"{self.generation:04x}{self._tokens:012x}"

    async def call(self, work: Callable[..., T], *args: object) -> T:
        """Here and now; a crash finds it half done all the same."""
        if self.pause is None:
            return work(*args)
        await self.pause()
        result = work(*args)
        await self.pause()
        return result

    look = call

    def lock(self, name: str) -> _Lock:
        """Nobody is ever in the way, because nobody suspends inside it; that is checked."""
        return _Lock(self, name, self._held)

    def check(self) -> None:
        """A lock of this disk is never lost."""

    def read(self, path: str) -> bytes | None:
        """What the kernel shows, synced or not."""
        if path in self._state.folders:
            raise IsADirectoryError(errno.EISDIR, "a directory", path)
        return self._state.files.get(path)

    def write(self, path: str, data: bytes, *, sync: bool) -> None:
        """Two steps: the bytes, then the sync."""
        self._reachable(path)
        self._do("write", path, bytes(data))
        if sync:
            self._do("sync", path)

    def rename(self, source: str, target: str) -> None:
        """One step."""
        self._reachable(target)
        if source not in self._state.files:
            raise FileNotFoundError(errno.ENOENT, "no such file", source)
        self._do("rename", source, target)

    def unlink(self, path: str) -> None:
        """One step, or none."""
        if path in self._state.files:
            self._do("unlink", path)

    def make_directory(self, path: str) -> None:
        """One step, or none."""
        self._reachable(path, file=False)
        if path in self._state.files:
            raise NotADirectoryError(errno.ENOTDIR, "a file", path)
        if path not in self._state.folders:
            self._do("make_directory", path)

    def sync_directory(self, path: str) -> None:
        """One step."""
        if path and path not in self._state.folders:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        self._do("sync_directory", path)

    def walk(self, path: str) -> list[str]:
        """Every file below."""
        start = f"{path}/" if path else ""
        own = start.startswith(SCRATCH)
        return [name for name in self._state.files if name.startswith(start) and own == name.startswith(SCRATCH)]

    def close(self) -> None:
        """Nothing to let go of."""

    def _reachable(self, path: str, *, file: bool = True) -> None:
        above = path.rpartition("/")[0]
        if above in self._state.files:
            raise NotADirectoryError(errno.ENOTDIR, "a file", above)
        if above and above not in self._state.folders and not path.startswith(SCRATCH):
            raise FileNotFoundError(errno.ENOENT, "no such directory", above)
        if file and path in self._state.folders:
            raise IsADirectoryError(errno.EISDIR, "a directory", path)

    def _do(self, name: str, *args: Any) -> None:
        if self.faults is not None:
            self.faults(len(self._effects), name)
        if self._start is None:
            self._start = self._state.copy()
        getattr(self._state, name)(*args)
        self._effects.append((name, args))

    # --------------------------------------------------------------------------------- what may be left

    def crashes(self, *, scratch: bool = False) -> Crashes:
        """After each step a loss of power: every disk that it can leave, each different one once.

        With `scratch` the store's own files are left as they were; else they are gone.
        """
        return Crashes(self, PowerLoss(scratch=scratch))

    def kills(self) -> Crashes:
        """After each step the end of the process: all it did can be seen, and what was pending still is."""
        return Crashes(self, Killed())

    def replayed(self) -> Iterator[tuple[State, tuple[Any, ...], tuple[str, ...]]]:
        """Before the first step and after each one: the state, which goes on changing, the notes, what was touched."""
        state, notes = (self._start or self._state).copy(), self._before
        yield state, notes, ()
        for name, args in self._effects:
            if name == "note":
                notes = (*notes, *args)
                yield state, notes, ()
            else:
                getattr(state, name)(*args)
                yield state, notes, args if name == "rename" else args[:1]


def _slashes(path: str) -> Iterator[int]:
    return (end for end, letter in enumerate(path) if letter == "/")


def _told(effect: Effect) -> str:
    name, args = effect
    return f"{name} " + " ".join(f"{len(arg)} bytes" if isinstance(arg, bytes) else str(arg) for arg in args)
