"""A process that takes keys through the library and answers questions about them: ``holder.py URL KEY ...``."""

from __future__ import annotations

import sys

from takehold import Locks


def main(url: str, *keys: str) -> None:
    locks = Locks(url, label="holder", check_order="off")
    holds = {}
    for key in keys:
        holds[key] = locks.lock(key, timeout=10).acquire()  # the line that others are told about
        say(holds[key].id)
    for question in sys.stdin:
        say("lost" if holds[question.strip()].lost else "held")


def say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
