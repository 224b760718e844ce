"""What one request asks for: modes, and the ids that a list of keys comes down to, in the one global order."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from enum import Enum
from typing import Any, Final, TypeAlias

from takehold.core.key import (
    BODY,
    MAX_KEY_BYTES,
    RAW,
    TEXT,
    TREE,
    Advisory,
    AnyKey,
    Key,
    checked,
    encode,
    encode_raw,
    template_of,
    text_of,
)
from takehold.errors import UsageError

__all__ = ["EXCLUSIVE", "SHARED", "Mode", "Shared", "Want", "shared", "want_for_text", "wants_for"]


class Mode(Enum):
    """How a key is held."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"

    def __repr__(self) -> str:
        return self.value


EXCLUSIVE: Final = Mode.EXCLUSIVE
SHARED: Final = Mode.SHARED


def mode_of(mode: object) -> Mode:
    """A `Mode` or its name, or `UsageError`."""
    for known in (SHARED, EXCLUSIVE):
        if mode is known or mode == known.value:
            return known
    raise UsageError(f"mode is 'exclusive' or 'shared', not {mode!r}")


class Shared:
    """A key to be held in shared mode. Made by `shared`."""

    __slots__ = ("key",)

    def __init__(self, key: AnyKey) -> None:
        self.key = key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shared) and other.key == self.key

    def __hash__(self) -> int:
        return hash((Shared, self.key))

    def __repr__(self) -> str:
        return f"shared({self.key!r})"


def shared(key: AnyKey) -> Shared:
    """Ask for this one key in shared mode: `locks.lock("acct/7", shared("rates"))`."""
    if type(key) is not str or not key:
        text_of(key)
    return Shared(key)


class Want:
    """One id to be had in one mode, and how to speak of it. Never changed once made."""

    __slots__ = ("_template", "domain", "id", "key", "mode", "namespace", "node", "place", "text")

    def __init__(  # noqa: PLR0913, PLR0917 - a plain record; a dataclass costs a microsecond per fresh key
        self, id: Hashable, mode: Mode, key: AnyKey, text: str, namespace: str, place: Any, domain: bytes
    ) -> None:
        self.id = id
        """What the desk compares: equal ids exclude each other."""
        self.mode = mode
        self.key = key
        self.text = text
        """What people call it: for an id taken on behalf of a key below, that key."""
        self.node = text
        """Its own place in the order, when that is another."""
        self.namespace = namespace
        self.place = place
        """The backend's own form of the id."""
        self.domain = domain
        self._template: str

    @property
    def implied(self) -> bool:
        """Taken on behalf of a key below; not shown to the user."""
        return self.domain is TREE

    @property
    def order(self) -> tuple[int, bytes | int, bytes]:
        """Texts by their UTF-8 bytes, then numbers: the one order in which everybody takes keys."""
        if isinstance(self.key, Advisory):
            return 1, self.key.number, self.domain
        return 0, self.node.encode(), self.domain

    @property
    def template(self) -> str:
        """The bounded form of the key, for counting."""
        try:
            return self._template
        except AttributeError:
            self._template = template_of(self.key)
            return self._template


Place: TypeAlias = Callable[[bytes, int | None], tuple[Hashable, Any]]
"""A backend's `place(encoded, raw_number)`: the id, and its own form of it."""


def want_for_text(text: str, mode: Mode, *, prefix: bytes, namespace: str, place: Place) -> Want:
    """The plain case, one string, without the detours: it is most of all locks."""
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        raw = b""
    if not raw or len(raw) > MAX_KEY_BYTES or b"\0" in raw:
        raw = checked(text, "a key")
    id, spot = place(prefix + len(raw).to_bytes(2, "big") + raw, None)
    return Want(id, mode, text, text, namespace, spot, TEXT)


def wants_for(
    keys: Iterable[AnyKey | Shared], *, namespace: str, mode: Mode, subtree: bool, place: Place
) -> tuple[Want, ...]:
    """Every id these keys need, merged (exclusive wins) and sorted, so that no two calls can cross."""
    merged: dict[Hashable, Want] = {}
    for item in keys:
        key, how = (item.key, SHARED) if isinstance(item, Shared) else (item, mode)
        for want in _wants_of(key, how, namespace, subtree, place):
            known = merged.get(want.id)
            if known is None or (want.mode is EXCLUSIVE and known.mode is SHARED):
                merged[want.id] = want
    if not merged:
        raise UsageError("lock() needs at least one key")
    return tuple(sorted(merged.values(), key=lambda want: want.order))


def _wants_of(key: AnyKey, mode: Mode, namespace: str, subtree: bool, place: Place) -> list[Want]:
    text = text_of(key)
    if subtree and not isinstance(key, Key):
        raise UsageError(f"subtree=True needs a takehold.Key(...), which has parts; {text!r} is flat")
    if isinstance(key, Advisory):
        id, spot = place(encode_raw(key.number), key.number)
        return [Want(id, mode, key, text, "", spot, RAW)]
    if isinstance(key, str):
        id, spot = place(encode(TEXT, namespace, key), None)
        return [Want(id, mode, key, text, namespace, spot, TEXT)]
    if subtree and mode is SHARED:
        raise UsageError("a subtree can only be held exclusively; drop shared or drop subtree=True")

    def node(domain: bytes, parts: tuple[str, ...], how: Mode) -> Want:
        at, spot = place(encode(domain, namespace, *parts), None)
        want = Want(at, how, key, text, namespace, spot, domain)
        want.node = Key(*parts).text
        return want

    wants = [node(TREE, parts, SHARED) for parts in key.ancestors]
    if subtree:
        wants.append(node(TREE, key.parts, EXCLUSIVE))
    return [*wants, node(BODY, key.parts, mode)]
