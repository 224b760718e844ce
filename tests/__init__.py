"""Tests of takehold; CONTRIBUTING.md says which lane runs what."""
