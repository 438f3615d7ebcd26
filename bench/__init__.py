"""Benchmarks: each prints what it measured and the command that repeats it. `python -m bench` runs them all."""
