"""Benchmarks of speed, one file a subject; the scripts `bench_*` print them."""
