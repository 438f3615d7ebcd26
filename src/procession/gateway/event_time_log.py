"""The event-time log: received rows in event-time order, written as soon as their place is final.

Invariant: arrivals are on disk before they are ordered, and the ordered log is on disk before any step relies on it.
After a crash, the missing rows are ordered again: the same rows in the same order. `performer` writes the arrival log;
the driver is offered the ordered log, and Spark's tasks read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from procession import faults
from procession.gateway.event_time_state import UNPLACED, Recovered
from procession.gateway.gateway_limits import MIB
from procession.gateway.gateway_options import GatewayConfig
from procession.gateway.log_rows import LogTail, row_sizes
from procession.gateway.snapshot import Snapshot
from procession.gateway.stream_quota import StreamQuotas
from procession.merge.event_time import (
    END_ID,
    NO_REFERENCE,
    ArrivedRows,
    DeclaredOrder,
    EventOrder,
    OrderedRows,
    ReplayPoint,
)
from procession.merge.interleave import RowPlaces
from procession.merge.stream_clocks import Ids, Numbers, WatermarkBound, watermark_of
from procession.merge.waiting_rows import Key, Stack
from procession.runtime.files import FileSystem
from procession.runtime.host_files import HOST_FILES
from procession.storage.log import IngressLog
from procession.storage.segment import (
    KIND_EOS,
    KIND_GIVEN,
    KIND_LATE,
    KIND_MOVED,
    KIND_RECORD,
    KIND_TICK,
    ORDERED,
    ORDERED_SCHEMA,
)

OBSERVE_RECORDS_MAX = 250_000
"""Maximum arrivals processed in one step. Sessions run between two steps."""

ENTRY_BYTES_MAX = 4 * MIB
"""Maximum bytes of rows in one entry of the ordered log."""

GAP_ROWS_MIN = 4096
"""Minimum number of unneeded arrivals between needed ones at which they are skipped instead of read."""


class Offered(NamedTuple):
    """The rows that may be read, and the place in the order up to which they are complete."""

    end: int
    last: Key | None
    """The place of the last row, if there are rows."""
    complete: Key | None
    """The place up to which no further rows will be offered. None: unknown so far."""


class Ordering:
    def __init__(
        self,
        config: GatewayConfig,
        declared: DeclaredOrder,
        snapshot: Snapshot,
        arrivals: IngressLog,
        files: FileSystem = HOST_FILES,
    ) -> None:
        self.declared = declared
        self._arrivals = arrivals
        self.log = IngressLog(
            config.ordered_directory,
            segment_bytes_max=config.segment_bytes_max,
            committed_end=snapshot.end_sequence,
            use=ORDERED,
            files=files,
        )
        rows = list(self.log.read(snapshot.end_sequence, self.log.next_sequence))
        point = (snapshot.point or ReplayPoint())._replace(
            cut=self._last_key() or (snapshot.point.cut if snapshot.point else None)
        )
        safe = {stream_id: at.committed for stream_id, at in snapshot.streams.items()}
        self.order = EventOrder(declared, point, safe | _references(rows))
        self.order.clocks.add_remote(snapshot.clocks)
        self._observe_again()
        self.recovered = self._recover(config, snapshot, rows)
        self._received_at: dict[int, float] = {}
        self._taken_at: float | None = None
        self._stalled: int | None = None

    # Recovery

    def _last_key(self) -> Key | None:
        """Return the position in the order of the last row of the ordered log."""
        end = self.log.next_sequence
        if end == self.log.start_sequence:
            return None
        (row,) = next(self.log.read(end - 1, end)).to_pylist()
        message_id = NO_REFERENCE if row["kind"] == KIND_EOS else row["message_id"]
        return Key(row["order_time"], row["stream_id"], message_id)

    def _observe_again(self) -> None:
        end = self._arrivals.next_sequence
        for batch in self._arrivals.read(min(self.order.observed_end, end), end):
            self.order.observe(arrived_rows(batch), is_again=True)

    def _recover(self, config: GatewayConfig, found: Snapshot, rows: list[pa.RecordBatch]) -> Recovered:
        tail, shares = LogTail(), StreamQuotas(config.limits, len(self.declared.streams))
        start = found.end_sequence
        for batch in rows:
            for row in np.flatnonzero(batch.column("kind").to_numpy() == KIND_EOS).tolist():
                tail.eos_sequences[batch.column("stream_id")[row].as_py()] = start + row
            start += batch.num_rows
        waiting = self.order.waiting.all()
        for stream_id in waiting.stream_ids[waiting.are_ends].tolist():
            tail.eos_sequences[stream_id] = UNPLACED
        uncommitted = _uncommitted(rows, waiting)
        for stream_id, size_bytes in _sizes(uncommitted).items():
            seen = self.order.clocks.known[stream_id].seen
            assert seen is not None, "a waiting record was received"
            # All records of a stream are one step, which is committed as a whole.
            shares.receive(stream_id, seen, size_bytes)
            # Records that other gateways received do not count here: some may have been dropped there, and are sent
            # again.
            came = [at.committed] if (at := found.streams.get(stream_id)) is not None else []
            came += [last] if (last := self.order.received.get(stream_id)) is not None else []
            tail.seen[stream_id] = max(came, default=None)
        clocks, end = self.order.clocks.all_reached(), self.log.next_sequence
        return Recovered(
            tail, shares, self.order.point, clocks, end, self.skipped, [arrived[:2] for arrived in uncommitted]
        )

    @property
    def skipped(self) -> int:
        """Number of arrivals that are neither ordered nor waiting."""
        return self.order.observed_end - len(self.order.waiting) - self.log.next_sequence

    # One step

    def ticks(self, now: float) -> dict[int, int]:
        """Return new watermarks for idle streams that the merge waits for, so that the merge stops waiting."""
        if self.declared.idle_timeout_s is None:
            return {}
        clocks = self.order.clocks
        running = [
            stream_id
            for stream_id in self.declared.streams
            if stream_id not in clocks.known or not clocks.known[stream_id].is_ended
        ]
        idle = frozenset(
            stream_id
            for stream_id in running
            if now - self._received_at.setdefault(stream_id, now) >= self.declared.idle_timeout_s
        )
        if not idle or not len(self.order.waiting) or (time := clocks.tick(idle)) is None:
            return {}
        return {stream_id: time for stream_id in idle if (at := clocks.watermark(stream_id)) is None or at < time}

    def observe(self, now: float) -> None:
        """Process arrivals that are on disk, up to one step."""
        start = self.order.observed_end
        end = min(self._arrivals.durable_end, start + OBSERVE_RECORDS_MAX)
        for batch in self._arrivals.read(start, end) if start < end else ():
            rows = arrived_rows(batch)
            self.order.observe(rows)
            for stream_id in np.unique(rows.stream_ids[~rows.are_ticks]).tolist():
                self._received_at[stream_id] = now

    def take(self, now: float) -> dict[int, int]:
        """Append the rows whose places are final. Returns the sequences of the ends of streams among them."""
        taken = self.order.take()
        if self._taken_at is None or len(taken.rows) or not len(self.order.waiting):
            self._taken_at = now
        ends: dict[int, int] = {}
        first = self.log.next_sequence
        for row in np.flatnonzero(taken.rows.are_ends).tolist():
            ends[int(taken.rows.stream_ids[row])] = first + row
        for batch in self._gathered(taken):
            faults.point("gateway:before-order")
            self.log.append(batch)
        return ends

    def _gathered(self, taken: OrderedRows) -> Iterator[pa.RecordBatch]:
        """Yield the ordered rows, in batches of bounded size."""
        rows = taken.rows
        parts = (np.cumsum(rows.sizes) - 1) // ENTRY_BYTES_MAX
        edges = np.flatnonzero(np.diff(parts, prepend=-1)).tolist()
        for start, end in pairwise([*edges, len(rows)]):
            part = rows.rows(start, end)
            yield ordered_rows(self._fetched(part.sequences), part, taken.references[start:end])

    def _fetched(self, sequences: np.ndarray[Any, np.dtype[np.int64]]) -> pa.RecordBatch:
        """Read the arrivals with these sequences, in this order."""
        by_sequence = np.argsort(sequences)
        wanted = sequences[by_sequence]
        found: list[pa.RecordBatch] = []
        for stretch in np.split(wanted, np.flatnonzero(np.diff(wanted) > GAP_ROWS_MIN) + 1):
            first = int(stretch[0])
            for batch in self._arrivals.read(first, int(stretch[-1]) + 1):
                low, high = np.searchsorted(stretch, (first, first + batch.num_rows))
                if low < high:
                    found.append(batch.take(pa.array(stretch[low:high] - first)))
                first += batch.num_rows
        places = np.empty(len(sequences), np.int64)
        places[by_sequence] = np.arange(len(sequences))
        return pa.concat_batches(found).take(pa.array(places))

    def waiting_of(self, closing: Iterable[int], *, is_alone: bool) -> dict[int, bool]:
        """Return the closing streams with waiting records. The value says whether the records wait only for their own
        stream, which may continue at another gateway. It is always False if this gateway `is_alone`."""
        waiting, known = self.order.waiting, self.order.clocks.known
        lateness_ns, found = self.declared.lateness_ns, {}
        for stream_id in (closing_id for closing_id in closing if waiting.has(closing_id)):
            bound = WatermarkBound(watermark_of(known[stream_id], lateness_ns), stream_id)
            found[stream_id] = not is_alone and not waiting.has(stream_id, bound)
        return found

    def offered(self, start: int, end: int, upto: Key | None) -> Offered:
        """Return the rows [start, end) up to the place `upto` in the order. None: all rows."""
        places = RowPlaces.of(self.log.read(start, end) if start < end else ())
        if upto is not None:
            end = start + places.count_up_to(upto)
        last = places.key(end - start - 1) if end > start else None
        if end < self.log.next_sequence:
            return Offered(end, last, last)
        complete = self.order.complete
        return Offered(end, last, None if complete is None else Key(*complete, END_ID))

    # The stream that the merge waits for

    @property
    def waits_for(self) -> int | None:
        return self.order.clocks.slowest() if len(self.order.waiting) else None

    def stalled(self, now: float, stall_s: float) -> int | None:
        """Return the stream that the merge has waited for at least `stall_s`. None if there is none or it was already
        reported."""
        waits_for = self.waits_for if now - (self._taken_at or now) >= stall_s else None
        change = waits_for if waits_for != self._stalled else None
        self._stalled = waits_for
        return change

    def status(self) -> dict[str, Any]:
        order, waits_for = self.order, self.waits_for
        watermark = None if waits_for is None else order.clocks.watermark(waits_for)
        return {
            "order_by": "event_time",
            "ordered_end": self.log.next_sequence,
            "observed_end": order.observed_end,
            "waiting_records": len(order.waiting),
            "waiting_bytes": order.waiting.size_bytes,
            "late_records": order.late.total(),
            "waits_for": waits_for,
            "waits_for_watermark": watermark,
        }


def ordered_rows(batch: pa.RecordBatch, part: Stack, references: Ids) -> pa.RecordBatch:
    """Convert ordered arrivals to rows of the ordered log."""
    kinds = batch.column("kind").to_numpy().copy()
    kinds[part.are_late] = KIND_LATE
    columns = [pa.array(kinds), *batch.columns[1:], pa.array(part.order_times)]
    # The end of a stream comes after all its records, so its row has the last id.
    ids = batch.column("message_id").to_numpy()
    columns.append(pa.array(np.where(part.are_ends, ids, references)))
    return pa.RecordBatch.from_arrays(columns, schema=ORDERED_SCHEMA)


def arrived_rows(batch: pa.RecordBatch) -> ArrivedRows:
    """Convert rows of the arrival log to the input of the event-time order."""
    kinds = batch.column("kind").to_numpy()
    streams, ids, times = (batch.column(name).to_numpy() for name in ("stream_id", "message_id", "event_time"))
    is_kind = (kinds == kind for kind in (KIND_EOS, KIND_TICK, KIND_GIVEN, KIND_MOVED))
    return ArrivedRows(streams, ids, times, row_sizes(batch), *is_kind)


def _references(rows: list[pa.RecordBatch]) -> dict[int, int]:
    """Return the last reference of each stream."""
    found: dict[int, int] = {}
    for batch in rows:
        references = batch.column("reference").to_numpy()
        is_one = references != NO_REFERENCE
        streams = batch.column("stream_id").to_numpy()[is_one][::-1]
        names, lasts = np.unique(streams, return_index=True)
        found.update(zip(names.tolist(), references[is_one][::-1][lasts].tolist(), strict=True))
    return found


class Records(NamedTuple):
    """Uncommitted records, in columns."""

    stream_ids: Ids
    message_ids: Ids
    sizes: Numbers


def _uncommitted(rows: list[pa.RecordBatch], waiting: Stack) -> list[Records]:
    """Return the uncommitted records: those in the ordered log, and those that wait."""
    found = []
    for batch in rows:
        records = batch.filter(pa.array(np.isin(batch.column("kind").to_numpy(), (KIND_RECORD, KIND_LATE))))
        stream_ids, message_ids = (records.column(name).to_numpy() for name in ("stream_id", "message_id"))
        found.append(Records(stream_ids, message_ids, row_sizes(records)))
    is_record = ~(waiting.are_ends | waiting.are_ticks)
    waits = Records(waiting.stream_ids[is_record], waiting.message_ids[is_record], waiting.sizes[is_record])
    return [*found, waits]


def _sizes(uncommitted: list[Records]) -> dict[int, int]:
    """Return the bytes of each stream's uncommitted records."""
    sizes: dict[int, int] = {}
    for streams, _, row_bytes in uncommitted:
        for stream_id in np.unique(streams).tolist():
            sizes[stream_id] = sizes.get(stream_id, 0) + int(row_bytes[streams == stream_id].sum())
    return sizes
