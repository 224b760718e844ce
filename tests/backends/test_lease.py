"""What is special about leases, on both databases: they run out, and whoever had one knows it first."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from takehold import AsyncLocks, BackendRefused, Hold, HoldLost, Locks, LockTimeout, UsageError, shared
from takehold.backends import backend_for
from takehold.backends.lease import seen, session
from takehold.backends.lease.address import postgres_address, sqlite_address
from takehold.backends.lease.channel import FENCE_STEP, ChannelLost, Side
from takehold.backends.lease.offset import Offset
from takehold.backends.lease.trust import Trust
from takehold.core.backend import Ask
from takehold.core.events import LockEvent
from takehold.core.register import MAX_HAND_OVERS, MAX_JOINS
from takehold.runtime import Threads, run
from takehold.testing import Taker
from takehold.testing.faces import eventually
from takehold.testing.suite.interrupting import interrupted_at
from tests.backends.elsewhere import evicted_elsewhere
from tests.backends.lease_table import KEY, TTL, LeaseTable, lost_at
from tests.lanes import scaled
from tests.servers.postgres import Postgres

pytestmark = pytest.mark.slow


@pytest.fixture(params=["sqlite", "postgresql"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> LeaseTable:
    """Each database in turn."""
    if request.param == "sqlite":
        return LeaseTable(f"lease+sqlite:///{tmp_path}/app.db")
    return LeaseTable("lease+" + request.getfixturevalue("postgres_url"))


@pytest.fixture
def url(table: LeaseTable) -> str:
    return table.to(ttl=TTL)


# ------------------------------------------------------------------------------------------------- running out


@pytest.mark.crash
@pytest.mark.covers("L-15", "L-5")
def test_a_holder_that_was_paused_for_longer_than_its_lease_finds_it_lost_and_its_fence_old(
    url: str, locks: Locks
) -> None:
    newest = 0

    def write(fence: int) -> bool:
        """A store that keeps the highest fence it has seen, and refuses lower ones."""
        nonlocal newest
        accepted, newest = fence >= newest, max(newest, fence)
        return accepted

    with Taker(url, KEY) as paused:
        assert write(paused.fence)
        paused.stop()
        with locks.lock(KEY) as hold:
            assert write(hold.fence)
            paused.cont()
            assert paused.says("lost") == KEY
            assert not write(paused.fence)
            hold.check()


@pytest.mark.crash
@pytest.mark.covers("L-14")
def test_the_key_of_a_killed_owner_is_free_when_its_lease_has_run_out_and_not_before(url: str, locks: Locks) -> None:
    with Taker(url, KEY) as taker:
        taker.kill()
        killed = time.monotonic()
        assert locks.lock(KEY).try_acquire() is None
        with locks.lock(KEY) as hold:
            assert TTL / 2 < time.monotonic() - killed < TTL + 1
            assert hold.fence > taker.fence


@pytest.mark.crash
def test_a_killed_waiter_holds_up_those_behind_it_for_no_more_than_a_second(url: str, locks: Locks) -> None:
    hold = locks.lock(KEY).acquire()
    with Taker(url, KEY, wait=True) as waiter:
        eventually(lambda: [record for record in locks.who() if record.state == "waiting"])
        waiter.kill()
        hold.release()
        began = time.monotonic()
        locks.lock(KEY, timeout=10).acquire().release()
        assert time.monotonic() - began < 1.5


def test_a_hold_lasts_longer_than_its_lease_as_long_as_the_heart_beats(locks: Locks, others: Locks) -> None:
    with locks.lock(KEY) as hold:
        time.sleep(TTL * 1.5)
        hold.check()
        assert others.lock(KEY).try_acquire() is None


def test_a_closed_session_leaves_nothing_in_the_table(table: LeaseTable, url: str) -> None:
    made = Locks(url)
    hold = made.lock(KEY).acquire()
    made.close()
    assert hold.released
    eventually(lambda: table.sql("SELECT count(*) FROM {}lease_session") == [(0,)])
    assert table.rows() == 0


def test_a_loop_that_ends_with_a_hold_frees_it(table: LeaseTable, url: str) -> None:
    async def take() -> None:
        made = AsyncLocks(url)
        await made.lock(KEY).acquire()

    with pytest.warns(ResourceWarning, match="dropped while held"):
        asyncio.run(take())
    assert table.rows() == 0


def test_trust_is_counted_from_the_send_ends_before_the_lease_and_never_comes_back() -> None:
    class Clock(Threads):
        at = 100.0

        def boot(self) -> float:  # type: ignore[override]
            return self.at

    clock = Clock()
    trust = Trust(clock, 10.0, sent=98.0)
    clock.at = 106.9
    assert not trust.over()
    assert trust.renewed(sent=101.0)
    clock.at = 109.9
    assert not trust.over()
    clock.at = 110.0
    assert trust.over()
    assert not trust.renewed(sent=109.0)
    assert trust.over()
    assert trust.left() == 0.0


@pytest.mark.covers("L-21")
def test_an_answer_that_took_long_does_not_make_a_waiter_older() -> None:
    ahead = Offset()
    ahead.heard(1000.5, 0.0, 1.0)
    assert ahead.seconds == 1000
    ahead.heard(1002.01, 2.0, 2.02)
    assert ahead.seconds == pytest.approx(1000)
    for _ in range(20):  # a host so busy that every answer is late
        ahead.heard(1004, 3.0, 4.0)
    assert ahead.seconds == pytest.approx(1000), "the closest comparison still counts"
    for beat in range(300):  # a clock that drifts: no comparison counts for ever
        ahead.heard(1007.5 + beat, 5.0 + beat, 6.0 + beat)
    assert ahead.seconds == pytest.approx(1002)


# ------------------------------------------------------------------------------------------------ taking away


@pytest.mark.covers("L-13")
def test_a_row_that_somebody_deletes_is_a_hold_that_is_lost_and_the_others_stay(
    table: LeaseTable, locks: Locks
) -> None:
    victim, other = locks.lock(KEY).acquire(), locks.lock("other").acquire()
    times = lost_at(victim)
    table.sql("DELETE FROM {}lease WHERE text = '" + KEY + "'")
    eventually(lambda: times, within=5)
    with pytest.raises(HoldLost, match="gone"):
        victim.check()
    time.sleep(0.2)
    other.check()
    other.release()
    assert table.rows() == 0


@pytest.mark.covers("L-29")
def test_a_row_that_is_revoked_is_free_at_once_and_its_owner_is_told(
    table: LeaseTable, locks: Locks, others: Locks
) -> None:
    hold = locks.lock(KEY).acquire()
    times = lost_at(hold)
    table.sql("UPDATE {}lease SET revoked = (1 = 1)")
    with others.lock(KEY, timeout=0) as other:
        eventually(lambda: times, within=5)
        with pytest.raises(HoldLost, match="did not wait"):
            hold.check()
        other.check()
    assert table.rows() == 0


def test_a_session_that_somebody_deletes_loses_everything_and_the_next_acquire_opens_another(
    table: LeaseTable, locks: Locks
) -> None:
    holds = [locks.lock(key).acquire() for key in ("a", "b")]
    times = [lost_at(hold) for hold in holds]
    table.sql("DELETE FROM {}lease_session")
    eventually(lambda: all(times), within=5)
    assert [len(one) for one in times] == [1, 1]
    table.sql("DELETE FROM {}lease")
    locks.lock("a", timeout=5).acquire().release()


@pytest.mark.crash
@pytest.mark.covers("L-29")
def test_the_row_of_an_owner_that_does_not_answer_can_be_taken(url: str, locks: Locks) -> None:
    with Taker(url, KEY) as taker:
        taker.stop()
        (record,) = locks.who(KEY)
        assert locks.evict(record.id, terminate=True, timeout=0.1) is True
        with locks.lock(KEY, timeout=0) as hold:
            assert hold.fence > taker.fence
            taker.cont()
            assert taker.says("lost") == KEY
            hold.check()


@pytest.mark.crash
@pytest.mark.covers("L-29", "L-28")
def test_a_hold_that_was_handed_on_is_shown_and_evicted_under_its_new_id(url: str, locks: Locks) -> None:
    """A hand-over inside a process costs no round trip: the table hears of it with the next heartbeat."""
    first = locks.lock(KEY).acquire()
    second: list[Hold] = []
    heir = threading.Thread(target=lambda: second.append(locks.lock(KEY).acquire()))
    heir.start()
    eventually(lambda: locks.statistics().waiting == 1)
    old = first.id
    first.release()
    heir.join()
    times = lost_at(second[0])
    assert second[0].id != old
    time.sleep(1.2)
    assert evicted_elsewhere(url, second[0])
    eventually(lambda: times)


# ---------------------------------------------------------------------------------------------------- turns


@pytest.mark.covers("L-8")
def test_a_writer_behind_looping_readers_of_another_session_is_granted_within_a_second(
    locks: Locks, others: Locks
) -> None:
    stop, turns = threading.Event(), [0]

    def read() -> None:
        while not stop.is_set():
            with locks.lock(shared(KEY), timeout=20):
                turns[0] += 1
                time.sleep(0.005)

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    try:
        eventually(lambda: turns[0] > 20)
        for _ in range(3):
            began = time.monotonic()
            others.lock(KEY).acquire().release()
            assert time.monotonic() - began < 1
    finally:
        stop.set()
        for reader in readers:
            reader.join()


@pytest.mark.covers("L-10", "L-26")
def test_a_timeout_that_meets_the_release_leaves_no_phantom(table: LeaseTable, locks: Locks, others: Locks) -> None:
    rng, outcomes = random.Random(7), {"granted": 0, "timed out": 0}
    for _ in range(scaled(500)):
        hold = locks.lock(KEY).acquire()
        wait = rng.uniform(0.002, 0.02)
        releaser = threading.Timer(wait * rng.uniform(0.8, 1.2), hold.release)
        releaser.start()
        try:
            others.lock(KEY, timeout=wait).acquire().release()
            outcomes["granted"] += 1
        except LockTimeout:
            outcomes["timed out"] += 1
        releaser.join()
    assert min(outcomes.values()) > 0, outcomes
    with locks.lock(KEY), pytest.raises(LockTimeout):
        others.lock(KEY, timeout=0.05).acquire()
    assert table.rows() == 0


def test_what_other_sessions_may_count_up_to_stays_below_the_next_fence() -> None:
    assert MAX_HAND_OVERS + MAX_JOINS + 2 < FENCE_STEP


# ------------------------------------------------------------------------------------------ statements, once


@pytest.mark.covers("L-9", "L-10")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # interrupted before it began
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_statement_that_is_interrupted_anywhere_is_done_once_and_its_answer_can_still_be_had(
    table: LeaseTable, locks: Locks
) -> None:
    """As Ctrl-C does it: at each point inside the statement; then `answer` says what was granted."""
    locks.lock("warm up").acquire().release()
    desk: Any = locks._desk
    made: session.LeaseSession = desk._register.session
    rt = Threads()
    point = 1
    granted: list[Any] = []

    def ask() -> None:
        want = locks._wants((f"k{point}",), "exclusive", subtree=False)[0]
        granted.append(run(made.apply((), (Ask((want,), rt.now() + 5),), 5.0)))

    while interrupted_at(point, ask):
        if made.in_flight:
            granted.append(run(made.answer()))
        assert made.lost is None
        point += 1
    assert point > 20
    fences = sorted(fences[0] for (fences,) in granted)
    assert [fence for (fence,) in table.sql("SELECT fence FROM {}lease ORDER BY fence")] == fences


def test_a_statement_that_is_sent_again_says_so(locks: Locks, monkeypatch: pytest.MonkeyPatch) -> None:
    locks.lock("warm up").acquire().release()
    desk: Any = locks._desk
    main: Any = desk._register.session._main
    asked, ask = list[bool](), main.ask

    async def failing_once(what: str, request: dict[str, Any], seconds: float) -> Any:
        asked.append(request["again"])
        if len(asked) == 1:
            raise ChannelLost("on purpose")
        return await ask(what, request, seconds)

    monkeypatch.setattr(main, "ask", failing_once)
    locks.lock(KEY).acquire().release()
    assert asked == [False, True, False]


def test_a_statement_that_comes_late_after_it_was_sent_again_does_nothing(table: LeaseTable, locks: Locks) -> None:
    """The first copy lingers in some buffer; the second is refused; then the key comes free, and the first arrives."""
    first = locks.lock(KEY).acquire()
    side = Side(backend_for(table.url)._address, Threads())  # type: ignore[attr-defined]
    run(side.ask("open", {"me": "1.a", "host": "h", "pid": 1, "ttl": 60.0}, 5))
    want = {"turn": False, "key": locks._wants((KEY,), "exclusive", subtree=False)[0].place, "shared": False}
    want |= {"hold": "1.a-0", "text": KEY, "namespace": "", "implied": False, "label": None, "site": "s", "party": 1}
    asks = [{"wait": False, "wants": [want]}]
    request = {"me": "1.a", "n": 1, "again": False, "give": [], "leave": [], "asks": asks}
    assert run(side.ask("apply", {**request, "again": True}, 5))["granted"] == [[]]
    first.release()
    assert run(side.ask("apply", request, 5))["granted"] == [[]]
    assert table.rows() == 0
    assert len(run(side.ask("apply", {**request, "n": 2}, 5))["granted"][0]) == 1
    run(side.ask("bye", {"me": "1.a"}, 5))
    side.close()


def test_a_heartbeat_that_is_ended_from_outside_loses_everything(url: str) -> None:
    async def work() -> list[str]:
        told: list[str] = []
        async with AsyncLocks(url) as locks:
            hold = await locks.lock(KEY).acquire()
            hold.on_lost(lambda: told.append("told"))
            for task in asyncio.all_tasks():
                if task.get_name() == "takehold-heartbeat":
                    task.cancel()
            await asyncio.sleep(0.2)
            with pytest.raises(HoldLost, match="heartbeat was ended"):
                hold.check()
            await (await locks.lock(KEY, timeout=0).acquire()).release()
        return told

    assert asyncio.run(work()) == ["told"]


# ------------------------------------------------------------------------------------------------ the format

GOLDEN = {
    "lease": "key fence session shared revoked since hold text namespace implied label site party",
    "lease_session": "name host pid ttl beat expires batch answer board evict",
    "lease_waiter": "key session ticket shared since expires hold text namespace implied label site party",
}


@pytest.mark.covers("L-36")
def test_the_format_of_the_table_is_frozen(table: LeaseTable, locks: Locks) -> None:
    with locks.lock("orders/42"):
        assert table.sql("SELECT number FROM {}lease_format") == [(1,)]
        assert [row[0] for row in table.sql("SELECT key FROM {}lease")] == [0x66A3D82C4880171F]
        for name, columns in GOLDEN.items():
            (row,) = table.sql(f"SELECT {', '.join(columns.split())} FROM {{}}{name} LIMIT 1") or [()]
            assert row == () or len(row) == len(columns.split())


@pytest.mark.covers("L-36")
def test_a_table_of_another_format_is_refused_with_both_numbers(table: LeaseTable, url: str) -> None:
    run(backend_for(url).init(Threads(), fence_from=None))
    table.sql("UPDATE {}lease_format SET number = 7")
    try:
        with pytest.raises(BackendRefused, match="format 7, this release of takehold knows format 1"):
            Locks(url).lock(KEY).acquire()
        with pytest.raises(BackendRefused, match="format 7"):
            Locks(url).who()
    finally:
        table.sql("UPDATE {}lease_format SET number = 1")


def test_looking_makes_nothing(tmp_path: Path, postgres_server: Postgres) -> None:
    assert Locks(on_file(tmp_path / "app.db")).who() == []
    assert list(tmp_path.iterdir()) == []
    url = postgres_server.database("bare")
    assert Locks(f"lease+{url}").who() == []
    assert postgres_server.query("SELECT to_regnamespace('takehold')", database="bare") == [(None,)]


def test_fences_can_be_raised_above_those_of_another_backend(locks: Locks, url: str) -> None:
    above = 10**15
    run(backend_for(url).init(Threads(), fence_from=above))
    with locks.lock(KEY) as hold:
        assert hold.fence > above
    run(backend_for(url).init(Threads(), fence_from=1))
    with locks.lock(KEY) as again:
        assert again.fence > hold.fence


def test_a_row_is_found_by_any_fence_that_counts_up_from_its_own() -> None:
    assert seen.row_of(3 * FENCE_STEP) == seen.row_of(4 * FENCE_STEP - 1) == 3 * FENCE_STEP


# -------------------------------------------------------------------------------------------------------- URLs


def test_urls_say_where_the_table_is_and_how_long_a_lease_lasts() -> None:
    assert postgres_address("//app:secret@db/app?ttl=5&sslmode=require").dsn == (
        "postgresql://app:secret@db/app?sslmode=require"
    )
    assert (postgres_address("//db/app").ttl, postgres_address("//db/app?ttl=5").ttl) == (15.0, 5.0)
    assert sqlite_address("////srv/app.db?ttl=3600").dsn == "/srv/app.db"
    for scheme in ("lease+postgresql", "lease+postgres", "lease+postgresql+asyncpg", "lease+postgresql+psycopg"):
        assert Locks(f"{scheme}://db/app").capabilities.loss == "trust deadline"


@pytest.mark.covers("L-32")
@pytest.mark.parametrize(
    ("rest", "shown"),
    [
        ("//app:s3cret@db/app", "postgresql://app:***@db/app"),
        ("//app@db/app?password=s3cret&ttl=5", "postgresql://app@db/app?password=***"),
        (
            "//app:s3cret@db/app?sslmode=require&password=s3cret",
            "postgresql://app:***@db/app?sslmode=require&password=***",
        ),
    ],
)
def test_a_password_is_never_shown_wherever_the_url_has_it(rest: str, shown: str) -> None:
    assert postgres_address(rest).shown == shown
    assert "s3cret" in postgres_address(rest).dsn
    assert "s3cret" not in repr(Locks(f"lease+postgresql:{rest}"))


@pytest.mark.parametrize(
    "bad",
    [
        "lease+sqlite:app.db",
        "lease+sqlite:///",
        "lease+sqlite:///:memory:",
        "lease+sqlite:///app.db?ttl=1",
        "lease+sqlite:///app.db?ttl=nan",
        "lease+sqlite:///app.db?mode=ro",
        "lease+postgresql:db",
        "lease+postgresql://db/app?ttl=soon",
        "lease+file:/srv/locks",
    ],
)
@pytest.mark.covers("L-32")
def test_a_wrong_url_is_refused(bad: str) -> None:
    with pytest.raises(UsageError, match=r"lease|ttl|scheme"):
        Locks(bad)


# ------------------------------------------------------------------------------------------------------ SQLite


def on_file(path: Path) -> str:
    return f"lease+sqlite:///{path}?ttl={TTL}"


@pytest.mark.parametrize("what", ["removed", "replaced"])
def test_a_database_that_is_removed_or_replaced_takes_every_hold_with_it(tmp_path: Path, what: str) -> None:
    path = tmp_path / "app.db"
    with Locks(on_file(path)) as locks:
        hold = locks.lock(KEY).acquire()
        times = lost_at(hold)
        time.sleep(TTL / 2)  # by now every connection is open
        path.unlink()
        if what == "replaced":
            path.touch()
        eventually(lambda: times, within=5)
        assert path.exists() == (what == "replaced")


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    path.write_text("no database at all, and long enough to be none " * 100)
    with pytest.raises(BackendRefused, match="not a database"):
        Locks(on_file(path)).lock(KEY).acquire()


def test_a_session_of_an_earlier_boot_is_dead(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    with Locks(on_file(path)) as locks, Locks(f"lease+sqlite:///{path}?ttl=60") as before:
        old = before.lock(KEY).acquire()
        with sqlite3.connect(path) as db:
            db.execute("UPDATE takehold_lease_session SET boot = 'an earlier one' WHERE ttl = 60")
        db.close()
        with locks.lock(KEY, timeout=0) as hold:
            assert hold.fence > old.fence


def test_a_long_transaction_of_somebody_else_only_delays(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    with Locks(on_file(path)) as locks, locks.lock("kept") as kept:
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        db.execute("BEGIN IMMEDIATE")
        threading.Timer(0.6, lambda: db.execute("ROLLBACK")).start()
        began = time.monotonic()
        locks.lock(KEY, timeout=5).acquire().release()
        assert time.monotonic() - began > 0.5
        kept.check()
        db.close()


def test_the_journal_mode_of_a_database_that_has_other_tables_is_left_alone(tmp_path: Path) -> None:
    modes: dict[str, str] = {}
    for name, sql in (("mine", "CREATE TABLE orders (id)"), ("fresh", "SELECT 1")):
        path = tmp_path / name
        db = sqlite3.connect(path, isolation_level=None)
        db.execute(sql)
        with Locks(on_file(path)) as locks:
            locks.lock(KEY).acquire().release()
        modes[name] = db.execute("PRAGMA journal_mode").fetchone()[0]
        db.close()
    assert modes == {"mine": "delete", "fresh": "wal"}


def heard(locks: Locks) -> tuple[list[LockEvent], Callable[[], None]]:
    events: list[LockEvent] = []
    return events, locks.listen(events.append)


def test_a_heartbeat_that_fails_puts_holds_in_jeopardy_and_not_more(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    with Locks(f"lease+sqlite:///{path}?ttl=4") as locks:
        events, _ = heard(locks)
        with locks.lock(KEY) as hold:
            db = sqlite3.connect(path, isolation_level=None)
            db.execute("BEGIN IMMEDIATE")
            eventually(lambda: any(event.kind == "in jeopardy" for event in events))
            db.execute("ROLLBACK")
            db.close()
            time.sleep(4)
            hold.check()


def test_the_asyncio_face_does_not_block_its_loop_while_the_database_is_locked(tmp_path: Path) -> None:
    path = tmp_path / "app.db"

    async def work() -> int:
        async with AsyncLocks(on_file(path)) as locks:
            await (await locks.lock(KEY).acquire()).release()
            db = sqlite3.connect(path, isolation_level=None)
            db.execute("BEGIN IMMEDIATE")
            task = asyncio.create_task(locks.lock(KEY).acquire())
            turns = 0
            while turns < 20:
                await asyncio.sleep(0.01)
                turns += 1
            assert not task.done()
            db.execute("ROLLBACK")
            db.close()
            await (await task).release()
            return turns

    assert asyncio.run(work()) == 20


def test_the_server_that_holds_the_table_is_asked_on_two_connections(
    postgres_server: Postgres, postgres_url: str
) -> None:
    with Locks(f"lease+{postgres_url}") as locks:
        holds = [locks.lock(f"k{number}").acquire() for number in range(50)]
        time.sleep(1.5)
        locks.who()
        ask = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'takehold-lease %'"
        assert postgres_server.query(ask)[0][0] <= 2
        for hold in holds:
            hold.release()
