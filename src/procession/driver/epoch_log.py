"""The epoch log: one JSON line per committed epoch, the history for the dashboard, progress displays and benchmarks.

Invariant: it is a report and decides nothing, so it is not synced. A driver that starts adds the lines that its
predecessor did not write, if the checkpoint still has their round records. The thread of `driver/driver_reports`
writes it, so commits do not wait; `monitoring/progress`, `monitoring/epoch_history` and others read it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from procession.commit.performer import CommittedEpoch
from procession.commit.round_record import RoundRecord
from procession.driver.round_times import EpochTimes
from procession.storage.run_store import RESIDENT_ATTEMPTS, Manifest

LOG_BYTES_MAX = 32 * 1024 * 1024
"""Maximum size of the history, by default. The file is rotated at half of it; one old file is kept."""

STREAMS_LISTED_MAX = 100
"""A line lists the positions of its streams if there are at most this many."""

TAIL_BYTES = 1024 * 1024
"""Number of bytes at the end of the file that contain the epochs of the last seconds."""

BIN_EDGES_MS = np.geomspace(0.01, 1e8, 2314)
"""Edges of the latency histogram's bins. Each is 1 % above the previous one."""

LATENCY_SHOWN_MAX_S = 3600.0
"""An event time older than this belongs to historical data, so its age is not a latency."""
CLOCK_SKEW_MAX_S = 10.0
"""How far a producer's clock may be ahead of the driver's clock."""


class EpochLog:
    """Writes one line per epoch. `checkpoint` is the id of the checkpoint, `names` has the name of each stage and sink
    by its id."""

    def __init__(
        self, path: Path, bytes_max: int = LOG_BYTES_MAX, checkpoint: str = "", names: Mapping[str, str] | None = None
    ) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._checkpoint = checkpoint
        self._names = names or {}
        self._before: EpochTimes | None = None
        """The epoch that was logged last. Sinks confirm phase 2 after its line is written, so the next line has those
        times."""

    def add(self, outcome: CommittedEpoch, times: EpochTimes | None = None) -> None:
        before, self._before = self._before, times
        self._write(
            {
                **self._facts(outcome.record),
                "records": sum(manifest.records for manifest in outcome.manifests),
                "is_small": any(manifest.attempt >= RESIDENT_ATTEMPTS for manifest in outcome.manifests),
                "seconds": round(outcome.seconds, 6),
                "committed_ns": outcome.committed_ns,
                "latency_ms": _latencies(outcome),
                **({} if times is None else {"phases": times.as_json(), "aborts": times.aborts}),
                **({} if before is None else {"phase2_before_s": _rounded(before.phase2_s)}),
                "chains": self._chains(outcome.manifests),
            }
        )

    def fill(self, rounds: Iterable[RoundRecord]) -> None:
        """Add the missing lines of committed epochs. Their times are unknown."""
        lines = [line for line in EpochTail(self._path, TAIL_BYTES).new() if line.get("id") == self._checkpoint]
        last = max((int(line["epoch"]) for line in lines), default=-1)
        counted = next((int(line["records_in"]) for line in reversed(lines)), 0)
        for record in sorted(rounds, key=lambda record: record.epoch):
            if record.epoch > last:
                records_in = record.counters.get("records_in", 0)
                times = {"seconds": 0.0, "committed_ns": 0, "latency_ms": [], "is_filled": True}
                self._write({**self._facts(record), "records": records_in - counted, **times})
                counted = records_in

    def rolled_back(self, record: RoundRecord, epoch: int) -> None:
        """Log that the pipeline was rolled back to this epoch. `record` is the round record with which it continues."""
        facts = self._facts(record)
        facts |= {"first": record.last, "sinks": {name: [part.end, part.end] for name, part in record.parts.items()}}
        times = {"records": 0, "seconds": 0.0, "committed_ns": time.time_ns(), "latency_ms": [], "is_filled": True}
        self._write({**facts, **times, "bytes_out": 0, "rolled_back_to": epoch})

    def _facts(self, record: RoundRecord) -> dict[str, Any]:
        positions = record.positions if len(record.positions) <= STREAMS_LISTED_MAX else {}
        return {
            "id": self._checkpoint,
            "epoch": record.epoch,
            "fence": record.fence,
            "first": record.first,
            "last": record.last,
            **record.counters,
            "bytes_out": sum(part.end - part.start for part in record.parts.values()),
            "sinks": {name: [part.start, part.end] for name, part in record.parts.items()},
            "ends": dict(record.offsets),
            "positions": {str(stream_id): position for stream_id, position in positions.items()},
        }

    def _chains(self, manifests: Iterable[Manifest]) -> dict[str, Any]:
        """Return the work of each chain: the total seconds of its tasks, and its output records by destination."""
        chains: dict[str, Any] = {}
        for manifest in manifests:
            chain = chains.setdefault(str(manifest.stage), {"tasks": 0, "read_s": 0.0, "run_s": 0.0, "out": {}})
            read_s, run_s = manifest.spent_s
            chain["tasks"] += 1
            chain["read_s"] = round(chain["read_s"] + read_s, 6)
            chain["run_s"] = round(chain["run_s"] + run_s, 6)
            for run in manifest.runs:
                to = self._names.get(run.to, run.to)
                chain["out"][to] = chain["out"].get(to, 0) + run.count
        return chains

    def _write(self, line: dict[str, Any]) -> None:
        with suppress(OSError):  # a failed report must not stop the driver
            if self._path.exists() and self._path.stat().st_size > self._bytes_max // 2:
                self._path.replace(older(self._path))
            with self._path.open("ab") as file:
                if file.tell() and not _ends_a_line(self._path):
                    file.write(b"\n")  # the previous driver was killed while it wrote a line
                file.write(json.dumps(line).encode() + b"\n")


def older(path: Path) -> Path:
    """Return the path of the rotated file."""
    return path.with_suffix(".1.jsonl")


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"


def _rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 6) for name, value in list(seconds.items())}


def _latencies(outcome: CommittedEpoch) -> list[list[float]]:
    """Return for each task the number of records, then evenly spaced quantiles of their latency.

    A task whose event times are far from the clock is omitted: its records are historical, or have no real times."""
    return [
        [manifest.records, *(round((outcome.committed_ns - time) / 1e6, 3) for time in reversed(manifest.times))]
        for manifest in outcome.manifests
        if manifest.times and all(_is_near(outcome.committed_ns - time) for time in manifest.times)
    ]


def _is_near(age_ns: int) -> bool:
    return -CLOCK_SKEW_MAX_S * 1e9 <= age_ns <= LATENCY_SHOWN_MAX_S * 1e9


class EpochTail:
    """Follows a growing epoch log, from its beginning or from the first line in its last `tail_bytes`."""

    def __init__(self, path: Path, tail_bytes: int | None = None) -> None:
        self._path = path
        self._position = 0
        if tail_bytes is not None:
            with suppress(FileNotFoundError), path.open("rb") as file:
                if (before := path.stat().st_size - tail_bytes - 1) >= 0:
                    file.seek(before)
                    self._position = before + len(file.readline())

    def new(self) -> Iterator[dict[str, Any]]:
        """Return the lines that were added since the last call."""
        try:
            with self._path.open("rb") as file:
                if self._path.stat().st_size < self._position:
                    self._position = 0  # the file was rotated
                file.seek(self._position)
                for line in file:
                    if not line.endswith(b"\n"):
                        return
                    self._position += len(line)
                    with suppress(ValueError):  # a line that a killed driver did not finish
                        yield json.loads(line)
        except FileNotFoundError:
            return


class Latency:
    """Combines the quantiles of any number of epochs in bounded memory, with a histogram of bins that are 1 % wide."""

    def __init__(self) -> None:
        self._counts = np.zeros(len(BIN_EDGES_MS) + 1)

    def add(self, line: dict[str, Any]) -> None:
        for count, *quantiles in line["latency_ms"]:
            np.add.at(self._counts, np.searchsorted(BIN_EDGES_MS, quantiles), count / len(quantiles))

    def quantile(self, share: float) -> float | None:
        reached = np.cumsum(self._counts)
        if not reached[-1]:
            return None
        found = int(np.searchsorted(reached, share * reached[-1]))
        return round(float(BIN_EDGES_MS[min(found, len(BIN_EDGES_MS) - 1)]), 3)
