"""The messages of the connector protocol: one frozen value per frame, and per two-phase-commit message.

Invariant: a value is independent of bytes, states and sockets. `v3` and `two_phase_commit` encode and decode these
values; `connection` checks when each may be sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from procession.wire.frame_codec import Bytes

NOTHING_COMMITTED = 2**64 - 1
"""The point of reference that means "no message of this stream is committed yet"."""
UNNUMBERED = 2**64 - 2
"""In a NOTIFY, instead of a point of reference: the source's data has no positions, so the source assigns message ids
above all ids of the stream that the gateway has. Procession's gateway answers with its last id, committed or not. Other
gateways answer with the last committed id, as usual."""

TWOPC_STREAM = 0
"""The stream of two-phase-commit messages on a sink's connection. It needs no NOTIFY and is always open."""

DATA_STREAM = 1
"""The stream of output on a sink's connection. A message id is the position of its first byte."""


@dataclass(frozen=True, slots=True)
class Hello:
    version: str
    cookie: bytes
    program: str
    instance: str

    def __repr__(self) -> str:
        # Without the cookie, because values appear in log lines and error reports.
        return f"Hello(version={self.version!r}, program={self.program!r}, instance={self.instance!r})"


@dataclass(frozen=True, slots=True)
class Ok:
    credits: int


@dataclass(frozen=True, slots=True)
class Error:
    reason: str


@dataclass(frozen=True, slots=True)
class Notify:
    stream_id: int
    stream_name: str
    point_of_reference: int


@dataclass(frozen=True, slots=True)
class NotifyAck:
    success: bool
    stream_id: int
    point_of_reference: int


@dataclass(frozen=True, slots=True)
class Message:
    stream_id: int
    message_id: int
    event_time: int
    key: bytes
    payload: bytes


@dataclass(frozen=True, slots=True)
class Ack:
    credits: int
    positions: tuple[tuple[int, int], ...] = ()
    """Pairs (stream id, point of reference)."""


@dataclass(frozen=True, slots=True)
class Restart:
    address: str | None = None


@dataclass(frozen=True, slots=True)
class Eos:
    stream_id: int
    message_id: int | None = None
    """Part of the protocol text, but existing peers do not send it."""


Frame = Hello | Ok | Error | Notify | NotifyAck | Message | Ack | Restart | Eos


Ids = npt.NDArray[np.uint64]

MessageFields = tuple[int, int, int, bytes, Bytes]
"""The fields of a `Message`, in their order: a plain tuple, which is faster to make. A large payload may be a view."""

STREAM_ID_OF = itemgetter(0)
"""Returns the stream id of `MessageFields`."""

LARGE_BYTES_MIN = 64 * 1024
"""Minimum size of a payload, such as a block of records, that is not copied."""

COLUMNS = ("stream_ids", "message_ids", "event_times", "keys", "payloads")


def binaries(values: Sequence[Bytes]) -> pa.Array:
    if len(values) != 1:
        return pa.array(values, pa.binary())
    # A single value may be large, such as a block of records, so it is not copied.
    (value,) = values
    edges = np.array([0, len(value)], np.int32)
    return pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(edges), pa.py_buffer(value)])


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """Consecutive MESSAGE frames in arrival order, as columns of equal length.

    The columns of `from_rows` are created on first access: two-phase-commit messages never need them."""

    stream_ids: Ids
    message_ids: Ids
    event_times: npt.NDArray[np.int64]
    keys: pa.Array
    """A binary array without nulls, like `payloads`."""
    payloads: pa.Array
    _rows: Sequence[MessageFields] | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls,
        stream_ids: Sequence[int],
        message_ids: Sequence[int],
        event_times: Sequence[int],
        keys: Sequence[bytes],
        payloads: Sequence[Bytes],
    ) -> Self:
        """Create columns from plain values, for a small number of messages."""
        return cls(
            np.array(stream_ids, np.uint64),
            np.array(message_ids, np.uint64),
            np.array(event_times, np.int64),
            binaries(keys),
            binaries(payloads),
        )

    @classmethod
    def from_rows(cls, rows: Sequence[MessageFields]) -> Self:
        """Wrap messages that were decoded one by one."""
        messages = object.__new__(cls)
        object.__setattr__(messages, "_rows", rows)
        return messages

    def __getattr__(self, name: str) -> Any:
        """Create the columns of `from_rows` on first access."""
        if name not in COLUMNS:
            raise AttributeError(name)
        assert self._rows is not None
        made = Messages.of(*(zip(*self._rows, strict=True) if self._rows else [()] * len(COLUMNS)))
        for column in COLUMNS:
            object.__setattr__(self, column, getattr(made, column))
        return getattr(made, name)

    def __len__(self) -> int:
        return len(self.message_ids if self._rows is None else self._rows)

    def __iter__(self) -> Iterator[Message]:
        """Iterate over the messages as plain values, for a small number of messages."""
        if self._rows is not None:
            return (
                Message(stream_id, message_id, event_time, key, bytes(payload))
                for stream_id, message_id, event_time, key, payload in self._rows
            )
        numbers = (self.stream_ids.tolist(), self.message_ids.tolist(), self.event_times.tolist())
        return map(Message, *numbers, self.keys.to_pylist(), self.payloads.to_pylist())

    def slice(self, start: int, end: int) -> Messages:
        """Return the messages [start, end), without a copy."""
        if (start, end) == (0, len(self)):
            return self
        if self._rows is not None:
            return Messages.from_rows(self._rows[start:end])
        return Messages(
            self.stream_ids[start:end],
            self.message_ids[start:end],
            self.event_times[start:end],
            self.keys[start:end],
            self.payloads[start:end],
        )

    def by_stream(self) -> Iterator[tuple[int, Messages]]:
        """Split the messages where the stream changes."""
        if self._rows is not None:
            for stream_id, rows in groupby(self._rows, STREAM_ID_OF):
                yield stream_id, Messages.from_rows(list(rows))
            return
        edges = [0, *(np.flatnonzero(self.stream_ids[1:] != self.stream_ids[:-1]) + 1).tolist(), len(self)]
        for start, end in pairwise(edges):
            yield int(self.stream_ids[start]), self.slice(start, end)

    def parts(self) -> Iterator[Messages]:
        """Split the messages so that a large payload is alone in its part. Then its column is a view of it, without a
        copy."""
        if self._rows is None:
            yield self
            return
        start = 0
        for end, (_, _, _, _, payload) in enumerate(self._rows, 1):
            if len(payload) >= LARGE_BYTES_MIN:
                if start < end - 1:
                    yield self.slice(start, end - 1)
                yield self.slice(end - 1, end)
                start = end
        if start < len(self._rows):
            yield self.slice(start, len(self._rows))

    def ids(self) -> list[int]:
        """Return the message ids as Python integers."""
        rows = self._rows
        return self.message_ids.tolist() if rows is None else [message_id for _, message_id, _, _, _ in rows]

    def bodies(self) -> list[bytes]:
        """Return the payloads as bytes."""
        rows = self._rows
        return self.payloads.to_pylist() if rows is None else [bytes(payload) for _, _, _, _, payload in rows]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Messages):
            return NotImplemented
        return (
            np.array_equal(self.stream_ids, other.stream_ids)
            and np.array_equal(self.message_ids, other.message_ids)
            and np.array_equal(self.event_times, other.event_times)
            and bool(self.keys.equals(other.keys))
            and bool(self.payloads.equals(other.payloads))
        )

    __hash__ = None  # type: ignore[assignment]  # arrays are not hashable


@dataclass(frozen=True, slots=True)
class ListUncommitted:
    rtag: int


@dataclass(frozen=True, slots=True)
class ReplyUncommitted:
    rtag: int
    txn_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Phase1:
    txn_id: str
    where: tuple[tuple[int, int, int], ...]
    """Triples (stream id, start, end), the end exclusive."""


@dataclass(frozen=True, slots=True)
class Reply:
    txn_id: str
    commit: bool


@dataclass(frozen=True, slots=True)
class Phase2:
    txn_id: str
    commit: bool


@dataclass(frozen=True, slots=True)
class WorkersLeft:
    rtag: int
    workers: tuple[str, ...]


TwoPhase = ListUncommitted | ReplyUncommitted | Phase1 | Reply | Phase2 | WorkersLeft
