# Commands for people working on takehold; CONTRIBUTING.md says what each is for and how long it takes.
.DEFAULT_GOAL := check
.PHONY: setup serve demo check test prove bench clean

python := .venv/bin/python

setup: ## make .venv with every extra and the test tools; at once when nothing changed
	@bash scripts/setup

serve: setup ## the embedded default: an Iceberg catalog on loopback, in the directory lake, and what to try
	@bash scripts/serve

demo: setup ## the embedded default at work, in a few seconds
	@bash scripts/demo

check: setup ## format, lint, types, fast tests: under 30 s
	$(python) -m ruff check --fix
	$(python) -m ruff format
	$(python) -m mypy
	$(python) -m pytest -q -m "not slow and not crash" tests/core tests/conformance/test_memory.py tests/test_shape.py

test: setup ## everything, at scaled counts: what CI runs; changes no file
	$(python) -m ruff format --check
	$(python) -m ruff check
	$(python) -m mypy
	$(python) -m pytest --covers --numprocesses=2 --dist=loadfile || bash scripts/alone

prove: setup ## everything, at full counts
	TAKEHOLD_PROVE=1 $(python) -m pytest --covers -o faulthandler_timeout=3600

bench: setup ## one table per question, peers in the same run
	$(python) -m benchmarks

clean: ## remove what the commands above made
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
