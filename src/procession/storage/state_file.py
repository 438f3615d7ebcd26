"""A state file: the states of some keys, sorted by a hash of the key. It never changes after it is written.

Invariant: a file is read through a memory map and in bounded pieces, so it may be larger than memory. The cost of a
lookup or merge depends on the requested keys, not on the size of the file. A deleted key is in the file without a
state. `storage/state_store` layers the files.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from procession.runtime.files import FileSystem
from procession.runtime.host_files import HOST_FILES
from procession.storage.batch_file import BatchFile, BatchWriter, Target

SCHEMA = pa.schema([("hash", pa.uint32()), ("key", pa.large_binary()), ("state", pa.large_binary())])

PIECE_ROWS = 32_768
"""Maximum number of keys that are merged and written as one batch."""

PIECE_BYTES = 4 * 1024 * 1024
"""Approximate maximum size of such a batch. Hashes of keys are spread evenly, but the sizes of their states may not
be."""

HASHES = 2**32

RESTORE = "restore the pipeline's directory, the whole of it, from a copy"

Hashes = npt.NDArray[np.uint32]


class SortedStates(Protocol):
    """States sorted by hash: a file, or the content of a future file."""

    count: int
    size: int
    """Size in bytes."""

    def between(self, low: int, high: int) -> pa.RecordBatch:
        """Return the rows whose hashes are in [low, high)."""


class UnwrittenStates:
    """States that are not in a file yet. None for a state means that the key is removed."""

    def __init__(self, keys: Sequence[bytes], states: Sequence[bytes | None]) -> None:
        hashes = hashes_of(keys)
        order = np.argsort(hashes, kind="stable")
        columns = [pa.array(hashes), pa.array(keys, pa.large_binary()), pa.array(states, pa.large_binary())]
        self._rows = pa.record_batch(columns, schema=SCHEMA).take(pa.array(order))
        self._hashes = hashes[order]
        self.count = len(keys)
        self.size = self._rows.nbytes

    def between(self, low: int, high: int) -> pa.RecordBatch:
        return _between(self._rows, self._hashes, low, high)


class StateFile:
    """A mapped state file. Batches are divided between hashes, so each hash is in only one batch."""

    def __init__(self, path: Path, file_system: FileSystem = HOST_FILES) -> None:
        self._file = BatchFile(path, what="state file", next_step=RESTORE, files=file_system)
        # The mark of a batch is its first hash.
        self._firsts = np.array(self._file.marks, np.uint32)
        self._found: dict[int, tuple[pa.RecordBatch, Hashes]] = {}
        self.count = self._file.rows
        self.size = self._file.size

    def _batch(self, number: int) -> tuple[pa.RecordBatch, Hashes]:
        """Return a batch and its hashes. The batch is checked at its first use."""
        if number not in self._found:
            batch = self._file.batch(number)
            self._found[number] = batch, batch.column("hash").to_numpy()
        return self._found[number]

    def verify(self) -> None:
        """Compare all batches with their checksums. Raises StorageError if one is damaged."""
        for _ in self._file.batches():
            pass

    def between(self, low: int, high: int) -> pa.RecordBatch:
        first = max(0, int(np.searchsorted(self._firsts, low, "right")) - 1)
        last = int(np.searchsorted(self._firsts, high, "left"))
        parts = [_between(*self._batch(number), low, high) for number in range(first, last)]
        return pa.concat_batches(parts) if parts else pa.RecordBatch.from_pylist([], schema=SCHEMA)

    def find(self, keys: Sequence[bytes], hashes: Hashes) -> dict[bytes, bytes | None]:
        """Return the states of those of these keys that the file has."""
        found: dict[bytes, bytes | None] = {}
        if not self.count:
            return found
        batch_of = np.searchsorted(self._firsts, hashes, "right") - 1
        for number in np.unique(batch_of[batch_of >= 0]).tolist():
            wanted = np.flatnonzero(batch_of == number)
            batch, known = self._batch(number)
            places = np.searchsorted(known, hashes[wanted])
            is_there = known[np.minimum(places, len(known) - 1)] == hashes[wanted]
            self._read(batch, known, keys, wanted[is_there], places[is_there], found)
        return found

    @staticmethod
    def _read(
        batch: pa.RecordBatch,
        known: Hashes,
        keys: Sequence[bytes],
        wanted: npt.NDArray[np.int64],
        places: npt.NDArray[np.int64],
        found: dict[bytes, bytes | None],
    ) -> None:
        names = batch.column("key").take(pa.array(places)).to_pylist()
        states = batch.column("state").take(pa.array(places)).to_pylist()
        for row, place, name, state in zip(wanted.tolist(), places.tolist(), names, states, strict=True):
            key = keys[row]
            while name != key:
                # This key has the same hash but is different: the wanted key may follow.
                place += 1
                if place >= len(known) or known[place] != known[place - 1]:
                    break
                name, state = batch.column("key")[place].as_py(), batch.column("state")[place].as_py()
            else:
                found[key] = state


def write_pieces(file: Target, pieces: Iterable[pa.RecordBatch]) -> int:
    """Write the bytes of a file. Returns the number of its keys."""
    count = 0
    writer = BatchWriter(file, SCHEMA)
    for piece in pieces:
        if piece.num_rows:
            writer.write(piece, mark=piece.column("hash")[0].as_py())
            count += piece.num_rows
    writer.close()
    return count


def merged_pieces(
    layers: Sequence[SortedStates], *, is_oldest: bool, share: tuple[int, int, int] | None = None
) -> Iterator[pa.RecordBatch]:
    """Merge these layers, newest first, into one. `is_oldest`: there is no older layer, so removed keys need no
    tombstones. `share` (modulus, tasks, task): only the keys of this task."""
    rows_in_all, bytes_in_all = sum(layer.count for layer in layers), sum(layer.size for layer in layers)
    ranges = max(1, -(-rows_in_all // PIECE_ROWS), min(rows_in_all, -(-bytes_in_all // PIECE_BYTES)))
    bounds = [HASHES * number // ranges for number in range(ranges + 1)]
    for low, high in pairwise(bounds):
        rows = pa.concat_batches([layer.between(low, high) for layer in layers])
        hashes = rows.column("hash").to_numpy()
        order = np.argsort(hashes, kind="stable")
        kept = order[_is_newest(hashes[order], rows.column("key").take(pa.array(order)))]
        if is_oldest:
            kept = kept[rows.column("state").is_valid().to_numpy(zero_copy_only=False)[kept]]
        if share is not None:
            modulus, tasks, task = share
            kept = kept[hashes[kept] % modulus % tasks == task]
        yield rows.take(pa.array(kept))


def _is_newest(hashes: Hashes, keys: pa.Array) -> npt.NDArray[np.bool_]:
    """Whether each row is the first of its key. Rows of one hash are adjacent, newest first."""
    is_kept = np.ones(len(hashes), np.bool_)
    is_next = hashes[1:] == hashes[:-1]
    if not is_next.any():
        return is_kept
    is_same = pc.equal(keys.slice(1), keys.slice(0, len(keys) - 1)).to_numpy(zero_copy_only=False)
    is_kept[1:] = ~(is_next & is_same)
    # Different keys of one hash may have any order. These few rows are compared one by one.
    for value in np.unique(hashes[1:][is_next & ~is_same]).tolist():
        seen: set[Any] = set()
        for row in np.flatnonzero(hashes == value).tolist():
            key = keys[row].as_py()
            is_kept[row] = key not in seen
            seen.add(key)
    return is_kept


def hashes_of(keys: Sequence[bytes]) -> Hashes:
    return np.fromiter(map(zlib.crc32, keys), np.uint32, len(keys))


def _between(rows: pa.RecordBatch, hashes: Hashes, low: int, high: int) -> pa.RecordBatch:
    start = int(np.searchsorted(hashes, low, "left"))
    end = int(np.searchsorted(hashes, high, "left"))
    return rows.slice(start, end - start)
