"""Benchmarks of speed, one file per subject; `scripts/bench.py` runs them."""
