"""The command line: `takehold run`, `ls`, `who`, `evict`, `init`, `bench`. No dependency, blocking face only."""

from takehold.cli.command import main

__all__ = ["main"]
