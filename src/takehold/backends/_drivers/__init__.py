"""The only place that imports database drivers. Nothing here is imported before a URL asks for it."""
