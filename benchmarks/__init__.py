"""Timings, run by hand: `python -m benchmarks.NAME`."""
