"""Measures the driver's processor time for a sink with several connections, without and with emitter processes.

The same pipeline runs without and with emitters, on this machine. The processor time between the commits of an early
epoch and the last epoch is divided by the number of records between them, so the start does not count. The driver's
time with emitters limits a pipeline whose emitters are on other machines.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from procession.bench.processes import cpu_s
from procession.deployment.local_pipeline import COMMAND
from procession.driver.epoch_log import EpochTail
from procession.errors import ProcessionError
from procession.jobs.demo import write_input

APP = """
from procession import Pipeline

pipeline = Pipeline("sent", parallelism=2)
lines = pipeline.source("lines").key_by(lambda line: line[:10])
lines.sink("output", to="file:output", order="key", connections={connections})
"""
CONNECTIONS = 4
EPOCHS = 6
"""Number of epochs of a run. The first epochs do not count, because programs and functions are loaded then."""
WARM_EPOCHS = 1
POLL_S = 0.1


def measure(records: int, emitters: int, rounds: int) -> dict[str, Any]:
    """Return for each number of emitters the processor time a record by part, as the least of the rounds."""
    found: dict[int, list[dict[str, float]]] = {0: [], emitters: []}
    with tempfile.TemporaryDirectory(prefix="procession-bench-") as name:
        work = Path(name)
        write_input(work / "input.txt", range(records))
        for number in range(rounds):
            for count, costs in found.items():
                place = work / f"{number}-{count}"
                place.mkdir()
                costs.append(_measure_run(place, work / "input.txt", records, count))
    return {
        "records": records,
        "connections": CONNECTIONS,
        "cpu_us_per_record": {
            str(count): {
                part: min(each[part] for each in costs if part in each) for part in sorted(set().union(*costs))
            }
            for count, costs in found.items()
        },
    }


def report_lines(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield what was measured, and a line for each number of emitters."""
    connections = figures["connections"]
    yield f"{figures['records']:,} records a run, {connections} connections; epoch 1 of {EPOCHS} does not count"
    for count, parts in figures["cpu_us_per_record"].items():
        used = ", ".join(f"{part} {us:.3f}" for part, us in parts.items())
        yield f"{count} emitters: processor time, µs a record: {used}"


def _measure_run(place: Path, source: Path, records: int, emitters: int) -> dict[str, float]:
    (place / "app.py").write_text(APP.format(connections=CONNECTIONS))
    argv = [*COMMAND, "run", "app.py", "--input", str(source), "--dir", "d", "--listen", "127.0.0.1:0", "--json"]
    argv += ["--no-dashboard", "--emitters", str(emitters)]
    # Without adaptive epochs, so that all runs have the same epochs.
    argv += ["--epoch-records-max", str(records // EPOCHS), "--epoch-target-s", "0"]
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, cwd=place)
    try:
        first, last = _watched(process, EpochTail(place / "d" / "epochs.jsonl"), records)
    finally:
        process.terminate()
        process.wait()
    if first is None or last is None:
        said = (place / "log").read_text(errors="replace").strip().splitlines()
        raise ProcessionError(f"the run ended too early: {said[-1] if said else 'no output'}")
    return costs_between(first, last)


Reading = tuple[dict[str, float], int]
"""The processor time that the parts had used, and the number of records committed."""


def costs_between(first: Reading, last: Reading) -> dict[str, float]:
    """Return the processor time a record, in µs, by part."""
    (before, began), (after, ended) = first, last
    if ended <= began:
        raise ProcessionError("all epochs were committed at once: give more --records")
    return {part: (used - before.get(part, 0.0)) / (ended - began) * 1e6 for part, used in after.items()}


def _watched(process: subprocess.Popen[bytes], tail: EpochTail, records: int) -> tuple[Reading | None, Reading | None]:
    """Return what the parts had used, with the records committed, after the first epochs and at the end."""
    first: Reading | None = None
    committed = 0
    while process.poll() is None:
        for line in tail.new():
            committed = line["records_in"]
        if first is None and committed >= WARM_EPOCHS * (records // EPOCHS):
            first = cpu_s(process.pid), committed
        if committed >= records:
            return first, (cpu_s(process.pid), committed)
        time.sleep(POLL_S)
    return first, None
