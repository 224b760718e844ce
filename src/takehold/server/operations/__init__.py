"""Every operation, by what it is about. Importing this registers all of them."""

from takehold.server.operations import changes, configuration, namespaces, tables, unsupported, views, warehouses

__all__ = ["changes", "configuration", "namespaces", "tables", "unsupported", "views", "warehouses"]
