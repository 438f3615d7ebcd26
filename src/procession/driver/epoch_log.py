"""The epoch log: one JSON line per committed epoch, for people, progress displays and benchmarks.

Invariant: it is a report and decides nothing, so it is not synced and may be incomplete after a crash. Written after
each commit of `commit/performer`; read by `supervisor/progress` and `supervisor/demo`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from procession.commit.performer import CommittedEpoch

LOG_BYTES_MAX = 16 * 1024 * 1024
"""Maximum size of the file. Then it is rotated; one old file is kept."""

TAIL_BYTES = 1024 * 1024
"""Bytes at the end of the file that hold the epochs of the last seconds."""

BIN_EDGES_MS = np.geomspace(0.01, 1e8, 2314)
"""Edges of the latency histogram's bins. Each is 1 % above the previous one."""

LATENCY_SHOWN_MAX_S = 3600.0
"""Event times that are older than this belong to historical data, so their age is not a latency."""
CLOCK_SKEW_MAX_S = 10.0
"""How far a producer's clock may be ahead of ours."""


class EpochLog:
    """Writes one line per epoch, in the driver."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, outcome: CommittedEpoch) -> None:
        record = outcome.record
        line = {
            "epoch": record.epoch,
            "fence": record.fence,
            "first": record.first,
            "last": record.last,
            "records": sum(manifest.records for manifest in outcome.manifests),
            **record.counters,
            "bytes_out": sum(part.end - part.start for part in record.parts.values()),
            "seconds": round(outcome.seconds, 6),
            "committed_ns": outcome.committed_ns,
            "latency_ms": _latencies(outcome),
        }
        with suppress(OSError):  # a report is not worth a failure: a full disk stops the writers of data
            if self._path.exists() and self._path.stat().st_size > LOG_BYTES_MAX:
                self._path.replace(self._path.with_suffix(".1.jsonl"))
            with self._path.open("a") as file:
                file.write(json.dumps(line) + "\n")


def _latencies(outcome: CommittedEpoch) -> list[list[float]]:
    """Return for each task the number of records, then evenly spaced quantiles of their latency.

    A task whose event times are far from the clock is left out: they are historical, or no times at all."""
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
