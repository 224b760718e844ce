"""How a commit is refused: the requests that are wrong, and the ones that came too late."""

from __future__ import annotations

from takehold import CommitConflict, UsageError

__all__ = ["BadUpdate", "RequirementFailed", "RetryableValidation"]


class RequirementFailed(CommitConflict):
    """The table is not what the client saw: read it again and retry (REST: 409 CommitFailedException)."""


class RetryableValidation(RequirementFailed):
    """A sequence number or row id was overtaken by another commit (REST: 409 as well)."""


class BadUpdate(UsageError):
    """The request can never be applied to this table (REST: 400 BadRequestException)."""
