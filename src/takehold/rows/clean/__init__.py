"""Values from outside, made fit for their columns; what is lost on the way is logged and told, never silent.

Pure functions: nothing here needs a session. `docs/clean.md` says which to use when.
"""

from __future__ import annotations

from takehold.rows.clean.characters import text, texts
from takehold.rows.clean.columns import fit_column, records
from takehold.rows.clean.losses import Event, Notifier, Summary, log
from takehold.rows.clean.properties import fit_properties, json, yaml_json
from takehold.rows.clean.topic import sns

__all__ = [
    "Event",
    "Notifier",
    "Summary",
    "fit_column",
    "fit_properties",
    "json",
    "log",
    "records",
    "sns",
    "text",
    "texts",
    "yaml_json",
]

# Tracebacks and reprs show where users import from.
for _name in __all__:
    if _name != "Notifier":
        globals()[_name].__module__ = __name__
del _name
