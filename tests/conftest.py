"""What every test shares: the run header, the lanes of Hypothesis, the ``--covers`` report."""

from __future__ import annotations

import platform
import signal
import sys
from datetime import timedelta

from hypothesis import settings

from tests import lanes

pytest_plugins = ["tests.covers", "tests.servers.fixtures", "takehold.testing.plugin"]

# Same examples on every run, so that a red run is red again; `make prove` looks further and at random.
settings.register_profile("scaled", derandomize=True, max_examples=50, deadline=None, database=None)
settings.register_profile("prove", max_examples=2_000, deadline=timedelta(minutes=1), print_blob=True)
settings.load_profile("prove" if lanes.PROVE else "scaled")


# A shell without job control starts what it puts in the background deaf to Ctrl-C; tests about it need ears.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def pytest_report_header() -> list[str]:
    implementation = f"{platform.python_implementation()} {platform.python_version()}"
    switch = f"switch interval {sys.getswitchinterval() * 1e3:g} ms"
    return [
        f"takehold: {implementation}, {platform.system()} {platform.release()}, {switch}",
        f"lane: {lanes.describe()}",
    ]
