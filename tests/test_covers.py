"""Every promised behaviour has a test that carries its id.

That one of them passes is for ``pytest --covers`` in ``make test``.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_every_promised_behaviour_has_a_test() -> None:
    # A process of its own: the run around us may have selected only some tests.
    command = [sys.executable, "-m", "pytest", "--collect-only", "--covers", "-qq", "-p", "no:cacheprovider"]
    collected = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert collected.returncode == 0, "\n".join(collected.stdout.splitlines()[-5:]) + collected.stderr
