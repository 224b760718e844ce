"""Objects: tables as values, in a store that knows their names, counts who uses them and locks the shared ones."""
