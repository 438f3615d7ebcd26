"""Batching: collects the records that a source yields into batches. Pure.

Invariant: a batch has at most `records_max` records and `bytes_max` bytes, and keeps their order. A record that cannot
be sent raises an error that names the stream. `sdk/stream_reader` takes a complete batch, or any batch after `delay_s`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import pyarrow as pa

from procession.errors import RecordError
from procession.sdk.event_time_field import EventTimeField
from procession.sdk.source_records import Batch, Item, Stream


@dataclass(frozen=True, slots=True)
class GatherLimits:
    """Limits of the batches that a source sends.

    Args:
        records_max: Maximum records per batch.
        bytes_max: Maximum bytes per batch.
        delay_s: Maximum time that a record waits until its batch is sent.
    """

    records_max: int = 8192
    bytes_max: int = 1024 * 1024
    delay_s: float = 0.005
    """Maximum time that a record waits until its batch is sent."""


class StreamBatcher:
    """Makes the batches of one stream. Holds at most one complete batch and one that is being filled. See
    `has_room`."""

    def __init__(
        self, stream: Stream, after: int | None, limits: GatherLimits, event_time: EventTimeField | None = None
    ) -> None:
        self._stream = stream
        self._event_time = event_time
        self._after = after
        self._limits = limits
        self.delay_s = limits.delay_s
        self._whole: deque[Batch] = deque()
        self._clear()

    def _clear(self) -> None:
        self._message_ids: list[int] = []
        self._event_times: list[int] = []
        self._keys: list[bytes] = []
        self._payloads: list[bytes] = []
        self._size_bytes = 0

    @property
    def is_empty(self) -> bool:
        return not self._whole and not self._payloads

    @property
    def has_room(self) -> bool:
        """Whether more records may be added before a batch is taken."""
        return not self._whole

    @property
    def is_due(self) -> bool:
        """Whether a batch is complete."""
        return bool(self._whole)

    def add(self, item: Item) -> None:
        if not isinstance(item, tuple):
            self._seal()
            batch = item if isinstance(item, Batch) else self._of_arrow(item)
            self._take_over(batch)
            return
        try:
            message_id, event_time, key, payload = item
            self._size_bytes += len(payload) + len(key)
        except (TypeError, ValueError):
            raise self._record_error(item) from None
        self._message_ids.append(message_id)
        self._event_times.append(event_time)
        self._keys.append(key)
        self._payloads.append(payload)
        if len(self._payloads) >= self._limits.records_max or self._size_bytes >= self._limits.bytes_max:
            self._seal()

    def take(self) -> Batch | None:
        """Remove and return the next batch, complete or not. None: there are no records."""
        if not self._whole:
            self._seal()
        return self._whole.popleft() if self._whole else None

    def _seal(self) -> None:
        if not self._payloads:
            return
        columns = self._message_ids, self._event_times, self._keys, self._payloads
        self._clear()
        self._take_over(Batch.gathered(*columns))

    def _take_over(self, batch: Batch) -> None:
        batch.check(self._stream, self._after)
        if len(batch):
            self._after = int(batch.message_ids[-1])
            self._whole.append(self._timed(batch))

    def _timed(self, batch: Batch) -> Batch:
        if self._event_time is None:
            return batch
        stream = f"stream {self._stream.name!r}"
        return replace(batch, event_times=self._event_time.times(batch.payloads, stream, batch.message_ids.tolist()))

    def _of_arrow(self, item: object) -> Batch:
        if not isinstance(item, pa.RecordBatch):
            raise self._record_error(item)
        return Batch.of(item)

    def _record_error(self, item: object) -> RecordError:
        return RecordError(
            f"The source yielded {type(item).__name__} on stream {self._stream.name!r}, which is not a record.",
            next_step="Yield tuples (message id, event time, key, payload), or Arrow batches with such columns.",
        )
