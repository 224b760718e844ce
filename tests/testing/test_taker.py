"""The process that takes a lock and waits to be killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from takehold import Locks, LockTimeout
from takehold.testing import Taker
from takehold.testing.faces import eventually

pytestmark = pytest.mark.crash


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file:{tmp_path}/locks"


def test_it_holds_the_key_until_it_is_killed(url: str) -> None:
    with Locks(url) as locks:
        with Taker(url, "k", label="victim") as taker:
            assert locks.lock("k").try_acquire() is None
            (record,) = locks.who()
            assert (record.owner.pid, record.owner.label, record.fence) == (taker.pid, "victim", taker.fence)
            taker.kill()
            assert taker.wait() == -signal.SIGKILL
            locks.lock("k", timeout=5).acquire().release()
        assert locks.who() == []


def test_it_releases_and_takes_more_when_told(url: str) -> None:
    with Locks(url, namespace="shop") as locks, Taker(url, "k", namespace="shop", shared=True) as taker:
        assert [record.mode for record in locks.who()] == ["shared"]
        taker.tell("then more")
        assert taker.says("asking") == "more"
        taker.until_held()
        assert sorted(record.key for record in locks.who()) == ["k", "more"]
        taker.release()
        assert locks.who() == []
        taker.tell("end")
        taker.says("released")
        assert taker.wait() == 0


def test_it_waits_when_told_to(url: str) -> None:
    with Locks(url) as locks:
        hold = locks.lock("k").acquire()
        with Taker(url, "k", wait=True) as taker:
            eventually(lambda: any(record.state == "waiting" for record in locks.who()))
            hold.release()
            assert taker.fence > hold.fence


def test_it_can_be_frozen(url: str) -> None:
    with Taker(url, "k") as taker, Locks(url) as locks:
        taker.stop()
        assert Path(f"/proc/{taker.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        taker.tell("release")
        with pytest.raises(LockTimeout):
            locks.lock("k", timeout=0.05).acquire()
        taker.cont()
        taker.says("released")
        with locks.lock("k", timeout=5):
            pass


def test_it_is_gone_at_the_end_of_the_block_also_when_the_test_fails(url: str) -> None:
    with pytest.raises(ZeroDivisionError), Taker(url, "k") as taker:
        raise ZeroDivisionError
    with pytest.raises(ProcessLookupError):
        os.kill(taker.pid, 0)


def test_what_goes_wrong_in_it_is_said(url: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(AssertionError, match="'refused' UsageError a key is empty"):
        Taker(url, "").__enter__()
    with pytest.raises(AssertionError, match="the taker ended with 1"):
        Taker("nonsense:", "k").__enter__()
    assert "UsageError" in capfd.readouterr().err
    with Taker(url, "k") as taker, pytest.raises(AssertionError, match="said nothing within"):
        taker.says("anything", within=0.01)
