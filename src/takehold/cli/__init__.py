"""The command line: `takehold run`, `ls`, `who`, `evict`, `doctor`, `init`, `bench`. Blocking face only."""

from takehold.cli.command import main

__all__ = ["main"]
