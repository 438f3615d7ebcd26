"""Buckets on disk, for when the verifier has more rows than fit into memory.

The one rule: rows are kept only in the directory, which is removed at the end. Used by `verify/matching`, which only
knows that rows can be put and taken.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from procession.verify.matching import NewShelves, Rows


class DiskShelves:
    """One file a shelf, rows behind each other."""

    def __init__(self, directory: Path, columns: int) -> None:
        self._directory = directory
        self._columns = columns
        directory.mkdir(parents=True)

    def put(self, shelf: int, rows: Rows) -> None:
        with open(self._path(shelf), "ab") as file:
            np.ascontiguousarray(rows, np.int64).tofile(file)

    def take(self, shelf: int) -> Rows:
        try:
            rows = np.fromfile(self._path(shelf), np.int64)
        except FileNotFoundError:
            rows = np.empty(0, np.int64)
        return rows.reshape(-1, self._columns)

    def _path(self, shelf: int) -> str:
        # No Path: it would keep the name of every shelf for ever.
        return f"{self._directory}/{shelf:06d}"


@contextmanager
def disk_shelves(directory: Path | None = None) -> Iterator[NewShelves]:
    """Shelves in a directory of their own, below this one or where temporary files go."""
    root = Path(tempfile.mkdtemp(prefix="procession-verify-", dir=directory))
    made: list[DiskShelves] = []

    def new(columns: int) -> DiskShelves:
        made.append(DiskShelves(root / str(len(made)), columns))
        return made[-1]

    try:
        yield new
    finally:
        shutil.rmtree(root, ignore_errors=True)
