"""What Takehold is tested with, shipped: for your own tests, and for a backend of your own.

For the tests of an application: `busy`, `lose` and `no_waiting` make locks misbehave on request, and
`takehold.testing.plugin` has the fixtures `locks` and `async_locks`. For a backend: `takehold.testing.suite`
is the conformance suite, `Taker` a process that takes a lock and waits to be killed, `Simulation` virtual
time with a seeded interleaving. For a store of the catalog: `takehold.testing.stores` is the suite. For what
writes files: `SimulatedDisk`, and `explore` to go through all its crashes.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from takehold.testing.crashes import explore
    from takehold.testing.disk import SimulatedDisk
    from takehold.testing.faults import busy, lose, no_waiting
    from takehold.testing.simulation import Simulation
    from takehold.testing.taker import Taker

__all__ = ["SimulatedDisk", "Simulation", "Taker", "busy", "explore", "lose", "no_waiting"]

_HOMES = {
    "SimulatedDisk": "disk",
    "Simulation": "simulation",
    "Taker": "taker",
    "busy": "faults",
    "explore": "crashes",
    "lose": "faults",
    "no_waiting": "faults",
}


def __getattr__(name: str) -> Any:
    """Loaded when asked for: the process to be killed must start fast, and must not import itself twice."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
