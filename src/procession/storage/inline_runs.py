"""Inline runs: the runs of one task as values in Spark's rows, for tasks that share no directory.

Invariant: the interface is that of the run store, but nothing is stored after the task ends. A task returns its runs to
Spark as rows, divided into cells of bounded size, and gets its input in the same way. So a task that runs again may
return other records. `spark/manifest_routing`, which gets all manifests, checks which attempt each reader has read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from procession.errors import StorageError
from procession.record import ORDER
from procession.storage.run_store import Manifest, Run, payload_bytes

CELL_BYTES_MAX = 4 * 1024 * 1024
"""Maximum payload bytes of a cell. A larger record gets its own cell."""

TASK_BYTES_MAX = 1024 * 1024 * 1024
"""Maximum bytes of cells that one task holds, input and output together."""


class CellStore:
    """The cells of one task, by the name of their run."""

    def __init__(self, bytes_max: int = TASK_BYTES_MAX) -> None:
        self._cells: dict[str, list[bytes]] = {}
        self._bytes_left = bytes_max
        self._bytes_max = bytes_max

    def writer(self, epoch: int, stage: int, partition: int, task_attempt: int) -> CellWriter:
        return CellWriter(self, f"{stage:04d}-{partition:06d}-{task_attempt}", task_attempt)

    def published(self, epoch: int, stage: int, partition: int) -> Manifest | None:
        """Return None: this store keeps no results from one attempt of a task to the next."""
        return None

    def put(self, file: str, cells: Iterable[bytes]) -> None:
        """Append these cells to a run."""
        kept = self._cells.setdefault(file, [])
        for cell in cells:
            self._bytes_left -= len(cell)
            if self._bytes_left < 0:
                raise StorageError(
                    f"a task would hold more than {self._bytes_max:,} bytes of cells",
                    next_step='make epochs smaller (epoch_bytes_max), or use exchange="runs", which has them in files',
                )
            kept.append(cell)

    def cells(self, run: Run) -> list[bytes]:
        try:
            return self._cells[run.file]
        except KeyError:
            raise StorageError(f"the cells of run {run.file} did not come with it") from None

    def read(self, epoch: int, run: Run) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a run, batch by batch."""
        for cell in self.cells(run):
            yield from batches_in(cell)

    def read_all(self, epoch: int, runs: Sequence[Run]) -> list[Iterator[pa.RecordBatch]]:
        """Return the rows of these runs, each like `read`."""
        return [self.read(epoch, run) for run in runs]


class CellWriter:
    """The runs of one task attempt."""

    def __init__(self, store: CellStore, task: str, task_attempt: int) -> None:
        self._store = store
        self._task = task
        self._task_attempt = task_attempt
        self._runs: dict[tuple[str, int], Run] = {}

    def add(self, to: str, rows: pa.RecordBatch, bucket: int = 0) -> None:
        """Append these rows to the run for a sink, or for a bucket of an exchange."""
        if not rows.num_rows:
            return
        place = to, bucket
        if place not in self._runs:
            keys = sum(column.startswith(ORDER) for column in rows.schema.names)
            self._runs[place] = Run(to, bucket, f"{self._task}-{to}-{bucket}", 0, 0, keys)
        run = self._runs[place]
        size = payload_bytes(rows.column("payload"))
        self._runs[place] = replace(run, count=run.count + rows.num_rows, payload_bytes=run.payload_bytes + size)
        # Slices with the same number of rows: payloads have similar sizes, and a cell may be somewhat larger.
        step = max(1, rows.num_rows * CELL_BYTES_MAX // max(size, 1))
        self._store.put(run.file, (_as_cell(rows.slice(start, step)) for start in range(0, rows.num_rows, step)))

    def publish(self, manifest: Manifest, wide: Collection[str] = ()) -> Manifest:
        """Return the manifest with the runs. No exchange is wide, because a run travels to its own task only."""
        assert not wide
        return replace(manifest, attempt=self._task_attempt, runs=tuple(self._runs.values()))


def _as_cell(rows: pa.RecordBatch) -> bytes:
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_stream(buffer, rows.schema) as stream:
        stream.write_batch(rows)
    return bytes(buffer.getvalue())


def batches_in(cell: bytes) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a cell."""
    try:
        with pa.ipc.open_stream(cell) as stream:
            yield from stream
    except pa.ArrowInvalid as error:
        raise StorageError(f"a cell of {len(cell):,} bytes is incomplete: {error}") from error
