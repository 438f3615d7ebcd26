"""Reads the bytes of an output from one file, or from a directory of epochs.

Invariant: positions are those of the transaction log, whatever the storage is. Missing bytes are reported. Reads a
sink's directory; used by `procession cat`, `procession verify` and `verify/live_check`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from procession.connectors.epochs_sink import epoch_files, epochs_directory
from procession.sdk.lane_files import LANE_SUFFIX

CHUNK_BYTES = 1024 * 1024

Ranges = Sequence[tuple[int, int]]


class StoredOutput(Protocol):
    """The bytes of one instance's output."""

    what: str
    """Its name in messages."""

    def size(self) -> int:
        """Return the number of bytes before the first gap."""

    def read(self, ranges: Ranges) -> Iterator[bytes]:
        """Yield the bytes of these ranges in chunks, without missing bytes."""


class StoredFile:
    what = "data file"

    def __init__(self, path: Path) -> None:
        self._path = path

    def size(self) -> int:
        return self._path.stat().st_size if self._path.exists() else 0

    def read(self, ranges: Ranges) -> Iterator[bytes]:
        return read_ranges(self._path, ranges) if self._path.exists() else iter(())


class StoredEpochs:
    what = "directory of epochs"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._end = 0
        self._last = ""

    def size(self) -> int:
        # Continues after the last known file, so that repeated calls do not read the whole directory.
        for file in epoch_files(self._directory, self._last):
            if file.start != self._end:
                break
            self._end, self._last = file.end, file.path.name
        return self._end

    def read(self, ranges: Ranges) -> Iterator[bytes]:
        if not ranges:
            return
        files = list(epoch_files(self._directory))
        for start, end in ranges:
            for file in files:
                if file.start < end and file.end > start:
                    within = max(start, file.start) - file.start, min(end, file.end) - file.start
                    yield from read_ranges(file.path, [within])


def stored(log: Path) -> StoredOutput:
    """Return the output that belongs to this transaction log."""
    if is_lane(log):
        return StoredFile(log.with_suffix(LANE_SUFFIX))
    epochs = epochs_directory(log.with_suffix(""))
    return StoredEpochs(epochs) if epochs.is_dir() else StoredFile(log.with_suffix(".data"))


def is_lane(log: Path) -> bool:
    """Return whether the output is a lane: its bytes are blocks, and its records are read with a merger."""
    return log.with_suffix(LANE_SUFFIX).exists()


def is_stored(log: Path) -> bool:
    """Return whether there is output to read: the stdout sink stores none."""
    return not log.with_suffix(".printed").exists()


def read_ranges(path: Path, ranges: Ranges | None) -> Iterator[bytes]:
    """Yield a file's bytes, or those of the given ranges, in chunks."""
    with path.open("rb") as file:
        for start, end in [(0, path.stat().st_size)] if ranges is None else ranges:
            file.seek(start)
            while start < end and (piece := file.read(min(CHUNK_BYTES, end - start))):
                start += len(piece)
                yield piece
