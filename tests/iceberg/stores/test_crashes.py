"""The local store on the simulated disk: every crash after every step, and planted bugs that must be found."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from takehold import BackendError, UnknownOutcome
from takehold.iceberg.stores import LocalStore
from takehold.runtime import run
from takehold.testing.crashes import Explored, explore
from takehold.testing.disk import SimulatedDisk
from tests.lanes import scaled

COUNTER, CAME_AND_WENT, FILE = "catalog/wh/tables/a.bin", "catalog/wh/b.bin", "data/wh/1.json"
BYTES = b"{}" * 50


async def scenario(disk: SimulatedDisk) -> None:
    """Writes of every kind; each is noted when it is acknowledged, and `doing` what is under way."""
    store = LocalStore(disk)
    disk.note(("doing", COUNTER, 1))
    tag = await store.put_new(COUNTER, b"1" * 40)
    disk.note(("done", COUNTER, 1))
    disk.note(("doing", FILE, BYTES))
    await store.put(FILE, BYTES)
    disk.note(("done", FILE, BYTES))
    for value in (2, 3, 4):
        disk.note(("doing", COUNTER, value))
        tag = await store.put_if(COUNTER, b"%d" % value * 40, tag)
        disk.note(("done", COUNTER, value))
    for value in (1, 2):
        disk.note(("doing", CAME_AND_WENT, value))
        tag = await store.put_new(CAME_AND_WENT, b"%d" % value * 40)
        disk.note(("done", CAME_AND_WENT, value))
        disk.note(("doing", CAME_AND_WENT, 0))
        await store.delete_if(CAME_AND_WENT, tag)
        disk.note(("done", CAME_AND_WENT, 0))


async def check(disk: SimulatedDisk, make: Callable[[SimulatedDisk], LocalStore] = LocalStore) -> None:
    """What was acknowledged, or shown to somebody, is there; what was under way is there whole or not at all."""
    store = make(disk)
    store.tidy()
    for path in (COUNTER, CAME_AND_WENT):
        allowed = {0}
        for what, where, value in disk.notes:
            if where == path:
                allowed = {value} if what == "done" else {*allowed, value}
        found = await store.get(path)
        value = int(found.data[:1]) if found else 0
        assert value in allowed, f"{path} is {value}, not one of {allowed}"
        assert not found or found.data == b"%d" % value * 40
        assert (path in await store.list("catalog")) == (found is not None)
        disk.note(("done", path, value))  # shown: from now on it must stay
    if ("done", FILE, BYTES) in disk.notes:
        assert await store.get(FILE) is not None
    found = await store.get(COUNTER)
    value = int(found.data[:1]) if found else 0
    disk.note(("doing", COUNTER, value + 1))
    data = b"%d" % (value + 1) * 40
    tag = await (store.put_if(COUNTER, data, found.tag) if found else store.put_new(COUNTER, data))
    disk.note(("done", COUNTER, value + 1))
    assert await store.get(COUNTER) == (data, tag)


def explored(disk: SimulatedDisk, *shares: float) -> Explored:
    run(scenario(disk))
    return explore(disk, check, shares=shares)


def test_no_crash_loses_tears_or_takes_back_what_was_acknowledged() -> None:
    found = explored(SimulatedDisk(), 1, 1, scaled(300) / 1000)
    assert found.levels[0] > 80
    assert found.levels[1] > 400
    assert found.images > 10_000


def test_what_the_store_keeps_for_itself_may_survive_or_not() -> None:
    disk = SimulatedDisk()
    run(scenario(disk))
    count = 0
    for count, image in enumerate(disk.crashes(scratch=True), 1):  # noqa: B007 - counted
        run(check(image))
    assert count > len(list(disk.crashes()))


class NoSync(SimulatedDisk):
    def write(self, path: str, data: bytes, *, sync: bool) -> None:
        super().write(path, data, sync=False)


class NoDirectorySync(SimulatedDisk):
    def sync_directory(self, path: str) -> None:
        pass


class OnlyOwnDirectory(SimulatedDisk):
    """The directories above are believed to last."""

    def sync_directory(self, path: str) -> None:
        if path not in {"", "catalog", "data"}:
            super().sync_directory(path)


class RenamedFirst(SimulatedDisk):
    """The rename before the sync of what is renamed."""

    def write(self, path: str, data: bytes, *, sync: bool) -> None:
        super().write(path, data, sync=False)
        self._late = sync

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        if self._late:
            self._do("sync", target)


class InPlace(SimulatedDisk):
    """No new file: the old one is overwritten."""

    def rename(self, source: str, target: str) -> None:
        data = self._state.files[source]
        self.write(target, data, sync=True)
        self.unlink(source)


class NoFlag(SimulatedDisk):
    """Nobody is told that a write might still be taken back."""

    def write(self, path: str, data: bytes, *, sync: bool) -> None:
        if "/unsynced/" not in path:
            super().write(path, data, sync=sync)


class FlagAfterwards(SimulatedDisk):
    """The flag goes up when the rename is done already."""

    def write(self, path: str, data: bytes, *, sync: bool) -> None:
        if "/unsynced/" in path:
            self._flag = (path, data)
        else:
            super().write(path, data, sync=sync)

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        super().write(*self._flag, sync=False)


PLANTED = (NoSync, NoDirectorySync, OnlyOwnDirectory, RenamedFirst, InPlace, NoFlag, FlagAfterwards)


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_bug_is_found(planted: type[SimulatedDisk]) -> None:
    with pytest.raises((AssertionError, BackendError, ValueError)) as caught:
        explored(planted(), 1, 1)
    assert any("on a disk as it was left" in note for note in caught.value.__notes__)


class Unsettled(LocalStore):
    """Believes what a killed writer left."""

    def _settle(self, name: str) -> None:
        self.disk.unlink(f".takehold/unsynced/{name}")


def test_a_reader_that_believes_a_killed_writer_is_found() -> None:
    disk = SimulatedDisk()
    run(scenario(disk))
    with pytest.raises(AssertionError):
        explore(disk, lambda image: check(image, Unsettled))


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EROFS])
def test_an_error_of_the_disk_at_any_step_is_told_and_nothing_half_done_is_left(number: int) -> None:
    plain = SimulatedDisk()
    run(scenario(plain))
    for step in range(len(plain.steps)):
        disk = SimulatedDisk(faults=_failing_at(step, number))
        try:
            run(scenario(disk))
        except UnknownOutcome:
            pass
        except BackendError:
            disk.notes = disk.notes[:-1]  # a clear no: what was under way has not happened
        disk.faults = None
        run(check(disk))


def _failing_at(step: int, number: int) -> Callable[[int, str], None]:
    def faults(at: int, name: str) -> None:
        if at == step:
            raise OSError(number, "injected")

    return faults


def test_after_a_failed_sync_of_a_directory_the_disk_is_believed_nothing() -> None:
    def faults(step: int, name: str) -> None:
        if name == "sync_directory" and step > 20:
            raise OSError(errno.EIO, "injected")

    disk = SimulatedDisk(faults=faults)
    store = LocalStore(disk)

    async def write() -> None:
        tag = await store.put_new("a/b", b"1")
        for _ in range(4):
            tag = await store.put_if("a/b", b"2", tag)

    with pytest.raises(UnknownOutcome, match="look at the disk"):
        run(write())
    disk.faults = None
    with pytest.raises(BackendError, match="look at the disk"):
        run(store.get("a/b"))
    assert run(LocalStore(disk).get("a/b"))
