"""The interface that the author of a source implements: streams, and their records, one by one or as columns.

Invariant: message ids strictly increase within a stream, and are the same each time the stream is read. `sdk/batching`
makes batches of the records, and `sdk/source_session` sends them.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from procession.errors import RecordError
from procession.record import stream_id
from procession.wire.frame_codec import FRAME_BYTES_MAX, SHORT_BYTES_MAX
from procession.wire.messages import NOTHING_COMMITTED

PAYLOAD_BYTES_MAX = FRAME_BYTES_MAX - 64
"""Maximum size of key and payload: the maximum frame less its other fields."""

Record = tuple[int, int, bytes, bytes]
"""Message id, event time, key, payload. The event time is in nanoseconds since 1970, or 0 if there is none."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream of a source.

    Args:
        id: Identifies the stream. Unique in the whole pipeline.
        name: The name shown to people.
        is_ephemeral: Its records have no identity and are sent at most once. Needs the draft protocol.
    """

    id: int
    name: str
    is_ephemeral: bool = False
    """Its records have no identity and are sent at most once. Needs the draft protocol."""

    @classmethod
    def named(cls, name: str, *, is_ephemeral: bool = False) -> Stream:
        """The stream with this name. Its id is derived from the name, so it is the same in every run."""
        return cls(stream_id(name.encode()), name, is_ephemeral)


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of one stream as columns.

    Args:
        message_ids: Strictly increasing.
        event_times: Nanoseconds since 1970, or 0.
        payloads: An Arrow array of binaries.
        keys: An Arrow array of binaries. None means that every key is empty.
    """

    message_ids: npt.NDArray[np.uint64]
    event_times: npt.NDArray[np.int64]
    payloads: pa.Array
    keys: pa.Array | None = None

    @classmethod
    def of(cls, records: pa.RecordBatch) -> Batch:
        """Create a batch from an Arrow batch with the columns `message_id` and `payload`, and optionally `event_time`
        and `key`.

        Raises:
            RecordError: A column is missing, unknown or has the wrong type.
        """
        names = set(records.schema.names)
        if unknown := names - {"message_id", "event_time", "key", "payload"}:
            raise _bad(f"an Arrow batch has a column {min(unknown)!r}")
        if missing := {"message_id", "payload"} - names:
            raise _bad(f"an Arrow batch has no column {min(missing)!r}")
        times = records.column("event_time") if "event_time" in names else np.zeros(records.num_rows, np.int64)
        return cls(
            _numbers(records.column("message_id"), np.uint64, "message id"),
            _numbers(times, np.int64, "event time"),
            _bytes(records.column("payload"), "payload"),
            _bytes(records.column("key"), "key") if "key" in names else None,
        )

    @classmethod
    def gathered(
        cls, message_ids: list[int], event_times: list[int], keys: list[bytes], payloads: list[bytes]
    ) -> Batch:
        """Create a batch from lists with one value per record."""
        return cls(
            _numbers(message_ids, np.uint64, "message id"),
            _numbers(event_times, np.int64, "event time"),
            _bytes(payloads, "payload"),
            _bytes(keys, "key") if any(keys) else None,
        )

    def __len__(self) -> int:
        return len(self.payloads)

    def slice(self, start: int, count: int) -> Batch:
        return Batch(
            self.message_ids[start : start + count],
            self.event_times[start : start + count],
            self.payloads.slice(start, count),
            None if self.keys is None else self.keys.slice(start, count),
        )

    def stamped(self, now_ns: int) -> Batch:
        """Return the same records with `now_ns` as their event time."""
        return replace(self, event_times=np.full(len(self), now_ns, np.int64))

    def sizes(self) -> npt.NDArray[np.int64]:
        """Return the bytes of each record's key and payload."""
        sizes = np.asarray(pc.binary_length(self.payloads)).astype(np.int64)
        return sizes if self.keys is None else sizes + np.asarray(pc.binary_length(self.keys))

    def check(self, stream: Stream, after: int | None) -> None:
        """Raise RecordError if these records cannot be sent after message id `after`."""
        ids, columns = self.message_ids, [self.payloads, *([] if self.keys is None else [self.keys])]
        if any(len(column) != len(self) for column in (ids, self.event_times, *columns)):
            raise _bad("a batch has columns of different lengths", stream)
        if any(column.null_count for column in columns):
            raise _bad("a key or a payload is null", stream)
        if not len(self):
            return
        before = np.concatenate((ids[:1] if after is None else np.array([after], np.uint64), ids[:-1]))
        is_back = ids <= before
        is_back[0] &= after is not None
        if is_back.any():
            row = int(np.argmax(is_back))
            raise _bad(f"message id {ids[row]} comes after {before[row]}", stream, "Give ids that only increase.")
        if int(ids[-1]) == NOTHING_COMMITTED:
            raise _bad("message id 2^64-1 is reserved", stream)
        sizes = self.sizes()
        if int(sizes.max()) > PAYLOAD_BYTES_MAX:
            row = int(np.argmax(sizes))
            raise _bad(f"message {ids[row]} has {sizes[row]} bytes, the limit is {PAYLOAD_BYTES_MAX}", stream)
        if self.keys is not None and (longest := int(pc.max(pc.binary_length(self.keys)).as_py())) > SHORT_BYTES_MAX:
            raise _bad(f"a key has {longest} bytes, the limit is {SHORT_BYTES_MAX}", stream)


Item: TypeAlias = Record | Batch | pa.RecordBatch
"""A source yields records, or batches of many records as columns. It may mix both."""

Items: TypeAlias = Iterable[Item] | AsyncIterable[Item]
Streams: TypeAlias = Iterable[Stream] | AsyncIterable[Stream]


class Source(Protocol):
    """The interface of a source. Your class need not inherit from it.

    Example:
        >>> class Squares:
        ...     def streams(self):
        ...         return [Stream.named("squares")]
        ...
        ...     def read(self, stream, after):
        ...         for number in range(0 if after is None else after + 1, 100):
        ...             yield number, 0, b"", b"%d" % number**2
    """

    def streams(self) -> Streams:
        """Return the streams to send.

        An asynchronous iterator may yield further streams while the others are sent, and may yield a stream that has
        ended again to reopen it.
        """

    def read(self, stream: Stream, after: int | None) -> Items:
        """Return the records of a stream after a message id. Called again after a lost session.

        A plain iterator runs in its own thread and may block. An asynchronous iterator runs on the event loop and must
        not block.

        Args:
            stream: The stream.
            after: The last committed message id, or None for all records.

        Returns:
            An iterable of records, `Batch`es or Arrow record batches.
        """


@runtime_checkable
class Forgetful(Protocol):
    """A Source that is notified when it may delete records."""

    def forget(self, stream: Stream, message_id: int) -> None:
        """Delete the records up to this message id. They are committed, and are never read again."""


@runtime_checkable
class UnnumberedSource(Protocol):
    """A Source whose medium has no message ids. Its ids begin above the last id of the stream that the gateway has."""

    def is_unnumbered(self, stream: Stream) -> bool:
        """Whether the stream has no ids yet in this process."""

    def number_above(self, stream: Stream, last: int | None) -> None:
        """Number the records above `last`, the last id of the stream that the gateway has, or None. Called before the
        first `read`."""


def _numbers(values: Any, kind: type[np.integer[Any]], what: str) -> npt.NDArray[Any]:
    """Convert a column of integers or Arrow timestamps. Raises for negative ids, fractions and text."""
    if isinstance(values, pa.Array):
        if values.null_count:
            raise _bad(f"a {what} is missing")
        if pa.types.is_timestamp(values.type):
            values = values.cast(pa.timestamp("ns")).cast(pa.int64())
    numbers = np.asarray(values)
    if not len(numbers):
        return np.empty(0, kind)
    if (
        numbers.dtype.kind not in "iu"
        or int(numbers.min()) < np.iinfo(kind).min
        or int(numbers.max()) > np.iinfo(kind).max
    ):
        raise _bad(f"a {what} is not a whole number of 64 bits")
    return numbers.astype(kind, copy=False)


def _bytes(values: Any, what: str) -> pa.Array:
    try:
        array = values if isinstance(values, pa.Array) else pa.array(values, pa.binary())
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        return array if pa.types.is_large_binary(array.type) else array.cast(pa.binary())
    except (pa.ArrowException, TypeError) as error:
        raise _bad(f"a {what} is neither bytes nor text: {error}") from None


def _bad(what: str, stream: Stream | None = None, next_step: str = "") -> RecordError:
    where = f" on stream {stream.name!r}" if stream else ""
    return RecordError(
        f"The source gave records that cannot be sent{where}: {what}.",
        next_step=next_step
        or "Correct the source's read, then start it again; it continues after the committed records.",
    )
