"""The conformance suite: what every backend must do, on both faces. Shipped, so that yours can be held to it.

One module runs all of it on a backend. It imports the cases and says where the backend is:

    import pytest
    from takehold.testing.suite import *

    @pytest.fixture
    def backend_url(tmp_path):
        return f"file:{tmp_path}/locks"         # or a backend object of your own

with `pytest_plugins = ["takehold.testing.plugin"]` in `conftest.py`, which makes the marks known. The place may
be the same for all tests: each uses a namespace of its own, and fails if it leaves anything held or waiting.

A case is skipped only for what the backend does not declare in its `Capabilities`; `requires` says what a case
needs. Counts are a tenth of the full ones unless `TAKEHOLD_PROVE=1`; override the fixture `scaled` for others.
Cases that take long are marked `slow`, those that start and kill processes `crash`; `covers` has the numbers of
the behaviours a case shows. Cases of your own can use the same fixtures: `face`, `thread_face`, `asyncio_face`,
`both_faces`, `capabilities`, `scaled`; `takehold.testing.faces` says what a face is.
"""

# ruff: noqa: F403 - a test module imports everything, and so does this one
from takehold.testing.suite.bad_input import *
from takehold.testing.suite.cancelling import *
from takehold.testing.suite.exclusion import *
from takehold.testing.suite.fixtures import *
from takehold.testing.suite.interrupting import *
from takehold.testing.suite.loss import *
from takehold.testing.suite.many_keys import *
from takehold.testing.suite.processes import *
from takehold.testing.suite.recipes import *
from takehold.testing.suite.seeing import *
from takehold.testing.suite.waiting import *
