"""Compares fixed and adaptive credit windows, with a slow and with a fast pipeline.

It uses a real gateway, a real source (the generator at full speed) and, instead of Spark, a driver that only commits:
the slow one at a fixed rate, the fast one everything that is available. The waiting time of records is from their
arrival at the gateway to their commit. The log is in memory, unless a directory is given.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from procession.deployment.local_pipeline import COMMAND
from procession.gateway.control_client import ControlClient
from procession.gateway.listen_address import addresses
from procession.sdk.source_records import Stream

MODES = ("fixed", "adaptive")
MEMORY = Path("/dev/shm")
STREAM = Stream.named("generator-0-0").id
POLL_INTERVAL_S = 0.005
TIMEOUT_S = 20.0
ALL = 2**40
SAMPLES = 20_000
MIB = 1024 * 1024


@dataclass(frozen=True)
class CreditsSetup:
    """The options of the measurement."""

    rounds: int
    seconds: float
    """Duration of a round with the slow pipeline."""
    rate: int
    """Records per second that the slow pipeline commits."""
    epoch_s: float
    records: int
    """Records per round with the fast pipeline."""
    latency_target_s: float
    lag_bytes_max: int
    directory: Path | None


def measure(setup: CreditsSetup) -> dict[str, dict[str, dict[str, float]]]:
    return {pipeline: measure_behind(pipeline, setup) for pipeline in ("slow", "fast")}


def report_lines(figures: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Iterator[str]:
    for pipeline, modes in figures.items():
        for mode, result in modes.items():
            yield (
                f"{pipeline} pipeline, {mode:8} window: {result['records_s']:9,.0f} records/s;"
                f" wait p50 {result['p50_s']:6.3f} s, p99 {result['p99_s']:6.3f} s;"
                f" buffered at most {result['buffered_max']:9,.0f} records, {result['mib_max']:5.1f} MiB"
            )


def measure_behind(pipeline: str, setup: CreditsSetup) -> dict[str, dict[str, float]]:
    """Return the medians of alternating rounds."""
    rounds: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
    for number in range(setup.rounds):
        # The order alternates, so that other load on the machine affects both variants.
        for mode in MODES[:: 1 if number % 2 else -1]:
            rounds[mode].append(run_round(pipeline, mode, setup))
    return {
        mode: {name: statistics.median(result[name] for result in found) for name in found[0]}
        for mode, found in rounds.items()
    }


def run_round(pipeline: str, mode: str, setup: CreditsSetup) -> dict[str, float]:
    with tempfile.TemporaryDirectory(
        prefix="procession-bench-", dir=setup.directory or (MEMORY if MEMORY.is_dir() else None)
    ) as name:
        directory = Path(name)
        limits = ["--credits", mode, "--latency-target-s", str(setup.latency_target_s)]
        limits += ["--lag-bytes-max", str(setup.lag_bytes_max)]
        listening = ["--listen", "127.0.0.1:0", "--control", "127.0.0.1:0", "--open-producers"]
        with subprocess.Popen([*COMMAND, "gateway", "--dir", name, *listening, *limits]) as gateway:
            try:
                with ControlClient(directory, b"", TIMEOUT_S) as client:
                    client.status()
                    host, port = addresses(directory)["listen"]
                    count = ["--records", str(setup.records)] if pipeline == "fast" else []
                    source = [*COMMAND, "source", "generator", "--to", f"{host}:{port}", "--size", "50", *count]
                    with subprocess.Popen(source, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as sender:
                        try:
                            driver = CommittingDriver(client, setup, setup.records if count else ALL)
                            return driver.commit_all() if pipeline == "fast" else driver.commit_slowly()
                        finally:
                            sender.terminate()
            finally:
                gateway.terminate()


class CommittingDriver:
    """Commits records and measures waiting times."""

    def __init__(self, client: ControlClient, setup: CreditsSetup, records: int) -> None:
        self._client = client
        self._setup = setup
        self._records = records
        self._epoch = 0
        self._committed_end = 0
        self._came: list[tuple[float, int]] = []
        self._committed: list[tuple[float, int]] = []
        self._lag_bytes_max = 0

    def commit_slowly(self) -> dict[str, float]:
        setup = self._setup
        self._poll_until(lambda end: end > 0)
        began = time.perf_counter()
        over, epoch_s = began + setup.seconds, setup.epoch_s
        while began < over:
            # If an epoch took longer because the machine is busy, the next one may take more records.
            end = self._client.offer(0, self._committed_end, round(setup.rate * epoch_s), ALL).end
            ready_at = began + setup.epoch_s
            self._poll_until(lambda _: time.perf_counter() >= ready_at)  # noqa: B023
            self._commit(end)
            began, epoch_s = time.perf_counter(), time.perf_counter() - began
        return self._figures()

    def commit_all(self) -> dict[str, float]:
        self._poll_until(lambda end: end > 0)
        while self._committed_end < self._records:
            self._poll_until(lambda end: end > self._committed_end)
            self._commit(self._client.offer(0, self._committed_end, ALL, ALL).end)
        return self._figures()

    def _poll_until(self, is_reached: Any) -> None:
        while True:
            status = self._client.status()
            self._came.append((time.perf_counter(), status["next_sequence"]))
            self._lag_bytes_max = max(self._lag_bytes_max, status["lag_bytes"])
            if is_reached(status["next_sequence"]):
                return
            time.sleep(POLL_INTERVAL_S)

    def _commit(self, end: int) -> None:
        if end > self._committed_end:
            # The generator's ids are numbers; the row that ends the stream follows the last record.
            self._client.commit(0, self._epoch, end, {STREAM: min(end, self._records) - 1})
            self._committed.append((time.perf_counter(), end))
            self._epoch += 1
            self._committed_end = end

    def _figures(self) -> dict[str, float]:
        came_at, came = map(np.array, zip(*self._came, strict=True))
        committed_at, committed = map(np.array, zip(*self._committed, strict=True))
        sequences = np.linspace(0, self._committed_end - 1, SAMPLES).astype(np.int64)
        # The first poll that saw a record is late by at most one poll.
        seen = np.minimum(np.searchsorted(came, sequences, side="right"), len(came) - 1)
        waits = committed_at[np.searchsorted(committed, sequences, side="right")] - came_at[seen]
        before = np.searchsorted(committed_at, came_at, side="right")
        return {
            "records_s": self._committed_end / (committed_at[-1] - came_at[np.argmax(came > 0)]),
            "p50_s": float(np.percentile(waits, 50)),
            "p99_s": float(np.percentile(waits, 99)),
            "buffered_max": float((came - np.append(0, committed)[before]).max()),
            "mib_max": self._lag_bytes_max / MIB,
        }
