"""The words of the connector protocol: one frozen value per frame, and per two-phase-commit message.

The one rule: a value here knows nothing of bytes, states or sockets. `v3` and `twopc` turn these values into bytes and
back; `connection` says when each may be sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NOTHING_COMMITTED = 2**64 - 1
"""The point of reference that means "no message of this stream is committed yet"."""

TWOPC_STREAM = 0
"""On a sink's connection, the stream that carries two-phase-commit messages; never notified, always open."""

DATA_STREAM = 1
"""On a sink's connection, the stream that carries output; a message id is the position of its first byte."""


@dataclass(frozen=True, slots=True)
class Hello:
    version: str
    cookie: bytes
    program: str
    instance: str

    def __repr__(self) -> str:
        # Values end up in log lines and error reports; the cookie never does.
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
    """The text has one; existing peers send none."""


Frame = Hello | Ok | Error | Notify | NotifyAck | Message | Ack | Restart | Eos


@dataclass(frozen=True, slots=True)
class Messages:
    """Consecutive MESSAGE frames as columns of equal length, in the order of arrival."""

    stream_ids: Sequence[int]
    message_ids: Sequence[int]
    event_times: Sequence[int]
    keys: Sequence[bytes]
    payloads: Sequence[bytes]

    def __len__(self) -> int:
        return len(self.message_ids)


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
