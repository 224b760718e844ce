"""What is peculiar to `file:` and `sqlite:`: the layout, what is refused, what is lost, what a crash leaves."""

from __future__ import annotations

import fcntl
import mmap
import os
import shutil
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from takehold import BackendRefused, BackendUnavailable, HoldLost, Key, Locks, LockTimeout, UsageError
from takehold.backends.file import FileBackend, board, default_directory, directory
from takehold.core.key import hashed
from takehold.runtime import Threads, run
from takehold.testing import Taker
from takehold.testing.faces import AsyncioFace, Face, ThreadFace, eventually
from takehold.testing.forked import in_a_fork

ID = 0x66A3D82C4880171F  # of the text key 'orders/42' without a namespace: a golden vector of tests/core/test_key
BYTE = ID >> 1
STRIPE = "stripe-0f"
FLAG = 0x0B8F


@pytest.fixture(params=[ThreadFace, AsyncioFace], ids=["threads", "asyncio"])
def face(request: pytest.FixtureRequest, url: str) -> Iterator[Face]:
    face: Face = request.param(url)
    yield face
    face.close()


def locked(path: Path, byte: int) -> int:
    """How somebody locks a byte, asked of the kernel without our code: F_WRLCK, F_RDLCK or F_UNLCK."""
    with open(path, "r+b", buffering=0) as file:
        asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
        kind: int = struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_OFD_GETLK, asked))[0]
        return kind


def our_descriptors(path: Path) -> list[str]:
    """What this process has open in the lock directory."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        if target.startswith(str(path)):
            found.append(target)
    return found


@pytest.mark.covers("L-36")
class TestLayout:
    """Format 1, read without our code. Never change it: give it another number."""

    def test_the_directory_is_what_it_was(self, path: Path, locks: Locks) -> None:
        with locks.lock("orders/42"):
            names = sorted(entry.name for entry in path.iterdir())
            assert names == ["boards", "fence", "flags", "format", STRIPE]
            assert (path / "format").read_text() == "takehold file locks, format 1, 128 stripes\n"
            assert (path / "fence").stat().st_size == 32
            assert (path / "flags").stat().st_size == 65_536
            assert (path / STRIPE).stat().st_size == 0

    def test_a_key_is_a_byte_of_a_stripe(self, path: Path, locks: Locks) -> None:
        assert hashed(bytes.fromhex("01000000096f72646572732f3432")) == ID
        with locks.lock("orders/42"):
            assert locked(path / STRIPE, BYTE) == fcntl.F_WRLCK
            assert locked(path / STRIPE, BYTE + 1) == fcntl.F_UNLCK
        assert locked(path / STRIPE, BYTE) == fcntl.F_UNLCK
        with locks.lock("orders/42", mode="shared"):
            assert locked(path / STRIPE, BYTE) == fcntl.F_RDLCK

    @pytest.mark.crash
    def test_a_waiter_of_another_process_holds_the_gate_and_raises_the_flag(self, path: Path, locks: Locks) -> None:
        with locks.lock("orders/42"), Taker(f"file:{path}", "orders/42", wait=True):
            eventually(lambda: (path / "gate-0f").exists() and locked(path / "gate-0f", BYTE) == fcntl.F_WRLCK)
            with open(path / "flags", "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as flags:
                eventually(lambda: struct.unpack_from("<I", flags, 4 * FLAG)[0] > 0)

    def test_a_board_says_who_holds(self, path: Path, url: str) -> None:
        with Locks(url, namespace="shop", label="api") as locks, locks.lock("orders/42", mode="shared") as hold:
            (name,) = os.listdir(path / "boards")
            raw = (path / "boards" / name).read_bytes()
            assert locked(path / "boards" / name, 0) == fcntl.F_WRLCK
            magic, number, pid, started, evictions, host = struct.unpack_from("<8sIIQQ64s", raw)
            assert (magic, number, pid, evictions) == (b"takehold", 1, os.getpid(), 0)
            assert host.rstrip(b"\0").decode() == socket.gethostname()
            assert started == int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
            assert (len(raw) - 4096) % 2048 == 0
            record = raw[4096:6144]
            generation, evicted, at, fence, task, key, size, kind, gate, state = struct.unpack_from(
                "<QQqqqqHBBB", record
            )
            assert (generation, evicted, fence, kind, gate, state) == (1, 0, hold.fence, 1, 0, 1)
            assert key == hashed(bytes.fromhex("01000473686f7000096f72646572732f3432")) >> 1
            assert 0 <= time.monotonic_ns() - at < 5e9
            assert task != 0
            text, namespace, label, site = record[64 : 64 + size].decode().split("\0")
            assert (text, namespace, label) == ("orders/42", "shop", "api")
            assert site == hold.owner.site
            assert hold.id == f"{name}-0-{generation}"
        assert raw != b""

    def test_the_fence_file_has_a_base_a_mark_and_the_boot(self, path: Path, locks: Locks) -> None:
        with locks.lock("k") as hold:
            base, mark, boot = struct.unpack("<qq16s", (path / "fence").read_bytes())
            assert base < hold.fence < base + time.monotonic_ns()
            assert mark <= base + time.monotonic_ns()
            assert boot.hex() == Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")

    @pytest.mark.parametrize("said", ["takehold file locks, format 2, 128 stripes\n", "something else", ""])
    def test_another_format_is_refused_and_both_are_named(self, path: Path, url: str, said: str) -> None:
        path.mkdir(mode=0o700)
        (path / "format").write_text(said)
        with pytest.raises(BackendRefused) as caught:
            Locks(url).open()
        assert repr(said.strip()) in str(caught.value)
        assert "format 1, 128 stripes" in str(caught.value)
        assert (path / "format").read_text() == said

    def test_a_board_of_another_format_is_refused_and_both_are_named(self, path: Path, locks: Locks) -> None:
        with locks.lock("k"):
            other = path / "boards" / "99999.0000"
            other.write_bytes(struct.pack("<8sIIQQ64s", b"takehold", 7, 1, 1, 0, b"host").ljust(6144, b"\0"))
            with open(other, "r+b") as file:
                fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 1, 0))
                with pytest.raises(BackendRefused, match=r"format 7.*format 1"):
                    locks.who()
            other.unlink()

    def test_sqlite_has_its_directory_beside_the_database(self, tmp_path: Path) -> None:
        with Locks(f"sqlite:///{tmp_path}/app.db") as locks, locks.lock("k"):
            assert sorted(entry.name for entry in tmp_path.iterdir()) == ["app.db.locks"]

    @pytest.mark.parametrize("form", ["file:{}", "file://{}", "file:{}/"])
    def test_one_directory_has_several_spellings(self, path: Path, locks: Locks, form: str) -> None:
        with Locks(form.format(path)) as other, locks.lock("k"), pytest.raises(LockTimeout):
            other.lock("k", timeout=0).acquire()

    def test_the_default_directory_is_in_the_users_state(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", "/somewhere/state")
        assert default_directory() == Path("/somewhere/state/takehold/locks")
        monkeypatch.delenv("XDG_STATE_HOME")
        monkeypatch.setenv("HOME", "/home/ann")
        assert default_directory() == Path("/home/ann/.local/state/takehold/locks")


class TestRefused:
    """A directory that cannot be trusted is refused with a sentence."""

    @pytest.mark.covers("L-34")
    def test_making_a_locks_object_touches_nothing(self, path: Path, url: str) -> None:
        locks = Locks(url)
        assert not path.exists()
        assert locks.who() == []
        assert not path.exists()
        locks.open()
        assert (path / "format").exists()
        locks.close()

    def test_what_it_makes_is_for_its_user_alone(self, path: Path, locks: Locks) -> None:
        with locks.lock("k"):
            assert path.stat().st_mode & 0o777 == 0o700
            assert (path / "boards").stat().st_mode & 0o777 == 0o700
            files = [entry for entry in path.rglob("*") if entry.is_file()]
            assert {entry.stat().st_mode & 0o777 for entry in files} == {0o600}

    def test_a_directory_shared_by_a_group_is_shared_by_the_group(self, path: Path, url: str) -> None:
        mask = os.umask(0)
        try:
            path.mkdir(mode=0o770)
            with Locks(url) as locks, locks.lock("k"):
                assert (path / "boards").stat().st_mode & 0o777 == 0o770
                assert {e.stat().st_mode & 0o777 for e in path.rglob("*") if e.is_file()} == {0o660}
        finally:
            os.umask(mask)

    @pytest.mark.covers("L-32")
    def test_a_directory_writable_by_everybody_is_refused(self, path: Path, url: str) -> None:
        path.mkdir()
        path.chmod(0o777)
        with pytest.raises(BackendRefused, match="0700"):
            Locks(url).lock("k").acquire()
        assert list(path.iterdir()) == []

    @pytest.mark.covers("L-32")
    @pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "9p", "fuse.sshfs"])
    def test_a_network_file_system_is_refused(
        self, path: Path, url: str, kind: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(directory, "_file_system", lambda _: kind)
        with pytest.raises(BackendRefused, match=rf"network file system \({kind}\)"):
            Locks(url).lock("k").acquire()
        assert list(path.iterdir()) == []

    def test_the_kind_of_a_file_system_is_what_the_kernel_says(self) -> None:
        assert directory._file_system(os.stat("/proc").st_dev) == "proc"

    @pytest.mark.covers("L-32")
    @pytest.mark.parametrize("make", ["a file", "below a file", "a link"])
    def test_what_is_no_directory_is_unavailable_and_says_why(self, path: Path, url: str, make: str) -> None:
        if make == "a file":
            path.write_text("")
        elif make == "below a file":
            path.parent.joinpath("file").write_text("")
            url = f"file:{path.parent}/file/locks"
        else:
            path.parent.joinpath("real").mkdir(mode=0o700)
            path.symlink_to("real")
        locks = Locks(url)
        for call in (locks.open, locks.lock("k").acquire, locks.lock("k").try_acquire):
            with pytest.raises(BackendUnavailable, match="cannot be used"):
                call()

    @pytest.mark.covers("L-32")
    @pytest.mark.parametrize(
        "url",
        ["file:", "file://host/x", "file:k?timeout=3", "sqlite:", "sqlite:app.db", "sqlite:///", "sqlite:///:memory:"],
    )
    def test_a_url_that_names_no_place_is_refused(self, url: str) -> None:
        with pytest.raises(UsageError, match=r"file:|sqlite:"):
            Locks(url)

    def test_a_path_may_have_odd_letters(self, tmp_path: Path) -> None:
        place = tmp_path / "a b%c é"
        with Locks(f"file:{tmp_path}/a b%25c é") as locks, locks.lock("k"):
            assert place.is_dir()


class TestLost:
    """What breaks the locks of a directory is noticed, and every hold on it is lost."""

    @pytest.mark.parametrize("how", ["removed", "replaced", "renamed", "a stripe removed"])
    def test_a_hold_is_lost_when_its_files_are_gone(self, face: Face, path: Path, how: str) -> None:
        a, b = face.workers(2)
        holds = [a.acquire("orders/42"), b.acquire("k", mode="shared")]
        told: list[str] = []
        for hold in holds:
            hold.on_lost(lambda: told.append("told"))
        began = time.monotonic()
        if how == "removed":
            shutil.rmtree(path)
        elif how == "a stripe removed":
            next(path.glob("stripe-*")).unlink()
        else:
            path.rename(path.with_name("elsewhere"))
            if how == "replaced":
                path.mkdir(mode=0o700)
        eventually(lambda: len(told) == 2)
        assert time.monotonic() - began < 2
        for hold in holds:
            with pytest.raises(HoldLost, match=r"lock directory|lock file"):
                hold.check()
        # The next one opens what is there now, and excludes again.
        with a.acquire("orders/42", timeout=0):
            assert not b.can_take("orders/42")

    def test_others_can_take_the_key_in_the_new_directory_and_the_loser_knows(self, path: Path, url: str) -> None:
        with Locks(url) as locks:
            hold = locks.lock("k").acquire()
            shutil.rmtree(path)
            with Taker(url, "k"):
                assert hold.wait_lost(5)
                with pytest.raises(LockTimeout):
                    locks.lock("k", timeout=0).acquire()
            hold.release()

    def test_a_waiter_survives_the_loss_of_the_directory(self, face: Face, path: Path) -> None:
        """The holder lost its key with the directory; the waiter gets it in the new one."""
        a, b = face.workers(2)
        hold = a.acquire("k")
        waiting = b.start_acquire("k", timeout=60)
        face.until_waiting("k")
        shutil.rmtree(path)
        waiting.result(5).release()
        assert hold.lost


class TestFences:
    """Fences grow across processes, crashes, reboots and clocks that are set back."""

    @staticmethod
    def reboot(path: Path, mark: int) -> None:
        """As if another boot had left this: its clock, its mark."""
        (path / "fence").write_bytes(struct.pack("<qq16s", 12345, mark, b"another boot...."))

    @pytest.mark.covers("L-5")
    def test_a_reboot_does_not_set_fences_back(self, path: Path, url: str) -> None:
        with Locks(url) as locks, locks.lock("k") as hold:
            before = hold.fence
        self.reboot(path, before)
        assert in_a_fork(lambda: _fence(url)) > before

    @pytest.mark.covers("L-5")
    def test_a_clock_set_back_over_a_reboot_does_not_set_fences_back(self, path: Path, url: str) -> None:
        Locks(url).open().close()
        tomorrow = time.time_ns() + 86_400 * 10**9
        self.reboot(path, tomorrow)
        first = in_a_fork(lambda: _fence(url))
        assert first > tomorrow
        assert in_a_fork(lambda: _fence(url)) > first

    @pytest.mark.covers("L-5")
    def test_the_mark_is_never_older_than_the_margin_of_a_reboot(self, path: Path, url: str) -> None:
        """Also when every process ends long before its first patrol."""
        fence = in_a_fork(lambda: _fence(url))
        _, mark, _ = struct.unpack("<qq16s", (path / "fence").read_bytes())
        assert mark + 60 * 10**9 >= fence

    @pytest.mark.covers("L-5")
    def test_fences_can_be_raised_above_those_of_another_backend(self, url: str, path: Path) -> None:
        above = 5 * 10**18
        said = run(FileBackend(path).init(Threads(), fence_from=above))
        assert str(above) in said
        with Locks(url) as locks, locks.lock("k") as hold:
            assert hold.fence > above
            first = hold.fence
        run(FileBackend(path).init(Threads(), fence_from=7))
        assert in_a_fork(lambda: _fence(url)) > first


def _fence(url: str) -> int:
    with Locks(url) as locks, locks.lock("k") as hold:
        return hold.fence


@pytest.mark.crash
class TestCrashes:
    """What a process leaves when it is killed is nobody's obstacle."""

    @pytest.mark.covers("L-14", "L-28")
    def test_the_board_of_a_dead_process_is_swept_away(self, path: Path, url: str, locks: Locks) -> None:
        locks.open()
        with Taker(url, "k") as taker:
            assert len(os.listdir(path / "boards")) == 2
            taker.kill()
            assert locks.who() == []
            assert len(os.listdir(path / "boards")) == 1

    @pytest.mark.covers("L-14")
    def test_the_flag_of_a_killed_waiter_is_taken_down_by_the_next_one(
        self, path: Path, url: str, locks: Locks
    ) -> None:
        with open_flags(path, locks) as flags:
            with locks.lock("orders/42"), Taker(url, "orders/42", wait=True) as taker:
                eventually(lambda: struct.unpack_from("<I", flags, 4 * FLAG)[0] > 0)
                taker.kill()
            assert struct.unpack_from("<I", flags, 4 * FLAG)[0] > 0
            with locks.lock("orders/42", timeout=0):
                assert struct.unpack_from("<I", flags, 4 * FLAG)[0] == 0

    @pytest.mark.covers("L-11")
    def test_one_waiter_of_a_process_stands_at_the_gate(self, path: Path, url: str, face: Face) -> None:
        with Taker(url, "k", namespace=face.namespace) as taker:
            waiting = [worker.start_inside(lambda hold: hold.check(), "k") for worker in face.workers(8)]
            face.until_waiting("k", 8)
            eventually(lambda: any(line.at_gate for line in board.boards(path)))
            assert [line.at_gate for line in board.boards(path) if not line.held].count(True) == 1
            taker.release()
            for call in waiting:
                call.result()

    @pytest.mark.covers("L-8")
    def test_who_releases_and_takes_again_at_once_does_not_overtake_the_one_at_the_gate(
        self, path: Path, url: str
    ) -> None:
        """Counted in turns, not in time: without the gate it is dozens of them."""
        turns, stop = [0], threading.Event()

        def greedy() -> None:
            while not stop.is_set():
                with mine.lock("orders/42", timeout=60):
                    turns[0] += 1
                    time.sleep(0.0005)  # it works there; the key is free for microseconds only

        with Locks(url) as mine, Taker(url, "orders/42") as taker:
            taker.release()
            thread = threading.Thread(target=greedy)
            thread.start()
            overtaken = []
            try:
                for _ in range(5):
                    eventually(lambda before=turns[0]: turns[0] > before + 10)  # type: ignore[misc]
                    taker.tell("then orders/42")
                    taker.says("asking")
                    gate = path / "gate-0f"
                    eventually(lambda: gate.exists() and locked(gate, BYTE) == fcntl.F_WRLCK)  # noqa: B023
                    before = turns[0]
                    taker.until_held()
                    overtaken.append(turns[0] - before)
                    taker.release()
            finally:
                stop.set()
                thread.join()
            assert sorted(overtaken)[2] <= 1, overtaken

    @pytest.mark.covers("L-9")
    def test_waits_that_time_out_leave_no_descriptor(self, path: Path, url: str, face: Face) -> None:
        a = face.worker()
        with Taker(url, "k", namespace=face.namespace):
            for _ in range(2):
                with pytest.raises(LockTimeout):
                    a.acquire("k", timeout=0.02)
            before = len(os.listdir("/proc/self/fd"))
            for _ in range(20):
                with pytest.raises(LockTimeout):
                    a.acquire("k", timeout=0.005)
            assert len(os.listdir("/proc/self/fd")) <= before

    @pytest.mark.covers("L-29")
    def test_a_process_with_a_recycled_pid_is_never_terminated(
        self, url: str, locks: Locks, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with Taker(url, "k") as taker:
            taker.stop()
            (record,) = locks.who("k")
            real = board.process
            monkeypatch.setattr("takehold.backends.file.process", lambda pid: (real(pid)[0] + 1, True))
            assert locks.evict(record.id, terminate=True, timeout=0.05) is False
            monkeypatch.undo()
            assert real(taker.pid) == (record_start(taker.pid), False)
            taker.cont()
            assert taker.says("lost") == "k"

    @pytest.mark.covers("L-28")
    def test_a_frozen_owner_is_marked_silent(self, url: str, locks: Locks) -> None:
        with Taker(url, "k") as taker:
            assert [record.silent for record in locks.who()] == [False]
            taker.stop()
            assert [record.silent for record in locks.who()] == [True]
            taker.cont()
            eventually(lambda: [record.silent for record in locks.who()] == [False])


def record_start(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def open_flags(path: Path, locks: Locks) -> Any:
    locks.open()
    with open(path / "flags", "rb") as file:
        return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)


class TestKernel:
    """Open-file-description locks: what POSIX record locks would get wrong."""

    @pytest.mark.covers("L-1")
    def test_other_code_that_opens_and_closes_the_file_does_not_end_the_lock(self, path: Path, url: str) -> None:
        with Locks(url) as locks, locks.lock("orders/42"):
            with open(path / STRIPE, "r+b"):
                pass
            shutil.copyfile(path / STRIPE, path.parent / "copy")
            assert locked(path / STRIPE, BYTE) == fcntl.F_WRLCK

    @pytest.mark.covers("L-1")
    def test_two_readers_that_do_not_coalesce_have_a_descriptor_each(self, path: Path, url: str) -> None:
        face = ThreadFace(url)
        a, b = face.workers(2, face.locks(coalesce=False, namespace=""))
        first, second = a.acquire("orders/42", mode="shared"), b.acquire("orders/42", mode="shared")
        assert our_descriptors(path).count(str(path / STRIPE)) == 2
        first.release()
        assert locked(path / STRIPE, BYTE) == fcntl.F_RDLCK
        second.release()
        assert locked(path / STRIPE, BYTE) == fcntl.F_UNLCK
        face.close()

    @pytest.mark.covers("L-17")
    def test_nothing_is_inherited_by_another_program(self, path: Path, locks: Locks) -> None:
        with locks.lock("orders/42"):
            for name in os.listdir("/proc/self/fd"):
                try:
                    target = os.readlink(f"/proc/self/fd/{name}")
                    flags = fcntl.fcntl(int(name), fcntl.F_GETFD)
                except OSError:
                    continue
                if target.startswith(str(path)):
                    assert flags & fcntl.FD_CLOEXEC, target

    @pytest.mark.covers("L-17")
    def test_what_a_parent_held_does_not_live_on_in_its_child(self, path: Path, url: str, locks: Locks) -> None:
        """Not the key, and not the board: it would list a dead holder for ever."""

        def parent() -> int:
            """Holds a key, forks a child that outlives it, and dies."""
            mine = Locks(url)
            hold = mine.lock("orders/42").acquire()
            child = os.fork()
            if child == 0:
                time.sleep(60)
                os._exit(0)
            hold.check()
            return child

        child = in_a_fork(parent)
        try:
            # The child closes its copies when it first runs, which may be after its parent has died.
            eventually(lambda: locked(path / STRIPE, BYTE) == fcntl.F_UNLCK)
            assert locks.who() == []
            assert Path(f"/proc/{child}").exists()
        finally:
            os.kill(child, signal.SIGKILL)

    @pytest.mark.covers("L-20")
    def test_a_plain_string_takes_one_lock_and_a_deep_key_one_more_per_ancestor(self, path: Path, locks: Locks) -> None:
        with locks.lock("wh/eu/orders/42"):
            assert len(list(path.glob("stripe-*"))) == 1
        with locks.lock(Key("wh", "eu", "orders", 42)):
            assert sum(line.held for line in board.boards(path)) == 4


class TestBoard:
    """The board grows, shortens what does not fit, and forgets."""

    @pytest.mark.covers("L-28")
    def test_more_holds_than_a_board_begins_with_are_all_listed(self, locks: Locks) -> None:
        keys = [f"k{number:04}" for number in range(1_200)]
        with locks.lock(*keys):
            assert [record.key for record in locks.who()] == keys
            with pytest.raises(LockTimeout):
                Locks("file:" + str(locks._backend.path)).lock("k1199", timeout=0).acquire()  # type: ignore[attr-defined]
        assert locks.who() == []

    @pytest.mark.covers("L-28")
    def test_the_longest_texts_there_can_be_fit(self, url: str) -> None:
        key, namespace, label = "é" * 512, "n" * 255, "l" * 128
        with Locks(url, namespace=namespace, label=label) as locks, locks.lock(key):
            (record,) = locks.who()
            assert (record.key, record.namespace, record.owner.label) == (key, namespace, label)
            assert record.owner.site

    def test_closing_takes_the_board_away_with_the_last_user(self, path: Path) -> None:
        assert in_a_fork(lambda: _boards_after_closing(path)) <= 1


def _boards_after_closing(path: Path) -> int:
    with Locks(f"file:{path}") as locks, locks.lock("k"):
        assert len(os.listdir(path / "boards")) == 1
    return len(os.listdir(path / "boards"))
