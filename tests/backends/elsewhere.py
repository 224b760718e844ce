"""What another process says, for tests that need one for a moment."""

from __future__ import annotations

import subprocess
import sys

from takehold import Hold


def elsewhere(code: str, *arguments: str) -> str:
    """What a script says in another process."""
    command = [sys.executable, "-c", "import sys, takehold\n" + code, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert ended.returncode == 0, f"ended with {ended.returncode}: {ended.stderr}"
    return ended.stdout.strip()


def evicted_elsewhere(url: str, hold: Hold) -> bool:
    """Another process asks for the hold; whether it got it."""
    return elsewhere("print(takehold.Locks(sys.argv[1]).evict(sys.argv[2]))", url, hold.id) == "True"
