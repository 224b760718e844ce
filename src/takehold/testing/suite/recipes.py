"""Recipes: `guard`, `once`, `lead`, `slots` and `held`, on every backend."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from takehold.errors import HoldLost, LockTimeout, UsageError
from takehold.testing.faces import Face, Steps, eventually
from takehold.testing.faults import lose
from takehold.testing.suite.exclusion import AT_ONCE
from takehold.testing.witness import Witness

__all__ = ["TestGuard", "TestHeld", "TestLead", "TestOnce", "TestSlots"]


class TestGuard:
    """A function under a key made from its arguments."""

    @staticmethod
    def invoice(face: Face, locks: Any, **options: Any) -> Callable[..., Any]:
        """A guarded function that says who holds its key while it runs."""

        def send(customer: int, *, copies: int = 1) -> Steps:
            records = yield locks.who("invoice/*")
            keys = [r.key for r in records if r.state == "held" and r.namespace == face.namespace]
            return customer, copies, keys

        guarded: Callable[..., Any] = locks.guard("invoice/{customer}", **options)(face.function(send))
        return guarded

    @pytest.mark.covers("L-35")
    def test_the_key_is_held_while_the_function_runs(self, face: Face) -> None:
        a, b = face.workers(2)
        send = self.invoice(face, a.locks)
        assert a.do(lambda _: send(7, copies=2)) == (7, 2, ["invoice/7"])
        assert a.do(lambda _: send(customer=8)) == (8, 1, ["invoice/8"])
        assert b.can_take("invoice/7")

    @pytest.mark.covers("L-35")
    def test_it_waits_by_default(self, face: Face) -> None:
        a, b = face.workers(2)
        send = self.invoice(face, a.locks)
        hold = a.acquire("invoice/7")
        waiting = b.start(lambda _: send(7))
        face.until_waiting("invoice/7")
        hold.release()
        assert waiting.result() == (7, 1, ["invoice/7"])

    @pytest.mark.covers("L-35")
    def test_it_waits_for_as_long_as_it_is_told(self, face: Face) -> None:
        a, b = face.workers(2)
        send = self.invoice(face, a.locks, timeout=0.01)
        with a.acquire("invoice/7"), pytest.raises(LockTimeout):
            b.do(lambda _: send(7))

    @pytest.mark.covers("L-35")
    def test_skip_returns_none_when_busy(self, face: Face) -> None:
        a, b = face.workers(2)
        send = self.invoice(face, a.locks, busy="skip")
        with a.acquire("invoice/7"):
            assert b.do(lambda _: send(7)) is None
            assert b.do(lambda _: send(8)) == (8, 1, ["invoice/7", "invoice/8"])
        assert b.do(lambda _: send(7)) == (7, 1, ["invoice/7"])

    @pytest.mark.covers("L-35")
    def test_raise_raises_at_once_when_busy(self, face: Face) -> None:
        a, b = face.workers(2)
        send = self.invoice(face, a.locks, busy="raise")
        with a.acquire("invoice/7"):
            began = time.monotonic()
            with pytest.raises(LockTimeout):
                b.do(lambda _: send(7))
            assert time.monotonic() - began < AT_ONCE

    @pytest.mark.covers("L-35")
    def test_a_callable_answers_when_busy(self, face: Face) -> None:
        a, b = face.workers(2)
        send = self.invoice(face, a.locks, busy=lambda customer, copies=1: f"later, {customer} x {copies}")
        with a.acquire("invoice/7"):
            assert b.do(lambda _: send(7, copies=3)) == "later, 7 x 3"

    @pytest.mark.covers("L-35")
    def test_an_error_of_the_function_releases_the_key(self, face: Face) -> None:
        a, b = face.workers(2)

        def fail() -> None:
            raise ZeroDivisionError

        guarded = a.locks.guard("k")(face.function(fail))
        with pytest.raises(ZeroDivisionError):
            a.do(lambda _: guarded())
        assert b.can_take("k")

    @pytest.mark.covers("L-35")
    def test_the_template_is_checked_when_decorating(self, face: Face) -> None:
        def send(customer: int) -> int:
            return customer

        locks = face.locks()
        for template in ("invoice/{client}", "invoice/{0}", "invoice/{", "invoice/{client.name}", "", 7):
            with pytest.raises(UsageError):
                locks.guard(template)(face.function(send))
        with pytest.raises(UsageError, match="'wait', 'skip', 'raise' or a callable"):
            locks.guard("k", busy="never")(face.function(send))
        with pytest.raises(UsageError, match="customer"):
            locks.guard("invoice/{client}")(face.function(send))

    @pytest.mark.covers("L-35")
    def test_a_function_of_the_other_colour_is_refused(self, thread_face: Face, asyncio_face: Face) -> None:
        async def coroutine() -> None: ...

        def plain() -> None: ...

        with pytest.raises(UsageError, match="AsyncLocks"):
            thread_face.locks().guard("k")(coroutine)
        with pytest.raises(UsageError, match=r"Locks\.guard"):
            asyncio_face.locks().guard("k")(plain)

    @pytest.mark.covers("L-35", "L-32")
    def test_an_argument_that_makes_no_key_is_refused_when_called(self, face: Face) -> None:
        a = face.worker()

        def named(name: str) -> str:
            return name

        guarded = a.locks.guard("{name}")(face.function(named))
        with pytest.raises(UsageError, match="empty"):
            a.do(lambda _: guarded(""))

    @pytest.mark.covers("L-35")
    def test_the_decorated_function_keeps_its_name_and_is_shown_as_the_owner(self, face: Face) -> None:
        a = face.worker()

        def nightly() -> Steps:
            records = yield a.locks.who("k")
            return [record.owner.site for record in records if record.namespace == face.namespace]

        guarded = a.locks.guard("k")(face.function(nightly))
        assert guarded.__name__ == "nightly"
        line = f"{nightly.__code__.co_filename}:{nightly.__code__.co_firstlineno}"
        assert a.do(lambda _: guarded()) == [line]


class TestOnce:
    """Run it unless it is done, in one place only."""

    @pytest.mark.covers("L-35")
    def test_eight_replicas_run_it_once(self, face: Face) -> None:
        ran: list[str] = []

        def work(locks: Any) -> Any:
            def run() -> Steps:
                yield
                ran.append("ran")

            return locks.once("migrate", face.function(run), done=face.function(lambda: bool(ran)))

        answers = [call.result() for call in [worker.start(work) for worker in face.workers(8)]]
        assert ran == ["ran"]
        assert sorted(answers) == [False] * 7 + [True]

    @pytest.mark.covers("L-35")
    def test_when_it_is_done_nobody_touches_the_lock(self, face: Face) -> None:
        """So a start-up of many replicas is not one after another: the key is busy here all the time."""
        a, *others = face.workers(9)
        asked: list[int] = []

        def never() -> None:
            raise AssertionError("ran again")

        def done() -> bool:
            asked.append(1)
            return True

        with a.acquire("migrate"):
            calls = [
                w.start(lambda locks: locks.once("migrate", face.function(never), done=face.function(done)))
                for w in others
            ]
            assert [call.result(AT_ONCE) for call in calls] == [False] * 8
        assert len(asked) == 8

    @pytest.mark.covers("L-35")
    def test_done_is_asked_again_under_the_lock(self, face: Face) -> None:
        a, b = face.workers(2)
        finished: list[str] = []

        def never() -> None:
            raise AssertionError("ran although it was done while we waited")

        hold = a.acquire("migrate")
        call = b.start(
            lambda locks: locks.once("migrate", face.function(never), done=face.function(lambda: bool(finished)))
        )
        face.until_waiting("migrate")
        finished.append("by somebody else")
        hold.release()
        assert call.result() is False

    @pytest.mark.covers("L-35")
    def test_a_failed_run_is_tried_by_the_next_one(self, face: Face) -> None:
        a, b = face.workers(2)

        def fail() -> None:
            raise ZeroDivisionError

        def never_done() -> bool:
            return False

        with pytest.raises(ZeroDivisionError):
            a.do(lambda locks: locks.once("k", face.function(fail), done=face.function(never_done)))
        assert b.do(lambda locks: locks.once("k", face.function(lambda: None), done=face.function(never_done))) is True


class TestLead:
    """One leader at a time; on loss the work ends before the next campaign."""

    @pytest.mark.covers("L-35")
    def test_the_leader_works_and_its_result_is_returned(self, face: Face) -> None:
        a, b = face.workers(2)

        def work(hold: Any) -> Any:
            hold.check()
            return hold.keys

        assert a.do(lambda locks: locks.lead("scheduler", face.function(work))) == ("scheduler",)
        assert b.can_take("scheduler")

    @pytest.mark.covers("L-35")
    def test_there_are_never_two_leaders(self, face: Face) -> None:
        witness = Witness()

        def work(_: Any) -> Steps:
            witness.enter()
            yield
            witness.leave()

        calls = [w.start(lambda locks: locks.lead("scheduler", face.function(work))) for w in face.workers(6)]
        for call in calls:
            call.result()
        assert (witness.most_writers, witness.entered) == (1, 6)

    @pytest.mark.covers("L-35")
    def test_a_leader_that_lost_its_hold_ends_its_work_and_then_campaigns_again(self, face: Face) -> None:
        a = face.worker()
        terms: list[Any] = []
        story: list[str] = []
        elected = face.event()

        def work(hold: Any) -> Steps:
            terms.append(hold)
            story.append(f"begin {len(terms)}")
            try:
                if len(terms) == 1:
                    elected.set()
                    lost = yield hold.wait_lost(60)
                    assert lost
                    hold.check()
                return f"term {len(terms)}"
            finally:
                story.append(f"end {len(terms)}")

        call = a.start(lambda locks: locks.lead("scheduler", face.function(work)))
        eventually(elected.is_set)
        lose(terms[0])
        assert call.result() == "term 2"
        assert story == ["begin 1", "end 1", "begin 2", "end 2"]
        assert terms[1].fence > terms[0].fence

    @pytest.mark.covers("L-35")
    def test_another_one_takes_over_when_the_leader_loses(self, face: Face) -> None:
        a, b = face.workers(2)
        terms: list[Any] = []
        witness = Witness()

        def work(name: str) -> Callable[..., Any]:
            def lead(hold: Any) -> Steps:
                terms.append((name, hold))
                witness.enter()
                try:
                    if len(terms) == 1:
                        yield hold.wait_lost(60)
                finally:
                    witness.leave()

            return face.function(lead)

        first = a.start(lambda locks: locks.lead("scheduler", work("a")))
        eventually(lambda: terms)
        second = b.start(lambda locks: locks.lead("scheduler", work("b")))
        face.until_waiting("scheduler")
        lose(terms[0][1])
        first.result()
        second.result()
        assert [name for name, _ in terms] == ["a", "b", "a"]

    @pytest.mark.covers("L-35")
    def test_work_that_fails_ends_the_lead(self, face: Face) -> None:
        a, b = face.workers(2)

        def fail(_: Any) -> None:
            raise ZeroDivisionError

        def lost_something_else(_: Any) -> None:
            raise HoldLost("of another lock")

        for work, error in ((fail, ZeroDivisionError), (lost_something_else, HoldLost)):
            with pytest.raises(error):
                a.do(partial(_lead, face.function(work)))
        assert b.can_take("scheduler")

    @pytest.mark.covers("L-35")
    def test_a_new_leader_settles_before_it_works(self, face: Face) -> None:
        a = face.worker()
        began = time.monotonic()
        started = a.do(lambda locks: locks.lead("scheduler", face.function(lambda _: time.monotonic()), settle=0.05))
        assert started - began >= 0.05

    @pytest.mark.covers("L-35")
    def test_who_loses_while_settling_does_not_begin(self, face: Face) -> None:
        a = face.worker()
        terms: list[Any] = []

        def settling() -> Any:
            records = [record for record in face.holders("scheduler") if record.fence is not None]
            return records and records[0]

        call = a.start(lambda locks: locks.lead("scheduler", face.function(terms.append), settle=0.5))
        record = eventually(settling)
        face.worker().do(lambda locks: locks.evict(record.id))
        call.result()
        assert len(terms) == 1
        assert terms[0].fence > record.fence


def _lead(work: Callable[..., Any], locks: Any) -> Any:
    return locks.lead("scheduler", work)


def _slot(timeout: float, locks: Any) -> Any:
    return locks.slots("gpu", 1, timeout=timeout).acquire()


class TestSlots:
    """A semaphore made of plain keys."""

    @pytest.mark.covers("L-35")
    def test_as_many_as_there_are_slots_get_in(self, face: Face) -> None:
        workers = face.workers(4)
        take = lambda locks: locks.slots("gpu", 3).try_acquire()  # noqa: E731
        holds = [worker.do(take) for worker in workers]
        assert [hold is not None for hold in holds] == [True, True, True, False]
        assert sorted(hold.slot for hold in holds[:3]) == [0, 1, 2]
        holds[1].release()
        again = workers[3].do(take)
        assert again.slot == holds[1].slot
        for hold in (holds[0], holds[2], again):
            hold.release()

    @pytest.mark.covers("L-35")
    def test_the_number_inside_never_exceeds_the_slots(self, face: Face, scaled: Callable[[int], int]) -> None:
        witness, rounds = Witness(), scaled(100)
        taken: set[int] = set()

        def work(locks: Any) -> Steps:
            for _ in range(rounds):
                hold = yield locks.slots("gpu", 3, timeout=None).acquire()
                witness.enter()
                assert hold.slot not in taken
                taken.add(hold.slot)
                yield
                taken.discard(hold.slot)
                witness.leave()
                yield hold.release()

        for call in [worker.start(work) for worker in face.workers(9)]:
            call.result()
        assert 2 <= witness.most_writers <= 3
        assert witness.entered == 9 * rounds

    @pytest.mark.covers("L-35")
    def test_a_double_release_makes_no_slot(self, face: Face) -> None:
        workers = face.workers(3)
        take = lambda locks: locks.slots("gpu", 1).try_acquire()  # noqa: E731
        first = workers[0].do(take)
        first.release()
        second = workers[1].do(take)
        first.release()
        assert workers[2].do(take) is None
        second.release()

    @pytest.mark.covers("L-35")
    def test_a_slot_that_comes_free_goes_to_a_waiter(self, face: Face) -> None:
        a, b, c = face.workers(3)
        take = lambda locks: locks.slots("gpu", 2, timeout=60).acquire()  # noqa: E731
        one, two = a.do(take), b.do(take)
        waiting = c.start(take)
        eventually(lambda: face.who("gpu*line*") or face.waiters("gpu"), "somebody waits for a slot")
        one.release()
        hold = waiting.result()
        assert hold.slot == one.slot
        hold.release()
        two.release()

    @pytest.mark.covers("L-35", "L-7")
    def test_a_timeout_names_the_slots_and_who_has_them(self, face: Face) -> None:
        a, b = face.worker(label="cruncher"), face.worker()
        hold = a.do(lambda locks: locks.slots("gpu", 1).acquire())
        for timeout in (0, 0.02):
            with pytest.raises(LockTimeout, match="cruncher") as caught:
                b.do(partial(_slot, timeout))
            assert caught.value.key == "gpu"
            assert caught.value.owner.label == "cruncher"
            assert caught.value.waited >= timeout
        hold.release()

    @pytest.mark.covers("L-35")
    def test_a_block_on_a_slot_gives_it_back(self, face: Face) -> None:
        a, b = face.workers(2)
        inside = a.do(lambda locks: face.block(locks.slots("gpu", 1), lambda hold: hold.slot))
        assert inside == 0
        b.do(lambda locks: locks.slots("gpu", 1, timeout=0).acquire()).release()

    @pytest.mark.covers("L-32", "L-35")
    @pytest.mark.parametrize("count", [0, -1, 1.5, True, "2", None, 1_001])
    def test_what_is_no_count_is_refused(self, face: Face, count: Any) -> None:
        with pytest.raises(UsageError, match="count"):
            face.locks().slots("gpu", count)
        with pytest.raises(UsageError):
            face.locks().slots("", 2)


class TestHeld:
    """What this very thread or task holds."""

    @pytest.mark.covers("L-35")
    def test_held_is_ones_own_hold_or_none(self, face: Face) -> None:
        a, b = face.workers(2)
        assert a.held("k") is None
        with a.acquire("j", "k") as hold:
            own = a.held("k")
            assert own is not None
            assert own.hold == hold.hold
            assert own.keys == ("j", "k")
            assert own.fence == hold.fence
            assert b.held("k") is None
        assert a.held("k") is None

    @pytest.mark.covers("L-35")
    def test_held_sees_what_another_locks_object_took(self, face: Face) -> None:
        a, other = face.worker(), face.locks(label="another")
        with a.acquire("k"):
            assert a.do(lambda _: other.held("k")) is not None

    @pytest.mark.covers("L-35")
    def test_what_was_given_away_is_held_by_the_other_one(self, face: Face) -> None:
        a, b = face.workers(2)
        hold = a.acquire("k")
        hold.give(b.party)
        assert a.held("k") is None
        own = b.held("k")
        assert own is not None
        own.release()
        assert hold.released

    @pytest.mark.covers("L-35")
    def test_a_lost_hold_is_not_held(self, face: Face) -> None:
        a = face.worker()
        hold = a.acquire("k")
        lose(hold.hold)
        assert a.held("k") is None
