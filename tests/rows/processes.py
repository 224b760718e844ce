"""Real processes that start together. The child is this file too: ``python -m tests.rows.processes module:name``."""

from __future__ import annotations

import contextlib
import importlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any, Self

from tests.rows.places import Place

ROOT = Path(__file__).parent.parent.parent
PATIENCE = 100.0  # seconds


def run_processes(count: int, function: str, place: Place, *args: Any) -> list[Any]:
    """Call ``function(place, number, *args)`` in so many processes at once; what they returned, in order of number.

    ``function`` is ``"tests.rows.module:name"``; arguments and results are JSON. One that fails fails the test.
    """
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(_Child(function)) for _ in range(count)]
        for number, child in enumerate(children):
            child.tell({"place": place.description(), "number": number, "args": args})
        for child in children:
            child.hear()
        for child in children:
            child.tell("go")
        return [child.hear() for child in children]


class _Child:
    """One process; it is killed if the test ends before it does."""

    def __init__(self, function: str) -> None:
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - closed at our exit
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, function],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=ROOT,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def tell(self, message: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has died, which `hear` reports
            _write(self._process.stdin, message)

    def hear(self) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait(PATIENCE)
            self._errors.seek(0)
            raise AssertionError(f"a process ended with {code}:\n{self._errors.read()}")
        return json.loads(line)


def _write(pipe: IO[str] | None, message: Any) -> None:
    assert pipe
    pipe.write(json.dumps(message) + "\n")
    pipe.flush()


def main(function: str) -> None:
    """The child: says that it is ready, waits for the word, works, says what came of it."""
    out, sys.stdout = sys.stdout, sys.stderr  # what the function prints is no answer
    module, _, name = function.partition(":")
    work = getattr(importlib.import_module(module), name)
    given = json.loads(sys.stdin.readline())
    place = Place(**given["place"])
    _write(out, "ready")
    if sys.stdin.readline():  # nothing, if the test has ended
        _write(out, work(place, given["number"], *given["args"]))
    place.dispose()


if __name__ == "__main__":
    main(sys.argv[1])
