"""The key encoding is frozen: golden vectors, an independent reading of its description, and properties."""

from __future__ import annotations

import hashlib
import pickle
import struct
import subprocess
import sys
from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from takehold import Key, UsageError, advisory, shared
from takehold.backends.file import FileBackend
from takehold.backends.memory import MemoryBackend
from takehold.core.key import (
    BODY,
    KEY_FORMAT,
    RAW,
    TEXT,
    TREE,
    AnyKey,
    encode,
    encode_raw,
    hashed,
    template_of,
    text_of,
)
from takehold.core.want import EXCLUSIVE, SHARED, want_for_text, wants_for

LONG = "x" * 999

TEXTS = [
    ("", "orders/42", "01000000096f72646572732f3432", 0x66A3D82C4880171F),
    ("", "Orders/42", "01000000094f72646572732f3432", 0x163B63DA9BF2DEA7),
    ("", "orders/42 ", "010000000a6f72646572732f343220", 0xC0AEA3FD0A6F6340),
    ("shop", "orders/42", "01000473686f7000096f72646572732f3432", 0xB541784D84464108),
    ("s", "hop", "010001730003686f70", 0xF95FCA9056408B50),
    ("", "\u00e9", "0100000002c3a9", 0xAC8BD8EF33783E2E),
    ("", "e\u0301", "010000000365cc81", 0xF5E9F7E4BF28BC00),
    ("", "\U0001f512", "0100000004f09f9492", 0xEDD77564DB82F09C),
    ("", LONG + "y", "01000003e8" + "78" * 999 + "79", 0x7FE36D7876639D7D),
    ("", LONG + "z", "01000003e8" + "78" * 999 + "7a", 0x8E7A9C17EB3797DE),
]
NODES = [
    (TREE, "", ("wh",), "02000000027768", 0x54E2C86883E2FA02),
    (BODY, "", ("wh",), "03000000027768", 0x4A3601F21E1A5C50),
    (TREE, "", ("wh", "eu"), "0200000002776800026575", 0x48797644708AF078),
    (BODY, "", ("wh", "eu"), "0300000002776800026575", 0x12AF5EFD0675B229),
    (TREE, "shop", ("wh", "eu"), "02000473686f700002776800026575", 0xAA47A9D79483D887),
    (BODY, "shop", ("wh", "eu"), "03000473686f700002776800026575", 0x8A5773F27A2A0346),
    (BODY, "", ("wh/eu",), "030000000577682f6575", 0xED9150B85F2B2EE7),
]
NUMBERS = [
    (0, "040000000000000000", 0x9A1C66E228925082),
    (1, "040000000000000001", 0xA7C6C4F0D4ECDEFF),
    (-1, "04ffffffffffffffff", 0xE10BE50DE31B0888),
    (1000, "0400000000000003e8", 0x219C6492E9DF4AEF),
    (2**63 - 1, "047fffffffffffffff", 0x69710EF82D5554E2),
    (-(2**63), "048000000000000000", 0xCEE768161A62D827),
]


@pytest.mark.covers("L-3", "L-36")
class TestGolden:
    """Never change these: two releases of one fleet would stop excluding each other."""

    def test_the_format_is_number_1(self) -> None:
        assert KEY_FORMAT == 1

    @pytest.mark.parametrize(("namespace", "text", "encoded", "id"), TEXTS)
    def test_texts(self, namespace: str, text: str, encoded: str, id: int) -> None:
        assert encode(TEXT, namespace, text).hex() == encoded
        assert hashed(bytes.fromhex(encoded)) == id

    @pytest.mark.parametrize(("domain", "namespace", "parts", "encoded", "id"), NODES)
    def test_nodes_of_a_tree(
        self, domain: bytes, namespace: str, parts: tuple[str, ...], encoded: str, id: int
    ) -> None:
        assert encode(domain, namespace, *parts).hex() == encoded
        assert hashed(bytes.fromhex(encoded)) == id

    @pytest.mark.parametrize(("number", "encoded", "id"), NUMBERS)
    def test_numbers(self, number: int, encoded: str, id: int) -> None:
        assert encode_raw(number).hex() == encoded
        assert hashed(bytes.fromhex(encoded)) == id

    @pytest.mark.parametrize(("namespace", "text", "encoded", "id"), TEXTS)
    def test_the_ids_are_what_the_description_says(self, namespace: str, text: str, encoded: str, id: int) -> None:
        """Read from the documentation, without the code: a digest of lengths and UTF-8, all big-endian."""
        fields = b"".join(struct.pack(">H", len(raw)) + raw for raw in (namespace.encode(), text.encode()))
        digest = hashlib.blake2b(b"\x01" + fields, digest_size=8, person=b"takehold.key.1").digest()
        assert struct.unpack(">Q", digest) == (id,)

    @pytest.mark.parametrize(("namespace", "text", "encoded", "id"), TEXTS)
    def test_both_ways_to_a_text_key_lead_to_the_same_place(
        self, namespace: str, text: str, encoded: str, id: int
    ) -> None:
        """A plain string takes a short cut past `wants_for`."""
        place = FileBackend(__file__).place  # type: ignore[arg-type]
        short = want_for_text(text, EXCLUSIVE, prefix=encode(TEXT, namespace), namespace=namespace, place=place)
        (long,) = wants_for([text], namespace=namespace, mode=EXCLUSIVE, subtree=False, place=place)
        assert short.id == long.id == id >> 1
        assert short.order == long.order

    def test_ids_do_not_depend_on_the_process(self) -> None:
        code = "from takehold.core.key import *; print(hashed(encode(b'\\x01', 'shop', 'orders/42')))"
        for seed in ("1", "2"):
            said = subprocess.run(
                [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
            )
            assert int(said.stdout) == 0xB541784D84464108

    def test_a_file_lock_is_63_bits_of_the_id(self) -> None:
        id, spot = FileBackend(__file__).place(bytes.fromhex(TEXTS[0][2]), None)  # type: ignore[arg-type]
        assert id == spot.offset == 0x66A3D82C4880171F >> 1
        assert 0 <= spot.offset < 2**63

    def test_memory_uses_the_encoding_itself(self) -> None:
        id, _ = MemoryBackend().place(b"\x01anything", None)
        assert id == b"\x01anything"


LETTERS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8)
NAMESPACES = st.one_of(st.just(""), LETTERS)
THINGS = st.one_of(
    st.tuples(st.just(TEXT), NAMESPACES, st.tuples(LETTERS)),
    st.tuples(st.sampled_from([TREE, BODY]), NAMESPACES, st.lists(LETTERS, min_size=1, max_size=4).map(tuple)),
    st.tuples(st.just(RAW), st.just(""), st.tuples(st.integers(-(2**63), 2**63 - 1))),
)
KEYS = st.one_of(
    LETTERS,
    st.lists(st.one_of(LETTERS, st.integers(), st.uuids()), min_size=1, max_size=4).map(lambda p: Key(*p)),
    st.integers(-(2**63), 2**63 - 1).map(advisory),
)


def encoding(thing: tuple[bytes, str, tuple[object, ...]]) -> bytes:
    domain, namespace, parts = thing
    if domain == RAW:
        (number,) = parts
        assert isinstance(number, int)
        return encode_raw(number)
    return encode(domain, namespace, *map(str, parts))


@pytest.mark.covers("L-2", "L-3")
class TestProperties:
    @given(THINGS, THINGS)
    def test_different_things_have_different_encodings(
        self, one: tuple[bytes, str, tuple[object, ...]], other: tuple[bytes, str, tuple[object, ...]]
    ) -> None:
        assert (encoding(one) == encoding(other)) == (one == other)

    @given(st.lists(LETTERS, min_size=1, max_size=3), st.lists(LETTERS, min_size=1, max_size=3))
    def test_moving_a_boundary_makes_another_key(self, one: list[str], other: list[str]) -> None:
        """What would collide if parts were only joined."""
        assert (encode(BODY, "", *one) == encode(BODY, "", *other)) == (one == other)

    @given(st.lists(LETTERS, min_size=1, max_size=3), st.lists(LETTERS, min_size=1, max_size=3))
    def test_the_text_of_a_key_tells_its_parts(self, one: list[str], other: list[str]) -> None:
        assert (Key(*one).text == Key(*other).text) == (one == other)

    @given(st.lists(KEYS, min_size=1, max_size=6))
    def test_every_set_of_keys_has_one_order(self, keys: list[AnyKey]) -> None:
        """However they are given: ascending, texts by their bytes, numbers last."""
        place = MemoryBackend().place
        forth = wants_for(keys, namespace="n", mode=EXCLUSIVE, subtree=False, place=place)
        back = wants_for(keys[::-1], namespace="n", mode=EXCLUSIVE, subtree=False, place=place)
        assert [want.id for want in forth] == [want.id for want in back]
        assert all(one.order < two.order for one, two in pairwise(forth))
        ranks = [1 if want.domain == RAW else 0 for want in forth]
        assert ranks == sorted(ranks)
        texts = [want.node.encode() for want in forth if want.domain != RAW]
        assert texts == sorted(texts)

    @given(KEYS)
    def test_keys_survive_pickling_and_equal_themselves(self, key: AnyKey) -> None:
        again = pickle.loads(pickle.dumps(key))
        assert again == key
        assert hash(again) == hash(key)
        assert template_of(again) == template_of(key)


@pytest.mark.covers("L-19")
class TestMerging:
    place = staticmethod(MemoryBackend().place)

    def wants(self, *keys: object, subtree: bool = False) -> list[tuple[str, str, bool]]:
        wants = wants_for(keys, namespace="", mode=EXCLUSIVE, subtree=subtree, place=self.place)  # type: ignore[arg-type]
        return [(want.node, want.mode.value, want.implied) for want in wants]

    def test_exclusive_wins_over_shared_whichever_comes_first(self) -> None:
        assert self.wants("a", shared("a")) == self.wants(shared("a"), "a") == [("a", "exclusive", False)]

    def test_siblings_share_the_ids_of_their_ancestors(self) -> None:
        assert self.wants(Key("wh", "eu"), Key("wh", "as")) == [
            ("wh", "shared", True),
            ("wh/as", "exclusive", False),
            ("wh/eu", "exclusive", False),
        ]

    @pytest.mark.covers("L-20")
    def test_a_subtree_takes_its_node_twice_and_its_ancestors_shared(self) -> None:
        wants = wants_for([Key("wh", "eu")], namespace="", mode=EXCLUSIVE, subtree=True, place=self.place)
        assert [(want.domain, want.node, want.mode) for want in wants] == [
            (TREE, "wh", SHARED),
            (TREE, "wh/eu", EXCLUSIVE),
            (BODY, "wh/eu", EXCLUSIVE),
        ]

    @pytest.mark.covers("L-20")
    def test_a_plain_string_pays_nothing_for_trees(self) -> None:
        assert self.wants("wh/eu/orders/42") == [("wh/eu/orders/42", "exclusive", False)]

    def test_the_order_is_that_of_the_text_whatever_the_hash(self) -> None:
        """Ids are hashes, in no order; and a file backend sorts the same way as any other."""
        keys = [f"k{number}" for number in range(100)]
        place = FileBackend(__file__).place  # type: ignore[arg-type]
        wants = wants_for(keys, namespace="", mode=EXCLUSIVE, subtree=False, place=place)
        assert [want.text for want in wants] == sorted(keys)
        assert [want.id for want in wants] != sorted(want.id for want in wants)  # type: ignore[type-var]


class TestKey:
    def test_parts_read_the_same_are_the_same(self) -> None:
        uuid = UUID(int=7)
        assert Key("a", 42, uuid) == Key("a", "42", str(uuid))
        assert len({Key("a", 42), Key("a", "42")}) == 1
        assert Key("a", 42) != Key("a", 43)
        assert Key("a") != "a"
        assert repr(Key("a", 42)) == "Key('a', '42')"

    def test_a_slash_inside_a_part_is_escaped(self) -> None:
        assert str(Key("a/b", "c")) == "a%2Fb/c"
        assert str(Key("a%2Fb", "c")) == "a%252Fb/c"
        assert text_of(Key("a", "b")) == "a/b"

    def test_it_cannot_be_changed(self) -> None:
        with pytest.raises(AttributeError):
            Key("a").parts = ("b",)  # type: ignore[misc]

    @pytest.mark.covers("L-30")
    @pytest.mark.parametrize(
        ("key", "template"),
        [
            ("orders/42", "orders/*"),
            ("orders/42/lines/7", "orders/*/lines/*"),
            ("user:0b3c1d2e-8f4a-4c6d-9e2f-1a2b3c4d5e6f", "user:*"),
            ("blob/deadbeef01", "blob/*"),
            ("blob/deadbee", "blob/deadbee"),
            ("42", "*"),
            ("nightly", "nightly"),
            ("v2", "v2"),
            ("2024-11-18", "*-*-*"),
            (Key("orders", 42), "orders/*"),
            (Key("orders", "42"), "orders/42"),
            (Key("a/b", UUID(int=1)), "a%2Fb/*"),
            (advisory(7, "migrations"), "#*"),
        ],
    )
    def test_the_template_has_a_star_for_what_varies(self, key: AnyKey, template: str) -> None:
        assert template_of(key) == template

    @pytest.mark.covers("L-33")
    def test_a_number_is_its_number_whatever_its_label(self) -> None:
        assert advisory(7) == advisory(7, "label")
        assert hash(advisory(7)) == hash(advisory(7, "label"))
        assert advisory(7) != advisory(8)
        assert advisory(7, "label").text == "#7 label"
        with pytest.raises(UsageError, match="label"):
            advisory(7, "")
