"""Benchmarks: `python -m benchmarks`, or `make bench`. What each measures, and how: benchmarks/README.md."""
