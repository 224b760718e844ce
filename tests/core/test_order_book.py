"""The order checker by itself: what it remembers, what it reports, and that it stays small."""

from __future__ import annotations

import pytest

from takehold import Key, advisory, shared
from takehold.backends.memory import MemoryBackend
from takehold.core import order
from takehold.core.key import AnyKey
from takehold.core.order import OrderBook
from takehold.core.seat import Caller, Seat
from takehold.core.want import EXCLUSIVE, Shared, wants_for

CALLER = Caller("", None, "warn", coalesce=True)


def seats(*keys: AnyKey | Shared, site: str = "app.py:1", namespace: str = "", subtree: bool = False) -> list[Seat]:
    wants = wants_for(keys, namespace=namespace, mode=EXCLUSIVE, subtree=subtree, place=MemoryBackend().place)
    made = [Seat(want, object(), site, CALLER) for want in wants]
    for seat in made:
        seat.group = made
    return made


class Book(OrderBook):
    """Asked with everything that is held, innermost last."""

    def nest(self, held: list[Seat], asked: list[Seat]) -> str | None:
        return self.check(held[-1], asked)


@pytest.mark.covers("L-21")
class TestOrderBook:
    def test_it_learns_from_the_first_nesting_and_reports_the_opposite(self) -> None:
        book = Book()
        assert book.nest(seats("orders/1", site="a.py:1"), seats("stock/1", site="a.py:2")) is None
        sentence = book.nest(seats("stock/2", site="b.py:1"), seats("orders/2", site="b.py:2"))
        assert sentence is not None
        for part in ("'orders/*'", "'stock/*'", "a.py:1 then a.py:2", "b.py:1 then b.py:2"):
            assert part in sentence

    def test_the_same_order_again_is_fine(self) -> None:
        book = Book()
        for _ in range(3):
            assert book.nest(seats("a"), seats("b")) is None

    def test_a_report_is_made_every_time(self) -> None:
        book = Book()
        book.nest(seats("a"), seats("b"))
        assert book.nest(seats("b"), seats("a"))
        assert book.nest(seats("b"), seats("a"))

    def test_a_longer_way_round_is_found(self) -> None:
        book = Book()
        for outer, inner in [("a", "b"), ("b", "c"), ("c", "d"), ("b", "x"), ("a", "x")]:
            assert book.nest(seats(outer), seats(inner)) is None
        assert book.nest(seats("d"), seats("a"))

    def test_every_pair_of_two_requests_counts(self) -> None:
        book = Book()
        book.nest(seats("a", "b"), seats("c", "d"))
        assert book.nest(seats("d"), seats("a"))
        assert book.nest(seats("c"), seats("b"))
        assert book.nest(seats("a"), seats("b")) is None

    def test_one_template_goes_upwards(self) -> None:
        book = Book()
        assert book.nest(seats(Key("acct", 3)), seats(Key("acct", 7))) is None
        sentence = book.nest(seats("acct/7", site="a.py:1"), seats("acct/3", site="a.py:2"))
        assert sentence is not None
        for part in ("'acct/3'", "'acct/7'", "a.py:1", "a.py:2", "descending"):
            assert part in sentence

    def test_numbers_are_one_template_and_go_upwards(self) -> None:
        book = Book()
        assert book.nest(seats(advisory(3)), seats(advisory(20))) is None
        assert book.nest(seats(advisory(20)), seats(advisory(3)))

    def test_what_is_taken_on_behalf_of_a_key_does_not_count(self) -> None:
        """Siblings share their ancestors; that is no nesting of ancestors."""
        book = Book()
        assert book.nest(seats(Key("wh", "as")), seats(Key("wh", "eu"))) is None
        assert book.nest(seats(Key("wh", "as")), seats(shared(Key("wh", "eu")))) is None

    def test_namespaces_have_their_own_orders(self) -> None:
        book = Book()
        assert book.nest(seats("a", namespace="one"), seats("b", namespace="one")) is None
        assert book.nest(seats("b", namespace="two"), seats("a", namespace="two")) is None
        assert book.nest(seats("b", namespace="one"), seats("a", namespace="one"))

    def test_it_stays_small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(order, "MAX_EDGES", 10)
        book = Book()
        for letter in "bcdefghijklmnopq":
            assert book.nest(seats("a"), seats(letter)) is None
        assert sum(map(len, book._inner.values())) == 10
        assert book.nest(seats("b"), seats("a"))
