"""Benchmarks of `procession bench`. Each module returns figures and formats them as lines.

Invariant: what counts is a ratio of variants that are measured alternately in one run on one machine; absolute figures
depend on the load.
"""
