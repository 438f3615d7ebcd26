"""The figures of `procession bench conflux`: latency, throughput and completion time from stamps of records. Pure.

Invariant: all figures of a run come from its stamps alone. Latencies are in milliseconds, throughput is the number of
records that the reader had within a sliding window, divided by its length. Medians are over rounds; curves are those of
the round with the median of the mean latency. Upstream: `bench/stamped_reader`; downstream: `bench/conflux_report`.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

WINDOW_S = 3.0
"""Length of the sliding window, as in the paper."""
STEP_S = 0.25
CURVE_POINTS = 101

LATENCIES: dict[str, tuple[str, str]] = {
    "end_to_end": ("created_ns", "emitted_ns"),
    "source_to_process": ("created_ns", "processed_ns"),
    "source_to_sink": ("created_ns", "sunk_ns"),
    "source_to_merger": ("created_ns", "consumed_ns"),
    "sink_to_merger": ("sunk_ns", "consumed_ns"),
    "merger": ("consumed_ns", "emitted_ns"),
}
"""Each latency, between two stamps."""

PAPER: dict[str, dict[str, float]] = {
    "lanes": {
        "mean_ms": 1330.20,
        "p99_ms": 2074.0,
        "records_per_second": 250_000.0,
        "completion_s": 36.0,
        "sink_to_merger_mean_ms": 16.31,
        "sink_to_merger_p99_ms": 163.0,
        "merger_mean_ms": 620.28,
        "merger_p99_ms": 1259.0,
    },
    "baseline": {"mean_ms": 2097.33, "p99_ms": 2915.0, "records_per_second": 145_000.0, "completion_s": 60.0},
}
"""The paper's results, for ten million records on twenty machines. Its baseline had 140,000 to 150,000 records/s."""

Times = npt.NDArray[np.int64]


def run_figures(stamps: Mapping[str, Times], records: int) -> dict[str, Any]:
    """Return the figures of one run.

    Args:
        stamps: The number and the five times of each record, in the order of emission.
        records: Number of records that went in.
    """
    began_ns, ended_ns = int(stamps["created_ns"].min()), int(stamps["emitted_ns"].max())
    completion_s = (ended_ns - began_ns) / 1e9
    latencies = {}
    for name, (start, end) in LATENCIES.items():
        waits_ms = (stamps[end] - stamps[start]) / 1e6
        latencies[name] = {
            "mean_ms": float(waits_ms.mean()),
            "p50_ms": float(np.percentile(waits_ms, 50)),
            "p99_ms": float(np.percentile(waits_ms, 99)),
            "cdf_ms": [round(float(value), 3) for value in np.percentile(waits_ms, np.linspace(0, 100, CURVE_POINTS))],
        }
    return {
        "completion_s": completion_s,
        "records_per_second": records / completion_s,
        "latency": latencies,
        "throughput": sliding_throughput(stamps["emitted_ns"], began_ns, ended_ns),
    }


def sliding_throughput(emitted_ns: Times, began_ns: int, ended_ns: int) -> list[tuple[float, float]]:
    """Seconds since the beginning, and the records per second of the window that ends there. A window before which the
    run has begun is shorter."""
    emitted_s = np.sort(emitted_ns - began_ns) / 1e9
    ends = np.append(np.arange(STEP_S, (ended_ns - began_ns) / 1e9, STEP_S), (ended_ns - began_ns) / 1e9)
    starts = np.maximum(0.0, ends - WINDOW_S)
    counts = np.searchsorted(emitted_s, ends, "right") - np.searchsorted(emitted_s, starts, "right")
    return [
        (round(float(end), 3), round(float(count / (end - start)), 1))
        for start, end, count in zip(starts, ends, counts, strict=True)
    ]


def contestant_figures(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Medians over the rounds of a contestant, and the curves of the round in the middle."""
    means = [run["latency"]["end_to_end"]["mean_ms"] for run in rounds]
    middle = rounds[means.index(statistics.median_low(means))]
    return {
        "completion_s": statistics.median(run["completion_s"] for run in rounds),
        "records_per_second": statistics.median(run["records_per_second"] for run in rounds),
        "cpu_us_per_record": statistics.median(run["cpu_us_per_record"] for run in rounds),
        "throughput": middle["throughput"],
        "latency": {
            name: {
                figure: statistics.median(run["latency"][name][figure] for run in rounds)
                for figure in ("mean_ms", "p50_ms", "p99_ms")
            }
            | {"cdf_ms": middle["latency"][name]["cdf_ms"]}
            for name in LATENCIES
        },
        "rounds": [
            {
                "completion_s": run["completion_s"],
                "records_per_second": run["records_per_second"],
                "mean_ms": run["latency"]["end_to_end"]["mean_ms"],
                "p99_ms": run["latency"]["end_to_end"]["p99_ms"],
            }
            for run in rounds
        ],
    }


def ratios_to(found: Mapping[str, Mapping[str, Any]], other: str) -> dict[str, dict[str, float]]:
    """Each contestant against another: the median of the ratios of each round."""

    def ratio(name: str, figure: str) -> float:
        pairs = zip(found[name]["rounds"], found[other]["rounds"], strict=True)
        return float(statistics.median(ours[figure] / theirs[figure] for ours, theirs in pairs))

    return {
        name: {
            "throughput": ratio(name, "records_per_second"),
            "mean_latency": ratio(name, "mean_ms"),
            "p99_latency": ratio(name, "p99_ms"),
            "completion": ratio(name, "completion_s"),
        }
        for name in found
        if name != other
    }


def paper_ratios() -> dict[str, float]:
    """Conflux against its baseline, as published."""
    ours, theirs = PAPER["lanes"], PAPER["baseline"]
    return {
        "throughput": ours["records_per_second"] / theirs["records_per_second"],
        "mean_latency": ours["mean_ms"] / theirs["mean_ms"],
        "p99_latency": ours["p99_ms"] / theirs["p99_ms"],
        "completion": ours["completion_s"] / theirs["completion_s"],
    }
