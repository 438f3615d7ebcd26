"""Measures the overhead of total order: Listing 1 with order and without it, alternating for many rounds.

Both variants run in one warm Spark, one after the other, and the variant that begins a round alternates. Other load
on the machine affects a single round. So the result is the median of the rounds' ratios with its quartiles, and the
ratio of the processor time of all processes, which depends least on other load.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from procession.bench import listing1
from procession.bench.listing1 import Listing1Setup

VARIANTS = ("ordered", "unordered")


def measure(setup: Listing1Setup) -> dict[str, Any]:
    found = listing1.measure(replace(setup, variants=VARIANTS))
    return {**found, "overhead": overhead(found["rounds"])}


def overhead(rounds: Mapping[str, list[Mapping[str, float]]]) -> dict[str, float]:
    """Return the ratios of order to no order for throughput, and the inverse ratios for processor time, so that a
    larger value is better in both."""
    pairs = list(zip(rounds["ordered"], rounds["unordered"], strict=True))
    throughput = [ours["records_per_second"] / theirs["records_per_second"] for ours, theirs in pairs]
    cpu = [theirs["cpu_us_per_record"] / ours["cpu_us_per_record"] for ours, theirs in pairs]
    return {
        "throughput": statistics.median(throughput),
        "throughput_low": quartile(throughput, 1),
        "throughput_high": quartile(throughput, 3),
        "cpu": statistics.median(cpu),
        "cpu_low": quartile(cpu, 1),
        "cpu_high": quartile(cpu, 3),
    }


def quartile(values: list[float], number: int) -> float:
    return values[0] if len(values) == 1 else statistics.quantiles(values, n=4, method="inclusive")[number - 1]


def report_lines(figures: Mapping[str, Any]) -> Iterator[str]:
    for variant in VARIANTS:
        row = figures[variant]
        yield (
            f"{variant:10} {row['records_per_second']:11,.0f} records/s, processor time"
            f" {row['cpu_us_per_record']:5.2f} µs/record"
        )
    found = figures["overhead"]
    yield (
        f"ordered / unordered, median of {len(figures['rounds']['ordered'])} rounds and quartiles: throughput"
        f" {found['throughput']:.3f} ({found['throughput_low']:.3f} to {found['throughput_high']:.3f}), processor time"
        f" {found['cpu']:.3f} ({found['cpu_low']:.3f} to {found['cpu_high']:.3f})"
    )
