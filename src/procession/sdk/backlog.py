"""A backlog: what was taken from a medium that cannot be read twice, kept until it is committed.

Invariant: a record in the backlog can be sent again until the gateway has committed it. A `Buffer` is in memory and
ends with the process. A `Spool` is on disk and survives it. `sdk/push_source` uses both.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from procession.errors import StorageError
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
"""What a record costs beside its key and payload: two numbers and an offset."""
SPOOL = LogUse(
    "source's spool",
    "give the source a new, empty --spool: what this one keeps and is not committed is lost",
)
UNSENT = "unsent"
"""The file in a spool from which no record was ever sent. Records may come before a gateway has answered, so their
number does not tell whether they are those that are committed: the spool may have been lost and created again."""
READ_RECORDS_MAX = 16 * 1024
READ_BYTES_MAX = 1024 * 1024


class Backlog(Protocol):
    is_durable: bool

    @property
    def is_unnumbered(self) -> bool:
        """Whether its records have no ids yet: they get those above the last one that the gateway has."""

    def number_above(self, last: int | None) -> None:
        """Records without ids get those above this one."""

    @property
    def size_bytes(self) -> int:
        """The room that is taken by what is kept: what its limit counts."""

    @property
    def records(self) -> int:
        """Those that are kept and not committed yet."""

    def open(self, after: int | None) -> None:
        """Called before each pass of `read`: the gateway has the stream's records up to `after`, or none."""

    def append(self, batch: Batch) -> None:
        """Keep records. Their ids only define the order, unless the backlog keeps the ids of its source."""

    def sync(self) -> None:
        """What was appended may be read once this returns. May run in a thread beside the others."""

    def read(self, after: int | None) -> Batch | None:
        """Some of the records after message id `after`, with their ids; None if there is none now."""

    def forget(self, message_id: int) -> None:
        """All up to this one is committed."""

    def close(self) -> None: ...


class Buffer:
    """A backlog in memory.

    Without ids of the author's own, records are numbered above the last id that the gateway has of the stream,
    committed or not: so the records of an earlier life never have the same ids. The gateway's log is the counter; no
    clock is asked.
    """

    is_durable = False

    def __init__(self, *, has_ids: bool = False) -> None:
        self._batches: list[Batch] = []
        self._lasts: list[int] = []
        """The number of the last record of each batch."""
        self._base: int | None = 0 if has_ids else None
        """What is added to the number of a record to give its id."""
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
            return  # an id of an earlier life
        self._done = message_id - self._base
        count = bisect_right(self._lasts, self._done)
        self.size_bytes -= sum(map(_size_bytes, self._batches[:count]))
        del self._batches[:count], self._lasts[:count]

    @property
    def records(self) -> int:
        return sum(len(batch) - _first_after(batch, self._done) for batch in self._batches)

    def close(self) -> None:
        """Nothing is left to do."""


class Spool:
    """A backlog on disk: a directory of segments, in which a record's number, for life, is its message id."""

    is_durable = True
    is_unnumbered = False

    def __init__(self, directory: Path, *, segment_bytes_max: int = SEGMENT_BYTES_MAX) -> None:
        self.directory = directory
        self._unsent = directory / UNSENT
        make_directory(directory)
        if not segment_bases(directory):
            write_durably(self._unsent, b"")
        self._log = IngressLog(directory, segment_bytes_max=segment_bytes_max, use=SPOOL)
        self._sent_end = 0 if self._unsent.exists() else self._log.next_sequence
        """No record from here on was ever sent, so none can be committed."""
        self._done = self._log.start_sequence
        """The first record that is not known to be committed."""

    def number_above(self, last: int | None) -> None:
        """Do nothing: the records have their numbers."""

    @property
    def next_id(self) -> int:
        """The message id of the next record: as many were appended in all."""
        return self._log.next_sequence

    @property
    def size_bytes(self) -> int:
        return self._log.lag_bytes(self._done)

    def open(self, after: int | None) -> None:
        following = 0 if after is None else after + 1
        if following > self._sent_end:
            raise StorageError(
                f"The spool {self.directory} has sent {self._sent_end} records at most, but {following} are committed.",
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
        if self._unsent.exists():
            self._unsent.unlink()
            fsync_dir(self.directory)

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
    """The keys, also where there are none."""
    if batch.keys is not None:
        return batch.keys.cast(pa.binary())
    return pa.array([b""], pa.binary()).take(pa.array(np.zeros(len(batch), np.int8)))


def _joined(batches: Sequence[Batch], base: int) -> Batch:
    """One batch of several, each number with `base` added to it."""
    is_keyed = any(batch.keys is not None for batch in batches)
    return Batch(
        np.concatenate([batch.message_ids for batch in batches]) + np.uint64(base),
        np.concatenate([batch.event_times for batch in batches]),
        pa.concat_arrays([batch.payloads for batch in batches]),
        pa.concat_arrays([_keys(batch) for batch in batches]) if is_keyed else None,
    )
