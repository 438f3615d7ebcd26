"""Measures how time and memory grow with the number of records, which all pass the same running pipeline.

The app passes records through; the committed output is compared with the input byte for byte. Before the first size, a
small load warms up the JVM. Time is measured from the first record at the gateway to the last commit. The resident
memory of each process is sampled; a size's figure is the median of its second half, so that growth with the records
is visible.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

from procession.bench.loop import WARM_RECORDS, WARM_S, RunningPipeline, check_equal
from procession.bench.processes import memory_mib
from procession.deployment.local_pipeline import LocalPipeline
from procession.deployment.settings import load_settings
from procession.driver.app_file import load_app
from procession.jobs.demo import APP, write_input
from procession.supervisor.supervisor import Supervisor
from procession.verify.sink_outputs import committed_output

SIZES = (1_000_000, 10_000_000, 100_000_000)
SAMPLE_S = 0.25


class MemorySamples:
    """The resident memory of each part, sampled in a thread while the context is open."""

    def __init__(self) -> None:
        self._samples: dict[str, list[float]] = defaultdict(list)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory", daemon=True)

    def __enter__(self) -> MemorySamples:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            for part, size in memory_mib(os.getpid()).items():
                self._samples[part].append(size)
            if self._is_over.wait(SAMPLE_S):
                return

    def medians(self) -> dict[str, float]:
        """Return the median of the second half of each part's samples."""
        return {part: statistics.median(sizes[len(sizes) // 2 :]) for part, sizes in sorted(self._samples.items())}


def measure(sizes: Sequence[int]) -> dict[str, Any]:
    found: dict[int, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="procession-bench-") as directory, ExitStack() as stack:
        work = Path(directory)
        warm = work / "warm"
        write_input(warm, range(WARM_RECORDS))
        supervisor = stack.enter_context(Supervisor(work / "logs"))
        local = LocalPipeline(supervisor, APP, load_app(APP).graph, work, work, load_settings())
        local.start()
        pipeline = RunningPipeline(supervisor, local, work)
        pipeline.run(warm, rate=WARM_RECORDS / WARM_S)
        sources = [warm]
        for number, records in enumerate(sizes):
            sources.append(work / f"input-{number}")
            write_input(sources[-1], range(records))
            with MemorySamples() as memory:
                seconds, _, used = pipeline.run(sources[-1])
            found[records] = {
                "seconds": seconds,
                "records_per_second": records / seconds,
                "cpu_us_per_record": sum(used.values()) / records * 1e6,
                "memory_mib": memory.medians(),
            }
        stack.close()
        check_equal(sources, committed_output(work / "output", None))
    return {
        "sizes": {str(records): each for records, each in found.items()},
        "time_relative_to_linear": _relative(found, "seconds"),
        "cpu_relative_to_linear": _relative(found, "cpu_us_per_record"),
    }


def _relative(found: Mapping[int, Mapping[str, Any]], name: str) -> dict[str, float]:
    """Return the time or processor time per record of each size but the first, relative to that of the size before."""
    each = {records: figures[name] / (records if name == "seconds" else 1) for records, figures in found.items()}
    return {str(size): each[size] / each[before] for before, size in pairwise(each)}


def report_lines(figures: Mapping[str, Any]) -> Iterator[str]:
    for size, measured in figures["sizes"].items():
        yield (
            f"{int(size):12,} records in {measured['seconds']:6.1f} s: {measured['records_per_second']:,.0f} records/s,"
            f" {measured['cpu_us_per_record']:.2f} µs of processor time a record"
        )
        yield "     MiB: " + ", ".join(f"{part} {memory:.0f}" for part, memory in measured["memory_mib"].items())
    for size, share in figures["time_relative_to_linear"].items():
        used = figures["cpu_relative_to_linear"][size]
        yield f"{int(size):12,} records: time a record {share:.2f}, processor time {used:.2f} of the size before"
