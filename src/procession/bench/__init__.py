"""Benchmarks of `procession bench`. Each module returns figures and formats them as lines.

Invariant: results are ratios of variants that are measured alternately in one run on one machine. Absolute figures
depend on the load.
"""
