"""Reading the corpus: batches of fragments, what is known of each, and which are gone."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from typing import Final

from takehold import UsageError
from takehold.fragments.backlog import Work
from takehold.fragments.corpus import Corpus
from takehold.fragments.counts import Counts, Failure
from takehold.fragments.fragment import Fragment
from takehold.fragments.ledger import Ledger

__all__ = ["Reader"]

BATCH: Final = 500


class Reader:
    """Goes once through a corpus, from a document of its own choice. One caller at a time reads."""

    def __init__(self, corpus: Corpus, ledger: Ledger, counts: Counts, attempts: int) -> None:
        self._corpus = corpus
        self._ledger = ledger
        self._counts = counts
        self._attempts = attempts
        documents = list(corpus.documents())
        start = random.randrange(len(documents)) if documents else 0
        self._documents = documents[start:] + documents[:start]
        self._next = 0
        self._over: list[tuple[Fragment, object]] = []
        self._seen: set[str] = set()
        self._mutex = threading.Lock()
        self._unread: set[str] = set()
        self._known_here = 0
        self._again = _Again(corpus)
        counts.documents = len(documents)

    def read(self) -> tuple[list[Work], bool]:
        """The next of what is due, and whether that was the last of it."""
        while True:
            batch = self._batch()
            if not batch:
                return self._gone(), True
            try:
                due = self._due(batch)
            except BaseException:
                self._over = batch + self._over  # it is read already, and asked for again
                raise
            if due:
                return due, False

    def _batch(self) -> list[tuple[Fragment, object]]:
        batch = self._over
        while len(batch) < BATCH and self._next < len(self._documents):
            document = self._documents[self._next]
            self._next += 1
            version: object = None
            fragments: Sequence[Fragment] = ()
            try:
                # Its version first: if it changes while it is read, what we read does not pass for the newer one.
                version = self._corpus.version(document)
                fragments = _fragments(self._corpus, document) if version is not None else ()
            except BaseException as error:  # noqa: BLE001 - one document that cannot be read does not stop the others
                self.unreadable(document, error)
            self._counts.read += 1
            self._counts.seen += len(fragments)
            self._seen.update(fragment.identity for fragment in fragments)
            batch += [(fragment, version) for fragment in fragments]
        self._over = batch[BATCH:]
        return batch[:BATCH]

    def unreadable(self, document: str, error: BaseException) -> None:
        """Report a document, once; what is known of it stays."""
        with self._mutex:
            if document in self._unread:
                return
            self._unread.add(document)
        error_text = f"{type(error).__name__}: {error}"
        self._counts.failures.append(Failure(f"{self._corpus.name}/{document}", error_text, 0))

    def _due(self, batch: Sequence[tuple[Fragment, object]]) -> list[Work]:
        known = self._ledger.find(fragment.identity for fragment, _ in batch)
        self._known_here += len(known)
        due = []
        for fragment, version in batch:
            past = known.get(fragment.identity, {}).get(fragment.hash)
            if past is not None and past.done:
                self._counts.unchanged += 1
            elif past is not None and past.failed(self._attempts):
                self._counts.failed += 1
                self._counts.failures.append(Failure(fragment.identity, past.error or "", past.attempts))
            else:
                due.append(work_of(fragment, version))
        return due

    def _gone(self) -> list[Work]:
        """What has results and is in no document any more. A corpus without any document removes nothing."""
        if not self._documents:
            return []
        return [
            Work(identity, self._corpus.name, document, digest, None)
            for identity, document, digest in self._ledger.known(self._corpus.name)
            if identity not in self._seen and document not in self._unread
        ]

    def current(self, work: Work) -> Work | None:
        """The same work if its document is as it was, another if it has changed; None when nothing is left to do.

        Raises what is wrong with the document.
        """
        version = self._corpus.version(work.document)
        if work.fragment is not None and version == work.version:
            return work
        fragment = self._again.find(work.document, version, work.identity)
        if work.fragment is None:
            # Removals are made from what was read a while ago: who is there again is not gone.
            return work if fragment is None else None
        if fragment is None:
            return Work(work.identity, work.corpus, work.document, work.hash, None)
        if fragment.hash == work.hash:
            work.version = version
            return work
        return work_of(fragment, version)


class _Again:
    """Documents that have changed since, read once more; the newest few are kept."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        self._mutex = threading.Lock()
        self._kept: dict[str, tuple[object, dict[str, Fragment]]] = {}

    def find(self, document: str, version: object, identity: str) -> Fragment | None:
        if version is None:
            return None
        with self._mutex:
            kept = self._kept.get(document)
            if kept is None or kept[0] != version:
                pieces = {fragment.identity: fragment for fragment in _fragments(self._corpus, document)}
                kept = self._kept[document] = version, pieces
                while len(self._kept) > 8:
                    self._kept.pop(next(iter(self._kept)))
            return kept[1].get(identity)


def _fragments(corpus: Corpus, document: str) -> Sequence[Fragment]:
    """All of a document; `UsageError` when two have one name: only one of them could have a result."""
    found = corpus.fragments(document)
    names: set[str] = set()
    for fragment in found:
        if fragment.identity in names:
            raise UsageError(f"two fragments of one document have the same name, {fragment.name!r}")
        names.add(fragment.identity)
    return found


def work_of(fragment: Fragment, version: object) -> Work:
    """What is to be done with a fragment."""
    return Work(fragment.identity, fragment.corpus, fragment.document, fragment.hash, fragment, version)
