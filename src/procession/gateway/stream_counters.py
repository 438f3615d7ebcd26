"""Counters of each stream: received records, what happened to them, and errors. Pure.

Invariant: the counters observe the events and actions of `state`, and no decision depends on them. They do no work per
record. `performer` passes each event with its actions; `gateway_metrics` reads the counters.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from procession.gateway.gateway_events import (
    Action,
    AppendRows,
    Event,
    FrameReceived,
    OfOrder,
    SendFrame,
    SnapshotWritten,
)
from procession.gateway.registry import Registry
from procession.gateway.snapshot import Snapshot
from procession.storage.segment import KIND_RECORD
from procession.wire.draft_messages import AckCounts, DraftMessage, DraftMessages
from procession.wire.messages import Ack, Eos, Error, Hello, Ids, Messages, Notify, NotifyAck, Ok

RATE_TIME_S = 10.0
"""Time over which a rate is averaged, with exponential decay."""

STEPS_MAX = 16
"""Maximum number of steps in which a stream's lag is counted. Above it, pairs of steps are merged."""

KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("handshake", ("no HELLO in time",)),
    ("cookie", ("cookie",)),
    ("version", ("version", "the draft's extension", "the draft protocol is")),
    ("credits", ("credits overspent",)),
    ("sessions", (" sessions",)),
    ("streams", (" streams",)),
    ("in use", ("in use",)),
    ("message id", ("message id",)),
    ("unread", ("does not read",)),
    ("frame", ("frame", "a boolean of", "not UTF-8", "unknown message flags", "a boundary without", "fault")),
    ("reference", ("point of reference", "ephemeral", "event time")),
    ("order", (" from the ", " on stream ", "is not for a gateway", "is not declared", " has ended")),
)
"""Kinds of reasons for the end of a session, each with words that occur in such a reason. The first kind that matches
counts; otherwise the kind is `other`."""

PEER = "peer"
"""The kind if the peer itself sent ERROR."""


def kind_of(reason: str) -> str:
    """Map the free text of a reason to one of a fixed number of kinds, for use as a label."""
    return next((kind for kind, words in KINDS if any(word in reason for word in words)), "other")


class UncommittedRows:
    """Number of rows in the log that are not committed, which is never too low. Rows end at a sequence or a message id;
    the next end is above it."""

    __slots__ = ("_steps", "rows")

    def __init__(self) -> None:
        self.rows = 0
        self._steps: deque[tuple[int, int]] = deque()

    def add(self, end: int, rows: int) -> None:
        """Count rows up to this end."""
        self.rows += rows
        self._steps.append((end, rows))
        if len(self._steps) > STEPS_MAX:
            steps = [*self._steps] if len(self._steps) % 2 == 0 else [(0, 0), *self._steps]
            pairs = zip(steps[::2], steps[1::2], strict=True)
            self._steps = deque((end, first + second) for (_, first), (end, second) in pairs)

    def commit(self, end: int) -> None:
        while self._steps and self._steps[0][0] <= end:
            self.rows -= self._steps.popleft()[1]


@dataclass(slots=True)
class StreamCount:
    """The counters of one stream since this gateway started."""

    frames: int = 0
    bytes: int = 0
    """Bytes of keys and payloads, including those of duplicates."""
    refused: int = 0
    """Number of refused NOTIFYs for the stream."""
    behind: UncommittedRows = field(default_factory=UncommittedRows)
    _recent: float = 0.0
    _at: float = 0.0

    def add(self, now: float, frames: int, size_bytes: int) -> None:
        self.frames += frames
        self.bytes += size_bytes
        self._recent = self._faded(now) + frames
        self._at = now

    def rate(self, now: float) -> float:
        """Return the recent frames per second."""
        return self._faded(now) / RATE_TIME_S

    def _faded(self, now: float) -> float:
        return self._recent * math.exp((self._at - now) / RATE_TIME_S)


class StreamCounters:
    def __init__(self, streams_max: int, *, is_by_id: bool = False) -> None:
        """Counters of streams that the registry has removed are removed when there are more than `streams_max`. With
        `is_by_id`, each stream's rows are counted by its own ids, because event-time order commits streams one before
        the other."""
        self._streams_max = streams_max
        self._is_by_id = is_by_id
        self._streams: dict[int, StreamCount] = {}
        self._late: set[int] = set()
        """Streams with uncommitted rows."""
        self.frames: Counter[str] = Counter()
        """Number of frames by their names in the protocol."""
        self.errors: Counter[str] = Counter()
        """Number of sessions that ended with an error, by kind."""
        self.received_bytes = 0
        self.refused = 0
        self.credits_granted = 0

    def __getitem__(self, stream_id: int) -> StreamCount:
        return self._streams.get(stream_id) or StreamCount()

    def recovered(self, first: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Count the rows that a restarted gateway finds in its log, from sequence `first` on, and yield them."""
        for batch in batches:
            self._append(first, batch)
            first += batch.num_rows
            yield batch

    def count_recovered(self, stream_ids: Ids, message_ids: Ids) -> None:
        """Count the records that a restarted gateway finds, if streams are counted by their ids."""
        for stream_id in np.unique(stream_ids).tolist():
            ids = np.sort(message_ids[stream_ids == stream_id])
            self._of(stream_id).behind.add(int(ids[-1]), len(ids))
            self._late.add(stream_id)

    def failed(self, reason: str) -> None:
        """Count a session that was closed for this reason."""
        self.errors[kind_of(reason)] += 1

    def watch(self, event: Event | OfOrder, actions: Iterable[Action], now: float, registry: Registry) -> None:
        """Count an event and the actions that follow from it."""
        if len(self._streams) > self._streams_max:
            self._forget(registry)
        if isinstance(event, FrameReceived):
            self._received(event, now)
        elif isinstance(event, SnapshotWritten):
            self._committed(event.snapshot)
        for action in actions:
            if isinstance(action, AppendRows):
                self._append(action.first_sequence, action.batch)
            elif isinstance(action, SendFrame):
                self._sent(action, registry)

    def _received(self, event: FrameReceived, now: float) -> None:
        match event.what:
            case Messages() as messages:
                self.frames["MESSAGE"] += len(messages)
                lengths = _lengths(messages.keys) + _lengths(messages.payloads)
                for stream_id, frames, size_bytes in _by_stream(messages.stream_ids, lengths):
                    self._of(stream_id).add(now, frames, size_bytes)
            case DraftMessages(messages=drafted):
                self.frames["MESSAGE"] += len(drafted)
                for message in drafted:
                    self._of(message.stream_id).add(now, 1, _size(message))
            case Notify():
                self.frames["NOTIFY"] += 1
            case Eos():
                self.frames["EOS_MESSAGE"] += 1
            case Hello():
                self.frames["HELLO"] += 1
            case Error():
                self.frames["ERROR"] += 1
                self.errors[PEER] += 1

    def _append(self, first: int, batch: pa.RecordBatch) -> None:
        if self._is_by_id:
            records = batch.filter(pc.equal(batch.column("kind"), KIND_RECORD))
            self.count_recovered(records.column("stream_id").to_numpy(), records.column("message_id").to_numpy())
            return
        end = first + batch.num_rows
        ids = batch.column("stream_id").to_numpy()
        for stream_id, rows, _ in _by_stream(ids, np.zeros(1, np.int64)):
            self._of(stream_id).behind.add(end, rows)
            self._late.add(stream_id)

    def _sent(self, action: SendFrame, registry: Registry) -> None:
        match action.frame:
            case Ok() | Ack() | AckCounts() as granting:
                self.credits_granted += granting.credits
            case NotifyAck(success=False, stream_id=stream_id):
                self.refused += 1
                if stream_id in registry:
                    self._of(stream_id).refused += 1

    def _committed(self, snapshot: Snapshot) -> None:
        for stream_id in list(self._late):
            behind = self._of(stream_id).behind
            if not self._is_by_id:
                behind.commit(snapshot.end_sequence)
            elif stream_id in snapshot.streams:
                behind.commit(snapshot.streams[stream_id].committed)
            if not behind.rows:
                self._late.discard(stream_id)

    def _of(self, stream_id: int) -> StreamCount:
        return self._streams.setdefault(stream_id, StreamCount())

    def _forget(self, registry: Registry) -> None:
        self._streams = {stream_id: counted for stream_id, counted in self._streams.items() if stream_id in registry}
        self._late &= self._streams.keys()


def _by_stream(stream_ids: Ids, lengths: npt.NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
    """Yield each stream's id, its number of rows, and the sum of their lengths."""
    if not len(stream_ids):
        return
    if bool((stream_ids == stream_ids[0]).all()):
        yield int(stream_ids[0]), len(stream_ids), int(lengths.sum())
        return
    distinct, numbers, counts = np.unique(stream_ids, return_inverse=True, return_counts=True)
    sums = np.bincount(numbers, np.broadcast_to(lengths, stream_ids.shape), len(distinct))
    yield from zip(distinct.tolist(), counts.tolist(), sums.astype(np.int64).tolist(), strict=True)


def _lengths(array: pa.Array) -> npt.NDArray[np.int64]:
    offsets = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, 4 * array.offset)
    return np.diff(offsets).astype(np.int64)


def _size(message: DraftMessage) -> int:
    return len(message.key or b"") + len(message.payload or b"")
