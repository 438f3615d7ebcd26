"""Measures a start: the time from `procession run` to the first committed record, and the processor time of each
part.

Each round runs a passthrough app with a small file in a new directory, as a user does. A phase ends when a part has
written its file of readiness. Processor time is counted for all processes up to the first commit, including processes
that have ended.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from procession.bench.processes import cpu_s, cpu_tree_s
from procession.deployment.local_pipeline import COMMAND, HERE
from procession.deployment.part_arguments import GATEWAY
from procession.driver.driver import READY
from procession.driver.driver_reports import EPOCHS
from procession.driver.epoch_log import EpochTail
from procession.errors import ProcessionError
from procession.gateway.listen_address import ADDRESS_FILE
from procession.jobs.demo import APP, write_input

RECORDS = 1000
POLL_INTERVAL_S = 0.01
START_S_MAX = 120.0
PHASES = {
    "gateway ready": f"work/{GATEWAY}/{ADDRESS_FILE}",
    "sink ready": "output/sink.json",
    "driver ready": f"work/{READY}",
}
"""The file of `directory` with which each phase ends."""
COMMIT = "first commit"
ENDED = "helpers that have ended"
"""Name for the processor time of processes that ended before the first commit."""


def measure(rounds: int) -> dict[str, Any]:
    found = [_measure_round() for _ in range(rounds)]
    parts = sorted(set().union(*(used for _, used in found)))
    return {
        "seconds": {name: statistics.median(phases[name] for phases, _ in found) for name in (*PHASES, COMMIT)},
        "worst_s": max(phases[COMMIT] for phases, _ in found),
        "cpu_s": {part: statistics.median(used.get(part, 0.0) for _, used in found) for part in parts},
        "cpu_total_s": statistics.median(sum(used.values()) for _, used in found),
    }


def report_lines(figures: Mapping[str, Any]) -> Iterator[str]:
    for phase, seconds in figures["seconds"].items():
        yield f"{phase:15} after {seconds:5.1f} s"
    yield f"{'worst':15} after {figures['worst_s']:5.1f} s"
    used = ", ".join(f"{part} {seconds:.1f}" for part, seconds in figures["cpu_s"].items())
    yield f"processor time up to the first commit: {figures['cpu_total_s']:.1f} s ({used})"


def _measure_round() -> tuple[dict[str, float], dict[str, float]]:
    """Return the seconds until the end of each phase, and the seconds of processor time of each part."""
    with tempfile.TemporaryDirectory(prefix="procession-bench-") as name:
        directory = Path(name)
        write_input(directory / "input.txt", range(RECORDS))
        argv = [*COMMAND, "run", str(APP), "--input", "input.txt", "--dir", "work", "--listen", HERE]
        began, began_ns = time.monotonic(), time.time_ns()
        with subprocess.Popen(argv, cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as command:
            try:
                committed_ns, used = _first_commit(command, directory, began + START_S_MAX)
            finally:
                command.send_signal(signal.SIGINT)
        phases = {phase: _written_ns(directory / file) for phase, file in PHASES.items()} | {COMMIT: committed_ns}
        return {phase: (ended_ns - began_ns) / 1e9 for phase, ended_ns in phases.items()}, used


def _first_commit(command: subprocess.Popen[bytes], directory: Path, deadline: float) -> tuple[int, dict[str, float]]:
    """Wait for the first committed record. Return its time, and the processor time up to then."""
    tail = EpochTail(directory / "work" / EPOCHS)
    while time.monotonic() < deadline and command.poll() is None:
        if (line := next((line for line in tail.new() if line["records"]), None)) is not None:
            used, total_s = cpu_s(os.getpid()), cpu_tree_s(command.pid)
            return int(line["committed_ns"]), {**used, ENDED: max(0.0, total_s - sum(used.values()))}
        time.sleep(POLL_INTERVAL_S)
    raise ProcessionError(f"nothing was committed within {START_S_MAX:g} s")


def _written_ns(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0
