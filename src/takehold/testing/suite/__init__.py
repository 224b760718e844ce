"""The conformance suite: what every backend must do, on both faces. Shipped, so that yours can be held to it."""

# ruff: noqa: F403 - a test module imports everything, and so does this one
from takehold.testing.suite.bad_input import *
from takehold.testing.suite.cancelling import *
from takehold.testing.suite.exclusion import *
from takehold.testing.suite.fixtures import *
from takehold.testing.suite.loss import *
from takehold.testing.suite.many_keys import *
from takehold.testing.suite.processes import *
from takehold.testing.suite.recipes import *
from takehold.testing.suite.seeing import *
from takehold.testing.suite.waiting import *
