"""Repeats Conflux's evaluation with our pipelines: cost and benefit of total order, with and without separate
mergers.

Six contestants run the same workload in turn, for several rounds. `lanes` writes sorted lanes to Kafka, and the
reader merges them; so does `blocks`, with many records in a message. `ordered` is the pipeline's own ordered sink,
`unordered` the same pipeline without order, `sequential` has one task, and `baseline` is a window sort on plain Spark.
Each run is checked: the output has all records once and in order. The steady state is measured. So each contestant
first has a long run that does not count, and a short run before each measured run. The short run is needed because
Spark ends Python workers after an idle minute, and the runs of the other contestants take longer. Records carry five
times: creation, process, sink, consume and emit. Results are medians; ratios are medians over the ratios of each
round.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from procession.bench.conflux_contestants import BASELINE, ConfluxSetup, Contestant, running_contestant
from procession.bench.conflux_figures import PAPER, contestant_figures, paper_ratios, ratios_to, run_figures
from procession.bench.stamped_records import RECORD, expected_numbers
from procession.bench.workload import WORKLOADS
from procession.chaos.kafka_server import KafkaServer
from procession.errors import StorageError


def measure(given: ConfluxSetup, workloads: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the figures after each workload, including the earlier ones, so that an interrupted run keeps its
    figures."""
    found: dict[str, Any] = {}
    with (
        tempfile.TemporaryDirectory(prefix="procession-bench-", ignore_cleanup_errors=True) as work,
        KafkaServer() as server,
    ):
        for workload in workloads:
            found[workload] = _measure_workload(given, workload, server, Path(work) / workload)
            yield {
                "records": given.records,
                "burn_ns": given.burn_ns,
                "rounds": given.rounds,
                "epoch_records": given.epoch_records,
                "records_in_flight_max": given.in_flight,
                "rate": given.rate,
                "record_bytes": RECORD.itemsize,
                "workloads": dict(found),
                "paper": {**PAPER, "ratios": paper_ratios()},
            }


def _measure_workload(given: ConfluxSetup, workload: str, server: KafkaServer, work: Path) -> dict[str, Any]:
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in given.contestants}
    with ExitStack() as stack:
        running = [
            stack.enter_context(running_contestant(name, workload, given, server, work / name))
            for name in given.contestants
        ]
        for number in range(1 + given.rounds):
            # The order of contestants changes in each round, so that other load affects all of them equally.
            for place in range(len(running)):
                contestant = running[(number + place) % len(running)]
                idle = [other for other in running if other is not contestant]
                _run(contestant, given.in_flight if number else given.warm_records, given.rate, idle)
                if number:
                    runs[contestant.name].append(_run(contestant, given.records, given.rate, idle))
    found = {name: contestant_figures(results) for name, results in runs.items()}
    return {
        "contestants": found,
        "ratios_to_baseline": ratios_to(found, BASELINE) if BASELINE in found else {},
        "lanes": given.lanes_of(workload),
        "tasks": [segment.tasks for segment in WORKLOADS[workload]],
        "records_out": len(expected_numbers(given.records)),
    }


def _run(contestant: Contestant, records: int, rate: float, idle: Sequence[Contestant]) -> dict[str, Any]:
    stamps, used_s = contestant.run(records, rate, idle)
    check_numbers(stamps["number"], records, is_ordered=contestant.name != "unordered")
    return {**run_figures(stamps, records), "cpu_us_per_record": used_s / records * 1e6}


def check_numbers(numbers: Any, records: int, *, is_ordered: bool) -> None:
    """Raise StorageError unless these are the expected numbers, each once, and in order if requested."""
    expected = expected_numbers(records)
    given = numbers if is_ordered else np.sort(numbers)
    if len(given) != len(expected):
        raise StorageError(f"{len(given):,} records came out, not {len(expected):,}")
    if (given != expected).any():
        row = int(np.argmax(given != expected))
        raise StorageError(f"record {given[row]} came out where record {expected[row]} must be")


def report_lines(figures: Mapping[str, Any]) -> Iterator[str]:
    for workload, result in figures["workloads"].items():
        yield f"{workload}, {figures['burn_ns']:,} ns burned per record and stage"
        for name, row in result["contestants"].items():
            latency = row["latency"]["end_to_end"]
            line = (
                f"  {name:10} {row['records_per_second']:9,.0f} records/s in {row['completion_s']:6.1f} s,"
                f" latency mean {latency['mean_ms']:7,.0f} ms, p99 {latency['p99_ms']:7,.0f} ms,"
                f" processor time {row['cpu_us_per_record']:5.2f} µs/record"
            )
            if ratio := result["ratios_to_baseline"].get(name):
                line += (
                    f"; to baseline: throughput {ratio['throughput']:.2f}, mean {ratio['mean_latency']:.2f},"
                    f" p99 {ratio['p99_latency']:.2f}"
                )
            yield line
    paper = figures["paper"]["ratios"]
    yield (
        f"published, Conflux to its baseline: throughput {paper['throughput']:.2f}, mean {paper['mean_latency']:.2f},"
        f" p99 {paper['p99_latency']:.2f}"
    )
    yield f"{figures['records']:,} records in; in each run all expected ones came out, once, and in order"
