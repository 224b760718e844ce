"""Table and view metadata: from a base and a list of updates to the next version.

Pure functions over plain dicts, as JSON has them. Nothing given is changed; the result shares its untouched parts
with the base, and keys that nobody here knows survive. The catalog writes what comes out, and swaps the pointer.
"""

from takehold.iceberg.metadata.errors import BadUpdate, RequirementFailed, RetryableValidation
from takehold.iceberg.metadata.outside import check_table, check_view
from takehold.iceberg.metadata.table import new_table, update_table
from takehold.iceberg.metadata.view import new_view, update_view

__all__ = [
    "BadUpdate",
    "RequirementFailed",
    "RetryableValidation",
    "check_table",
    "check_view",
    "new_table",
    "new_view",
    "update_table",
    "update_view",
]
