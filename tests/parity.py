"""Compares a blocking class with its async twin: same names, same parameters, same annotations.

What must differ is translated away first: ``AsyncHold`` reads as ``Hold``, ``Awaitable[X]`` as ``X``,
``__aenter__`` as ``__enter__``.
"""

from __future__ import annotations

import ast
import inspect
import typing
from typing import Any

DUNDERS = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
}
AWAITED = {"Awaitable", "Coroutine", "CoroutineType"}
MEMBERS_OF_EVERY_CLASS = {"__init__", "__call__", "__bool__", "__contains__", "__len__"}


# What only one face can have, with the reason.
ONE_FACE = {
    "lock": (", on_lost: Literal[cancel, tell] = 'cancel'", "a thread cannot be cancelled from outside, a task can"),
}


def differences(blocking: type, twin: type) -> list[str]:
    """What a user who knows ``blocking`` would find different in ``twin``; empty when nothing."""
    ours, theirs = _surface(blocking), _surface(twin)
    found = [f"{blocking.__name__}.{name} has no twin" for name in sorted(ours.keys() - theirs.keys())]
    found += [f"{twin.__name__}.{name} has no twin" for name in sorted(theirs.keys() - ours.keys())]
    for name in sorted(ours.keys() & theirs.keys()):
        mine, other = _describe(ours[name]), _describe(theirs[name])
        if name in ONE_FACE:
            other = [text.replace(ONE_FACE[name][0], "") for text in other]
        if mine != other:
            found.append(f"{blocking.__name__}.{name} is {mine}, of the twin {other}")
    return found


def positional_flags(value: object) -> list[str]:
    """Parameters that a caller could write as a bare ``True``, in a public function or class."""
    members = _surface(value) if isinstance(value, type) else {getattr(value, "__name__", ""): value}
    return [
        f"{name}({parameter.name})"
        for name, member in members.items()
        if inspect.isfunction(function := _function(member))
        for parameter in inspect.signature(function).parameters.values()
        if isinstance(parameter.default, bool) or str(parameter.annotation) in {"bool", "<class 'bool'>"}
        if parameter.kind is not parameter.KEYWORD_ONLY
    ]


def _surface(cls: type) -> dict[str, object]:
    """Public members and those special methods that users meet, under the blocking name."""
    members: dict[str, object] = {}
    for base in reversed(cls.__mro__[:-1]):
        for name, value in vars(base).items():
            name = DUNDERS.get(name, name)  # noqa: PLW2901 - the same member, translated
            if not name.startswith("_") or name in MEMBERS_OF_EVERY_CLASS or name in DUNDERS.values():
                members[name] = value
    return members


def _describe(member: object) -> list[str]:
    """Kind and signatures as text, overloads first, with everything that must differ translated."""
    if isinstance(member, property):
        return ["property", *(_signature(f) for f in (member.fget, member.fset, member.fdel) if f)]
    kind = type(member).__name__ if isinstance(member, classmethod | staticmethod) else "method"
    function = _function(member)
    if not inspect.isfunction(function):
        return ["attribute"]
    return [kind, *map(_signature, typing.get_overloads(function)), _signature(function)]


def _function(member: object) -> object:
    return member.__func__ if isinstance(member, classmethod | staticmethod) else member


def _signature(function: Any) -> str:
    signature = inspect.signature(function)
    parameters = [
        one.replace(annotation=_Plain(one.annotation)) if one.annotation is not one.empty else one
        for one in signature.parameters.values()
    ]
    result = signature.return_annotation
    if result is not signature.empty:
        result = _Plain(result)
    return str(signature.replace(parameters=parameters, return_annotation=result))


class _Plain:
    """An annotation as text, in the blocking reading."""

    def __init__(self, annotation: object) -> None:
        text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
        self._text = ast.unparse(_Translate().visit(ast.parse(text, mode="eval")))

    def __repr__(self) -> str:
        return self._text


class _Translate(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Name(node.id.replace("Async", ""))

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        # takehold.locks.AsyncHold and AsyncHold are one name, whatever the module wrote.
        return self.visit_Name(ast.Name(node.attr))

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if not isinstance(node.value, str):
            return node
        try:
            quoted = ast.parse(node.value, mode="eval").body
        except SyntaxError:  # Literal["some text"]
            return node
        return node if isinstance(quoted, ast.Constant) else typing.cast("ast.expr", self.visit(quoted))

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        plain = typing.cast("ast.Subscript", self.generic_visit(node))
        if not (isinstance(plain.value, ast.Name) and plain.value.id in AWAITED):
            return plain
        return plain.slice.elts[-1] if isinstance(plain.slice, ast.Tuple) else plain.slice

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        """``T | Awaitable[T]`` becomes ``T``: an async face may take both colours of a callback."""
        plain = typing.cast("ast.BinOp", self.generic_visit(node))
        members = {ast.unparse(one) for one in _members(plain.left)}
        return plain.left if ast.unparse(plain.right) in members else plain


def _members(union: ast.expr) -> list[ast.expr]:
    if isinstance(union, ast.BinOp):
        return [*_members(union.left), *_members(union.right)]
    return [union]
