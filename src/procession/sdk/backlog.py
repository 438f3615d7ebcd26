"""A backlog keeps records from a medium that cannot be read twice until they are committed.

Invariant: a record in the backlog can be sent again until the gateway has committed it. A `Buffer` is in memory and
ends with the process. A `Spool` is on disk and survives the process. `sdk/push_source` uses both.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from procession.errors import StorageError
from procession.runtime.host import HOST, Host
from procession.sdk.source_records import Batch
from procession.storage.durable import fsync_dir, make_directory, write_durably
from procession.storage.log import (
    SEGMENT_BYTES_MAX,
    IngressLog,
)
from procession.storage.log_reader import segment_bases
from procession.storage.segment import (
    INGRESS_SCHEMA,
    KIND_RECORD,
    LogUse,
)

ROW_BYTES = 24
"""Bytes of a record in addition to its key and payload: two numbers and an offset."""
SPOOL = LogUse(
    "source's spool",
    "give the source a new, empty --spool: uncommitted records in this spool are lost",
)
UNSENT = "unsent"
"""Name of the marker file in a spool from which no record was ever sent. A source may add records before a gateway
answers, so the number of records does not show whether they belong to the committed ones: the spool may be a new one in
place of a lost one."""
READ_RECORDS_MAX = 16 * 1024
READ_BYTES_MAX = 1024 * 1024


class Backlog(Protocol):
    is_durable: bool

    @property
    def is_unnumbered(self) -> bool:
        """Whether the records have no ids yet. They get ids above the last id that the gateway has."""

    def number_above(self, last: int | None) -> None:
        """Give the records without ids the ids that follow `last`."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the kept records, which the limit `bytes_max` counts."""

    @property
    def records(self) -> int:
        """Number of kept records that are not committed yet."""

    def open(self, after: int | None) -> None:
        """Prepare for a pass of `read`. The gateway has the records of the stream up to `after`, or none."""

    def append(self, batch: Batch) -> None:
        """Keep the records. Their ids only define the order, unless the backlog keeps the ids of its source."""

    def sync(self) -> None:
        """Make the appended records readable. May run in a thread while other methods run."""

    def read(self, after: int | None) -> Batch | None:
        """Return some of the records after message id `after`, with their ids. None: there are no such records now."""

    def forget(self, message_id: int) -> None:
        """Delete the records up to this message id, which are committed."""

    def close(self) -> None: ...


class Buffer:
    """A backlog in memory.

    If the author gives no ids, records are numbered above the last id of the stream that the gateway has, committed or
    not. So records of an earlier process never have the same ids. The gateway's log is the counter; no clock is read.
    """

    is_durable = False

    def __init__(self, *, has_ids: bool = False) -> None:
        self._batches: list[Batch] = []
        self._lasts: list[int] = []
        """The number of the last record of each batch."""
        self._base: int | None = 0 if has_ids else None
        """The number that is added to a record's number to give its id."""
        self._next = 0
        self._has_ids = has_ids
        self._done = -1
        """The number of the last record that is committed."""
        self.size_bytes = 0

    @property
    def is_unnumbered(self) -> bool:
        return self._base is None

    def number_above(self, last: int | None) -> None:
        if self._base is None:
            self._base = 0 if last is None else last + 1

    def open(self, after: int | None) -> None:
        self.number_above(after)

    def append(self, batch: Batch) -> None:
        if not self._has_ids:
            numbers = np.arange(self._next, self._next + len(batch), dtype=np.uint64)
            batch = Batch(numbers, batch.event_times, batch.payloads, batch.keys)
            self._next += len(batch)
        self._batches.append(batch)
        self._lasts.append(int(batch.message_ids[-1]))
        self.size_bytes += _size_bytes(batch)

    def sync(self) -> None:
        """Do nothing: records in memory need no sync."""

    def read(self, after: int | None) -> Batch | None:
        assert self._base is not None, "it was opened"
        done = -1 if after is None else after - self._base
        start = bisect_right(self._lasts, done)
        some: list[Batch] = []
        records, size_bytes = 0, 0
        while start < len(self._batches) and records < READ_RECORDS_MAX and size_bytes < READ_BYTES_MAX:
            some.append(self._batches[start])
            records += len(some[-1])
            size_bytes += _size_bytes(some[-1])
            start += 1
        if not some:
            return None
        first = _first_after(some[0], done)
        some[0] = some[0].slice(first, len(some[0]) - first)
        return _joined(some, self._base)

    def forget(self, message_id: int) -> None:
        if self._base is None:
            return  # an id of an earlier process
        self._done = message_id - self._base
        count = bisect_right(self._lasts, self._done)
        self.size_bytes -= sum(map(_size_bytes, self._batches[:count]))
        del self._batches[:count], self._lasts[:count]

    @property
    def records(self) -> int:
        return sum(len(batch) - _first_after(batch, self._done) for batch in self._batches)

    def close(self) -> None:
        """Do nothing: memory needs no closing."""


class Spool:
    """A backlog on disk: a directory of segments. A record's number, which never changes, is its message id."""

    is_durable = True
    is_unnumbered = False

    def __init__(self, directory: Path, *, segment_bytes_max: int = SEGMENT_BYTES_MAX, host: Host = HOST) -> None:
        self.directory = directory
        self._files = host.files
        self._unsent = directory / UNSENT
        make_directory(directory, self._files)
        if not segment_bases(directory, self._files):
            write_durably(self._unsent, b"", self._files)
        self._log = IngressLog(
            directory,
            segment_bytes_max=segment_bytes_max,
            use=SPOOL,
            files=self._files,
            new_incarnation=lambda: host.random_bits(64) or 1,
        )
        self._sent_end = 0 if self._files.exists(self._unsent) else self._log.next_sequence
        """Records from this number on were never sent, so they cannot be committed."""
        self._done = self._log.start_sequence
        """The first record that is not known to be committed."""

    def number_above(self, last: int | None) -> None:
        """Do nothing: the records already have numbers."""

    @property
    def next_id(self) -> int:
        """The message id of the next record, which is the number of records appended so far."""
        return self._log.next_sequence

    @property
    def size_bytes(self) -> int:
        return self._log.lag_bytes(self._done)

    def open(self, after: int | None) -> None:
        following = 0 if after is None else after + 1
        if following > self._sent_end:
            raise StorageError(
                f"The spool {self.directory} has sent at most {self._sent_end} records, but {following} are committed.",
                next_step="Put back the spool that this stream was sent from, or give the stream another name.",
                path=str(self.directory),
            )
        if following < self._log.start_sequence:
            raise StorageError(
                f"The spool {self.directory} begins with record {self._log.start_sequence}, but only {following} are"
                " committed.",
                next_step="Give a new pipeline, or a new stream, a spool of its own.",
                path=str(self.directory),
            )
        self._done = max(self._done, following)
        if self._files.exists(self._unsent):
            self._files.remove(self._unsent)
            fsync_dir(self.directory, self._files)

    def append(self, batch: Batch) -> None:
        count = len(batch)
        numbers = np.arange(self._log.next_sequence, self._log.next_sequence + count, dtype=np.uint64)
        columns = [np.full(count, KIND_RECORD, np.uint8), np.zeros(count, np.uint64), numbers, batch.event_times]
        arrays = [pa.array(column) for column in columns] + [_keys(batch), batch.payloads.cast(pa.binary())]
        self._log.append(pa.RecordBatch.from_arrays(arrays, schema=INGRESS_SCHEMA))

    def sync(self) -> None:
        self._log.sync()

    def read(self, after: int | None) -> Batch | None:
        start = 0 if after is None else after + 1
        end = self._log.end_for(start, READ_RECORDS_MAX, READ_BYTES_MAX)
        if end == start:
            return None
        self._sent_end = max(self._sent_end, end)
        rows = pa.Table.from_batches(self._log.read(start, end)).combine_chunks().to_batches()[0]
        return Batch(
            np.arange(start, end, dtype=np.uint64),
            rows.column("event_time").to_numpy(),
            rows.column("payload"),
            rows.column("key"),
        )

    def forget(self, message_id: int) -> None:
        self._done = max(self._done, message_id + 1)
        self._log.trim(self._done)

    @property
    def records(self) -> int:
        return self._log.next_sequence - self._done

    def close(self) -> None:
        self._log.close()


def _first_after(batch: Batch, number: int) -> int:
    return 0 if number < 0 else int(np.searchsorted(batch.message_ids, np.uint64(number), side="right"))


def _size_bytes(batch: Batch) -> int:
    return int(batch.sizes().sum()) + ROW_BYTES * len(batch)


def _keys(batch: Batch) -> pa.Array:
    """Return the keys of a batch. A batch without keys gets empty ones."""
    if batch.keys is not None:
        return batch.keys.cast(pa.binary())
    return pa.array([b""], pa.binary()).take(pa.array(np.zeros(len(batch), np.int8)))


def _joined(batches: Sequence[Batch], base: int) -> Batch:
    """Join batches into one, and add `base` to each number."""
    is_keyed = any(batch.keys is not None for batch in batches)
    return Batch(
        np.concatenate([batch.message_ids for batch in batches]) + np.uint64(base),
        np.concatenate([batch.event_times for batch in batches]),
        pa.concat_arrays([batch.payloads for batch in batches]),
        pa.concat_arrays([_keys(batch) for batch in batches]) if is_keyed else None,
    )
