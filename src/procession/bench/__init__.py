"""Benchmarks: what `procession bench` measures. Each module gives figures and tells them in lines.

The one rule: what counts is a ratio of things measured in turn, in one run, on one machine; figures alone say how busy
it was. Before it `cli/bench_command`, which names them and prints; after it whatever is measured.
"""
