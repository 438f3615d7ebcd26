"""Stores buckets on disk, for a verifier with more rows than fit into memory.

Invariant: rows are kept only in the directory, which is removed at the end. `verify/matching` uses it through the
protocol `Buckets`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from procession.verify.matching import NewBuckets, Rows


class DiskBuckets:
    """Stores the rows of each bucket in one file."""

    def __init__(self, directory: Path, columns: int) -> None:
        self._directory = directory
        self._columns = columns
        directory.mkdir(parents=True)

    def put(self, bucket: int, rows: Rows) -> None:
        with open(self._path(bucket), "ab") as file:
            np.ascontiguousarray(rows, np.int64).tofile(file)

    def take(self, bucket: int) -> Rows:
        try:
            rows = np.fromfile(self._path(bucket), np.int64)
        except FileNotFoundError:
            rows = np.empty(0, np.int64)
        return rows.reshape(-1, self._columns)

    def _path(self, bucket: int) -> str:
        # A str, because Path would intern the name of every bucket.
        return f"{self._directory}/{bucket:06d}"


@contextmanager
def disk_buckets(directory: Path | None = None) -> Iterator[NewBuckets]:
    """Return a factory of buckets in a new directory, below this one or in the system's temporary directory."""
    root = Path(tempfile.mkdtemp(prefix="procession-verify-", dir=directory))
    made: list[DiskBuckets] = []

    def new(columns: int) -> DiskBuckets:
        made.append(DiskBuckets(root / str(len(made)), columns))
        return made[-1]

    try:
        yield new
    finally:
        shutil.rmtree(root, ignore_errors=True)
