"""The error tree: its shape, its sentences, and that errors survive a process boundary."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

import takehold
from takehold import Owner, TakeholdError, errors


def every_class(root: type[TakeholdError] = TakeholdError) -> Iterator[type[TakeholdError]]:
    yield root
    for below in root.__subclasses__():
        yield from every_class(below)


OWNER = Owner("web-3", 4121, "ship", "ship.py:14")
# Those of the core: a system on top may have one of its own, and another test may have imported it.
CLASSES = sorted({cls for cls in every_class() if cls.__module__ == "takehold"}, key=lambda cls: cls.__name__)


@pytest.mark.parametrize("cls", CLASSES)
def test_an_error_survives_pickling_with_its_facts(cls: type[TakeholdError]) -> None:
    error = cls("'k' not acquired", key="k", waited=2.5, owner=OWNER, held_for=14.2, reason="cut")
    error.__notes__ = ["seen in a worker"]
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is cls
    assert str(again) == "'k' not acquired"
    facts = {"key": "k", "waited": 2.5, "owner": OWNER, "held_for": 14.2, "reason": "cut"}
    assert {name: getattr(again, name) for name in facts} == facts
    assert again.__notes__ == ["seen in a worker"]


@pytest.mark.parametrize("cls", CLASSES)
def test_an_error_needs_no_facts(cls: type[TakeholdError]) -> None:
    assert str(pickle.loads(pickle.dumps(cls()))) == ""
    assert str(cls("sentence")) == "sentence"


def test_the_tree_is_the_one_in_the_documentation() -> None:
    """Read the tree from the docstring and compare it with the classes."""
    assert errors.__doc__ is not None
    stack: list[str] = []
    drawn: dict[str, str] = {}
    for line in errors.__doc__.splitlines():
        name = next((word for word in line.replace("─", " ").split() if hasattr(errors, word)), None)
        if name is None or (stack and not any(mark in line for mark in "├└│")):
            continue
        depth = line.index(name) // 4
        del stack[depth:]
        if stack:
            drawn[name] = stack[-1]
        stack.append(name)
    classes = [cls for cls in CLASSES if cls is not TakeholdError]
    assert drawn == {cls.__name__: cls.__bases__[0].__name__ for cls in classes}


def test_errors_are_what_python_people_expect() -> None:
    assert issubclass(takehold.LockTimeout, TimeoutError)
    assert issubclass(takehold.UsageError, ValueError)
    assert not issubclass(takehold.UnknownOutcome, takehold.BackendError)
    assert issubclass(takehold.LockOrderWarning, RuntimeWarning)
    assert {
        cls.__module__ for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, TakeholdError)
    } == {"takehold"}
