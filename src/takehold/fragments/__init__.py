"""Fragments of a corpus, each processed once, by any number of replicas. See `docs/fragments.md`."""

from __future__ import annotations

try:
    import sqlalchemy  # noqa: F401
    import xxhash  # noqa: F401
except ImportError as error:
    raise ImportError(f"takehold.fragments needs {error.name}: pip install 'takehold[fragments]'") from error

from takehold.fragments.corpus import Corpus, Folder
from takehold.fragments.counts import Counts, Failure
from takehold.fragments.fragment import Fragment, content_hash, content_key
from takehold.fragments.looking import Failed, InHand, Look, Tally
from takehold.fragments.pipeline import Pipeline
from takehold.fragments.splitting import SPLITTERS, json_lines, markdown, paragraphs, whole
from takehold.fragments.worker import AsyncWorker, Worker

__all__ = [
    "SPLITTERS",
    "AsyncWorker",
    "Corpus",
    "Counts",
    "Failed",
    "Failure",
    "Folder",
    "Fragment",
    "InHand",
    "Look",
    "Pipeline",
    "Tally",
    "Worker",
    "content_hash",
    "content_key",
    "json_lines",
    "markdown",
    "paragraphs",
    "whole",
]
