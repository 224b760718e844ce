"""One script per question, peers in the same run: `python -m benchmarks`. The method: docs/benchmarks.md."""
