"""What users touch: `Locks` and `AsyncLocks`, their requests and their holds."""
