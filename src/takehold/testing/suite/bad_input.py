"""Bad input: a sentence that says what is accepted, and nothing is ever acquired by mistake."""

from __future__ import annotations

import gc
import math
from datetime import timedelta
from typing import Any

import pytest

from takehold.core.key import AnyKey, Key, advisory
from takehold.errors import UsageError
from takehold.testing.faces import Face, Work
from takehold.testing.suite.exclusion import line_of
from takehold.testing.suite.fixtures import requires

__all__ = ["TestBadInput", "TestLazy", "TestNumbers"]


class TestBadInput:
    """`UsageError`, which is a `ValueError`, before anything happens."""

    @pytest.mark.covers("L-32")
    @pytest.mark.parametrize(
        "key",
        [
            pytest.param("", id="empty"),
            pytest.param("a\0b", id="NUL"),
            pytest.param("x" * 1025, id="over a kibibyte"),
            pytest.param("é" * 513, id="over a kibibyte in UTF-8"),
            pytest.param("\ud800", id="a lone surrogate"),
            pytest.param(42, id="int"),
            pytest.param(True, id="bool"),
            pytest.param(1.5, id="float"),
            pytest.param(None, id="None"),
            pytest.param(b"k", id="bytes"),
            pytest.param(["k"], id="list"),
            pytest.param(("a", "b"), id="tuple"),
        ],
    )
    def test_what_is_no_key_is_refused(self, face: Face, key: Any) -> None:
        a = face.worker()
        for call in (a.acquire, a.try_acquire, a.held):
            with pytest.raises(UsageError):
                call(key)
        with pytest.raises(UsageError):
            a.acquire("good", key)
        with pytest.raises(ValueError, match="key"):
            a.acquire(key)
        assert a.can_take("good")

    @pytest.mark.covers("L-32")
    def test_no_key_at_all_is_refused(self, face: Face) -> None:
        with pytest.raises(UsageError, match="at least one key"):
            face.worker().acquire()

    @pytest.mark.covers("L-32")
    @pytest.mark.parametrize("timeout", [-1, -0.001, timedelta(seconds=-1), math.nan, True, False, "5", [1], -math.inf])
    def test_what_is_no_timeout_is_refused_on_a_free_and_on_a_busy_key(self, face: Face, timeout: Any) -> None:
        a, b = face.workers(2)
        with pytest.raises(UsageError, match="timeout is seconds"):
            a.acquire("k", timeout=timeout)
        with b.acquire("k"), pytest.raises(UsageError, match="timeout is seconds"):
            a.acquire("k", timeout=timeout)
        with pytest.raises(UsageError, match="timeout is seconds"):
            a.do(lambda locks: locks.slots("s", 2, timeout=timeout).acquire())
        with pytest.raises(UsageError, match="timeout is seconds"):
            face.locks(timeout=timeout)

    @pytest.mark.covers("L-32")
    @pytest.mark.parametrize("mode", ["read", "EXCLUSIVE", "", None, 1, True])
    def test_what_is_no_mode_is_refused(self, face: Face, mode: Any) -> None:
        a = face.worker()
        with pytest.raises(UsageError, match="'exclusive' or 'shared'"):
            a.acquire("k", mode=mode)
        with pytest.raises(UsageError, match="'exclusive' or 'shared'"):
            a.acquire("k", "l", mode=mode)

    @pytest.mark.covers("L-32")
    @pytest.mark.parametrize(
        "options",
        [
            {"namespace": "a\0b"},
            {"namespace": 7},
            {"namespace": "x" * 256},
            {"label": ""},
            {"label": "a\0b"},
            {"label": "x" * 200},
            {"check_order": "maybe"},
            {"check_order": None},
        ],
        ids=str,
    )
    def test_bad_options_are_refused_when_the_object_is_made(self, face: Face, options: dict[str, Any]) -> None:
        with pytest.raises(UsageError):
            face.locks(**options)

    @pytest.mark.covers("L-32")
    @pytest.mark.parametrize(
        "url", ["", "k", "nonsense:", "nonsense://host/db", "memory", 42, b"memory:", "file:", "sqlite:", "file:k?x=1"]
    )
    def test_an_unknown_url_is_refused_with_what_is_accepted(self, face: Face, url: Any) -> None:
        with pytest.raises(UsageError, match=r"memory:|file:|sqlite:"):
            type(face.locks())(url)

    @pytest.mark.covers("L-32")
    def test_a_password_in_a_refused_url_is_not_repeated(self, face: Face) -> None:
        with pytest.raises(UsageError) as caught:
            type(face.locks())("nonsense://app:secret@db/app")
        assert "secret" not in str(caught.value)

    @pytest.mark.covers("L-32")
    def test_no_url_and_no_environment_is_refused(self, face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("TAKEHOLD_URL", raising=False)
        with pytest.raises(UsageError, match="TAKEHOLD_URL"):
            type(face.locks())()

    @pytest.mark.covers("L-34")
    def test_no_url_means_the_one_of_the_environment(self, face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
        if not isinstance(face.url, str):
            pytest.skip("this backend is given as an object, not by URL")
        monkeypatch.setenv("TAKEHOLD_URL", face.url)
        a, b = face.worker(type(face.locks())(namespace=face.namespace)), face.worker()
        with a.acquire("k"):
            assert not b.can_take("k")
        a.close()

    @pytest.mark.covers("L-32")
    def test_a_closed_object_is_refused_everywhere(self, face: Face) -> None:
        a, b = face.worker(label="closed"), face.worker()
        hold = a.acquire("k")
        request = a.locks.lock("again")
        a.do(lambda _: request.acquire()).release()
        a.close()
        assert a.locks.closed
        assert hold.released
        assert b.can_take("k")
        for call in (
            lambda locks: locks.lock("k").acquire(),
            lambda locks: locks.lock("k").try_acquire(),
            lambda locks: locks.slots("s", 2).acquire(),
            lambda locks: locks.who(),
            lambda locks: locks.busy(),
            lambda locks: locks.held("k"),
            lambda locks: locks.evict(hold.id),
            lambda locks: locks.open(),
            lambda _: request.acquire(),
        ):
            with pytest.raises(UsageError, match="closed"):
                a.do(call)
        a.close()
        hold.release()

    @pytest.mark.covers("L-32")
    def test_a_bad_reaction_to_loss_is_refused(self, asyncio_face: Face) -> None:
        with pytest.raises(UsageError, match="'cancel' or 'tell'"):
            asyncio_face.worker().acquire("k", on_lost="ignore")

    @pytest.mark.covers("L-32")
    def test_a_slot_is_only_known_of_slots(self, face: Face) -> None:
        with face.worker().acquire("k") as hold, pytest.raises(UsageError, match="slots"):
            _ = hold.slot


class TestLazy:
    """Making a `Locks` object does nothing; opening one proves the backend."""

    @pytest.mark.covers("L-34")
    def test_opening_proves_the_backend_and_closing_gives_everything_back(self, face: Face) -> None:
        a, b = face.worker(label="opened"), face.worker()
        assert a.do(lambda locks: locks.open()) is a.locks
        hold = a.acquire("k")
        assert not b.can_take("k")
        a.close()
        assert b.can_take("k")
        assert hold.released

    @pytest.mark.covers("L-34")
    def test_a_request_dropped_unused_warns_with_its_line(self, face: Face) -> None:
        a = face.worker()
        make: Work = lambda locks: locks.lock("k") and None  # noqa: E731 - its line is the point

        def drop(_: Any) -> None:
            make(a.locks)
            gc.collect()

        with pytest.warns(ResourceWarning, match="without being acquired") as caught:
            a.do(drop)
        assert line_of(make) in str(caught[0].message)
        assert "'k'" in str(caught[0].message)

    @pytest.mark.covers("L-34")
    def test_a_request_that_was_used_is_dropped_in_silence(self, face: Face) -> None:
        a, b = face.workers(2)
        a.acquire("k").release()
        with b.acquire("k"):
            assert a.try_acquire("k") is None
        gc.collect()

    @pytest.mark.covers("L-34")
    def test_what_it_is_can_be_seen(self, face: Face) -> None:
        made = face.locks()
        assert type(made).__name__ in repr(made)
        assert face.namespace in repr(made)
        request = made.lock("b", "a")
        assert request.keys == ("a", "b")
        assert "'a', 'b'" in repr(request)
        face.worker(made).do(lambda _: request.acquire()).release()


class TestNumbers:
    """A key may be a 64-bit number."""

    @pytest.mark.covers("L-33")
    @pytest.mark.parametrize("number", [-(2**63), 2**63 - 1, 0, -1])
    def test_every_64_bit_number_is_a_key(self, face: Face, number: int) -> None:
        a, b = face.workers(2)
        with a.acquire(advisory(number), timeout=30) as hold:
            assert hold.keys == (advisory(number),)
            assert not b.can_take(advisory(number))
            assert any(record.key == f"#{number}" for record in a.who("#*"))

    @pytest.mark.covers("L-33")
    def test_numbers_next_to_each_other_are_different_keys(self, face: Face) -> None:
        a, b = face.workers(2)
        number = face.number()
        with a.acquire(advisory(number)):
            assert b.can_take(advisory(number + 1))
            assert b.can_take(advisory(-number))
            assert b.can_take(advisory(number ^ (1 << 61)))

    @requires("shared")
    @pytest.mark.covers("L-33")
    def test_a_number_can_be_shared(self, face: Face) -> None:
        a, b = face.workers(2)
        number = face.number()
        with a.acquire(advisory(number), mode="shared"):
            assert b.can_take(advisory(number), mode="shared")
            assert not b.can_take(advisory(number))

    @pytest.mark.covers("L-32", "L-33")
    @pytest.mark.parametrize("number", [2**63, -(2**63) - 1, True, 1.0, "1", None])
    def test_what_is_no_64_bit_number_is_refused(self, number: Any) -> None:
        with pytest.raises(UsageError, match=r"advisory\(\) takes"):
            advisory(number)

    @pytest.mark.covers("L-32")
    @pytest.mark.parametrize("parts", [(), ("",), ("a", ""), (True,), (1.5,), (None,), ("a\0",), ("x" * 1025,)])
    def test_what_is_no_key_of_parts_is_refused(self, parts: tuple[Any, ...]) -> None:
        with pytest.raises(UsageError, match="Key"):
            Key(*parts)

    @pytest.mark.covers("L-32")
    def test_a_key_of_parts_is_at_most_a_kibibyte(self) -> None:
        fits: AnyKey = Key("x" * 511, "y" * 512)
        assert len(str(fits)) == 1024
        with pytest.raises(UsageError, match="1024"):
            Key("x" * 512, "y" * 512)
