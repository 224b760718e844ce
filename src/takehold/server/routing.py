"""Which operation a request is for. Paths are matched while they are still encoded: a name may contain a slash."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from takehold.server.answers import Refused, Reply
from takehold.server.call import Call, decoded

__all__ = ["OPERATIONS", "Operation", "Routes", "Scope", "operation"]

Scope: TypeAlias = Literal["none", "read", "write", "admin"]
Work: TypeAlias = Callable[[Call], Awaitable[Reply]]

MOST_SEGMENTS: Final = 12


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing a client can ask for."""

    name: str
    """Its `operationId` in the specification."""
    method: str
    path: str
    work: Work
    scope: Scope
    advertised: bool
    replays: bool
    """An Idempotency-Key makes it happen once."""

    @property
    def endpoint(self) -> str:
        """As the configuration advertises it."""
        return f"{self.method} {self.path}"


OPERATIONS: Final[list[Operation]] = []
"""All of them, in the order of the specification; `operation` adds to it."""


def operation(
    method: str, path: str, name: str, *, scope: Scope | None = None, advertised: bool = True, replays: bool = False
) -> Callable[[Work], Work]:
    """Register a function as the work of an operation."""
    needs: Scope = scope or ("read" if method in ("GET", "HEAD") else "write")

    def register(work: Work) -> Work:
        OPERATIONS.append(Operation(name, method, path, work, needs, advertised, replays))
        return work

    return register


@dataclass(slots=True)
class _Node:
    """One place in the tree of paths."""

    children: dict[str, _Node] = field(default_factory=dict)
    any: tuple[str, _Node] | None = None
    methods: dict[str, Operation] = field(default_factory=dict)


class Routes:
    """The tree of all paths. `/v1/{prefix}/x` is also found as `/v1/x`, for clients that know of no warehouse."""

    def __init__(self, operations: list[Operation]) -> None:
        self._root = _Node()
        for one in operations:
            parts = one.path.split("/")[1:]
            self._add(parts, one)
            if parts[1:2] == ["{prefix}"]:
                self._add([parts[0], *parts[2:]], one)
        self.reserved = frozenset(self._root.children["v1"].children)
        """First words of a path that no warehouse can have as its name."""

    def _add(self, parts: list[str], one: Operation) -> None:
        node = self._root
        for part in parts:
            if part.startswith("{"):
                name, child = node.any or (part[1:-1], _Node())
                node.any = name, child
                node = child
            else:
                node = node.children.setdefault(part, _Node())
        node.methods[one.method] = one

    def find(self, method: str, raw_path: str) -> tuple[Operation, dict[str, str]]:
        """The operation, and the names in its path; `Refused` when there is none."""
        parts = raw_path.split("/")[1:]
        names: dict[str, str] = {}
        node: _Node | None = self._root
        for part in parts[:MOST_SEGMENTS]:
            assert node is not None
            child = node.children.get(part)
            if child is None and node.any is not None and part:
                names[node.any[0]] = decoded(part)
                child = node.any[1]
            node = child
            if node is None:
                break
        if node is None or not node.methods or len(parts) > MOST_SEGMENTS:
            raise Refused("there is no such path", type="NoSuchEndpointException", code=404)
        if method not in node.methods:
            allowed = ", ".join(node.methods)
            raise Refused(
                f"{method} is not possible here, only {allowed}",
                type="MethodNotAllowedException", code=405, headers={"Allow": allowed},
            )  # fmt: skip
        return node.methods[method], names
