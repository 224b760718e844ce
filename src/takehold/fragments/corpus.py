"""Where fragments come from. `Folder` is a directory of documents; anything with these methods is a corpus."""

from __future__ import annotations

import os
import stat
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from takehold import UsageError
from takehold.fragments.fragment import Fragment
from takehold.fragments.splitting import SPLITTERS, Splitter

__all__ = ["Corpus", "Folder"]


class Corpus(Protocol):
    """Named documents, each of them some fragments. Called from several threads."""

    @property
    def name(self) -> str:
        """The first part of every identity: the same for all replicas."""

    def documents(self) -> Sequence[str]:
        """The names of all documents, in an order that stays."""

    def version(self, document: str) -> Hashable | None:
        """Something that is another thing when the document has changed, cheap to ask for; None when it is gone."""

    def fragments(self, document: str) -> Sequence[Fragment]:
        """All of a document, in its order. What it raises is reported for this document and ends nothing."""


class Folder:
    """The Markdown, text and JSON lines files of a directory and of those below it.

    `name` is the directory's own unless given: replicas that mount it elsewhere must give the same, and another
    directory on the same ledger must have another, or each removes the results of the other. `splitters`
    says by suffix how a file is split; what has none of the suffixes, or a name that begins with a dot, is left out.
    """

    def __init__(
        self, path: str | os.PathLike[str], name: str | None = None, *, splitters: Mapping[str, Splitter] = SPLITTERS
    ) -> None:
        self._path = Path(path).resolve()
        if not self._path.is_dir():
            raise UsageError(f"a corpus is a directory; there is none at {str(path)!r}")
        self._name = self._path.name or "root" if name is None else name
        if not self._name or "/" in self._name or "#" in self._name:
            raise UsageError(f"the name of a corpus is text without / and #, not {self._name!r}")
        self._splitters = {suffix.lower(): splitter for suffix, splitter in splitters.items()}

    def __repr__(self) -> str:
        return f"<Folder {self._name!r} at {str(self._path)!r}>"

    @property
    def name(self) -> str:
        """The first part of every identity."""
        return self._name

    def documents(self) -> list[str]:
        """Paths below the directory, with slashes, sorted."""
        return sorted(self._walk())

    def _walk(self) -> Iterator[str]:
        for folder, below, files in os.walk(self._path, onerror=_raise):
            below[:] = [name for name in below if not name.startswith(".")]
            for name in files:
                if name.startswith(".") or self._splitter(name) is None:
                    continue
                path = Path(folder) / name
                if not _is_other(path):
                    yield path.relative_to(self._path).as_posix()

    def _splitter(self, document: str) -> Splitter | None:
        return self._splitters.get(os.path.splitext(document)[1].lower())

    def version(self, document: str) -> Hashable | None:
        """Inode, size and times: what changes with every write. `OSError` when a link leads nowhere."""
        path = self._path / document
        try:
            seen = os.stat(path)
        except FileNotFoundError:
            if path.is_symlink():
                raise  # what it leads to is away, perhaps for a while, and nobody has removed the document
            return None
        if not stat.S_ISREG(seen.st_mode):
            return None
        return seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns

    def fragments(self, document: str) -> list[Fragment]:
        """The pieces of one file; `ValueError` when it is not UTF-8."""
        splitter = self._splitter(document)
        if splitter is None:
            raise UsageError(f"{document!r} is no document of {self!r}")
        text = _bytes_of(self._path / document).decode().removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}")
        return [Fragment(self._name, document, name, content) for name, content in splitter(text)]


def _is_other(path: Path) -> bool:
    """Whether it is a pipe, a device or the like. What cannot be told is a document, with an error when it is read."""
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False


def _bytes_of(path: Path) -> bytes:
    # A pipe that has taken the place of the file would wait for a writer, with all that is to be read behind it.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{str(path)!r} is no regular file")
        return file.read()


def _raise(error: OSError) -> None:
    # A directory that cannot be read is not one without documents: their results would be removed.
    raise error
