"""Two-phase commit inside the connector protocol: its messages as payloads, and a participant's lifecycle.

Invariant: a participant has one open transaction at a time, gets no output between PHASE1 and PHASE2, and never commits
a transaction that it voted to abort. The payloads travel unchanged in MESSAGE frames of stream 0.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Iterable, Iterator

from procession.errors import RemoteProtocolError
from procession.wire import frame_codec
from procession.wire.frame_codec import Reader
from procession.wire.messages import (
    TWOPC_STREAM,
    ListUncommitted,
    Message,
    Messages,
    Phase1,
    Phase2,
    Reply,
    ReplyUncommitted,
    TwoPhase,
    WorkersLeft,
)

_RANGE = struct.Struct(">QQQ")


def _texts(reader: Reader) -> tuple[str, ...]:
    return tuple(reader.short_text() for _ in range(reader.count(2)))


def _list_uncommitted(reader: Reader) -> TwoPhase:
    return ListUncommitted(reader.u64())


def _reply_uncommitted(reader: Reader) -> TwoPhase:
    return ReplyUncommitted(reader.u64(), _texts(reader))


def _phase1(reader: Reader) -> TwoPhase:
    txn_id, count = reader.short_text(), reader.count(_RANGE.size)
    return Phase1(txn_id, tuple(_RANGE.iter_unpack(reader.bytes_of(count * _RANGE.size))))


def _reply(reader: Reader) -> TwoPhase:
    return Reply(reader.short_text(), reader.boolean())


def _phase2(reader: Reader) -> TwoPhase:
    return Phase2(reader.short_text(), reader.boolean())


def _workers_left(reader: Reader) -> TwoPhase:
    return WorkersLeft(reader.u64(), _texts(reader))


_DECODERS: dict[int, Callable[[Reader], TwoPhase]] = {
    201: _list_uncommitted,
    202: _reply_uncommitted,
    203: _phase1,
    204: _reply,
    205: _phase2,
    206: _workers_left,
}


def decode(payload: bytes) -> TwoPhase:
    """Decode the payload of a stream-0 MESSAGE as a two-phase-commit message."""
    reader = Reader(payload)
    tag = reader.u8()
    decoder = _DECODERS.get(tag)
    if decoder is None:
        raise RemoteProtocolError(f"unknown two-phase-commit tag {tag}")
    message = decoder(reader)
    reader.finish()
    return message


def unpacked(events: Iterable[object]) -> Iterator[object]:
    """Yield the events, with 2PC messages taken out of the MESSAGE frames that carry them."""
    for event in events:
        if isinstance(event, Messages):
            yield from map(decode, event.bodies())
        else:
            yield event


def encode(message: TwoPhase) -> bytes:
    """Encode a message as a payload: tag and fields, without a length word."""
    match message:
        case ListUncommitted(rtag):
            return b"\xc9" + frame_codec.u64(rtag)
        case ReplyUncommitted(rtag, txn_ids):
            return b"\xca" + frame_codec.u64(rtag) + _encoded_texts(txn_ids)
        case Phase1(txn_id, where):
            triples = b"".join(frame_codec.u64(number) for triple in where for number in triple)
            return b"\xcb" + frame_codec.short_text(txn_id) + frame_codec.u32(len(where)) + triples
        case Reply(txn_id, commit):
            return b"\xcc" + frame_codec.short_text(txn_id) + frame_codec.u8(commit)
        case Phase2(txn_id, commit):
            return b"\xcd" + frame_codec.short_text(txn_id) + frame_codec.u8(commit)
        case WorkersLeft(rtag, workers):
            return b"\xce" + frame_codec.u64(rtag) + _encoded_texts(workers)


def _encoded_texts(texts: tuple[str, ...]) -> bytes:
    return frame_codec.u32(len(texts)) + b"".join(map(frame_codec.short_text, texts))


def wrap(message: TwoPhase) -> Message:
    """Return the MESSAGE frame that carries the message."""
    return Message(stream_id=TWOPC_STREAM, message_id=0, event_time=0, key=b"", payload=encode(message))


class ParticipantState(enum.Enum):
    """The state of a participant."""

    SETTLING = "settling"
    OPEN = "open"
    VOTING = "voting"
    PREPARED = "prepared"
    REFUSED = "refused"

    __hash__ = object.__hash__  # as in `lifecycle`


class ParticipantStep(enum.Enum):
    """An event that changes a participant's state."""

    LIST = "list uncommitted"
    SETTLED = "settled"
    DATA = "data"
    PHASE1 = "phase 1"
    VOTE_COMMIT = "vote commit"
    VOTE_ABORT = "vote abort"
    PHASE2_COMMIT = "phase 2 commit"
    PHASE2_ABORT = "phase 2 abort"
    WORKERS_LEFT = "workers left"

    __hash__ = object.__hash__


ROUND: dict[ParticipantState, dict[ParticipantStep, ParticipantState]] = {
    # Transactions that an earlier session left prepared are resolved before any new data.
    ParticipantState.SETTLING: {
        ParticipantStep.LIST: ParticipantState.SETTLING,
        ParticipantStep.PHASE2_COMMIT: ParticipantState.SETTLING,
        ParticipantStep.PHASE2_ABORT: ParticipantState.SETTLING,
        ParticipantStep.SETTLED: ParticipantState.OPEN,
        ParticipantStep.WORKERS_LEFT: ParticipantState.SETTLING,
    },
    ParticipantState.OPEN: {
        ParticipantStep.LIST: ParticipantState.OPEN,
        ParticipantStep.DATA: ParticipantState.OPEN,
        ParticipantStep.PHASE1: ParticipantState.VOTING,
        ParticipantStep.WORKERS_LEFT: ParticipantState.OPEN,
    },
    # Until the vote is durable, the state of the transaction is undefined: a sink may list it or not.
    ParticipantState.VOTING: {
        ParticipantStep.VOTE_COMMIT: ParticipantState.PREPARED,
        ParticipantStep.VOTE_ABORT: ParticipantState.REFUSED,
    },
    # Between PHASE1 and PHASE2 no output is allowed on any stream.
    ParticipantState.PREPARED: {
        ParticipantStep.LIST: ParticipantState.PREPARED,
        ParticipantStep.PHASE2_COMMIT: ParticipantState.OPEN,
        ParticipantStep.PHASE2_ABORT: ParticipantState.OPEN,
        ParticipantStep.WORKERS_LEFT: ParticipantState.PREPARED,
    },
    ParticipantState.REFUSED: {
        ParticipantStep.LIST: ParticipantState.REFUSED,
        ParticipantStep.PHASE2_ABORT: ParticipantState.OPEN,
        ParticipantStep.WORKERS_LEFT: ParticipantState.REFUSED,
    },
}


class ParticipantLifecycle:
    """The state of one sink connection in its round. A step that is not in the table is the coordinator's error."""

    def __init__(self, prepared: tuple[str, ...] = ()) -> None:
        self.open_txn_ids = set(prepared)
        self.state = ParticipantState.SETTLING if prepared else ParticipantState.OPEN

    def listed(self) -> None:
        """Handle LIST_UNCOMMITTED."""
        self._move(ParticipantStep.LIST)

    def data(self) -> None:
        """Handle output on stream 1."""
        self._move(ParticipantStep.DATA)

    def phase1(self, txn_id: str) -> None:
        self._move(ParticipantStep.PHASE1)
        self.open_txn_ids = {txn_id}

    def vote(self, commit: bool) -> None:
        self._move(ParticipantStep.VOTE_COMMIT if commit else ParticipantStep.VOTE_ABORT)

    def phase2(self, txn_id: str, commit: bool) -> None:
        if txn_id not in self.open_txn_ids:
            raise RemoteProtocolError(f"phase 2 of transaction {txn_id}, which is not open here")
        self._move(ParticipantStep.PHASE2_COMMIT if commit else ParticipantStep.PHASE2_ABORT)
        self.open_txn_ids.remove(txn_id)
        if self.state is ParticipantState.SETTLING and not self.open_txn_ids:
            self._move(ParticipantStep.SETTLED)

    def workers_left(self) -> None:
        """Handle WORKERS_LEFT, which is not a step of the round."""
        self._move(ParticipantStep.WORKERS_LEFT)

    def _move(self, step: ParticipantStep) -> None:
        following = ROUND[self.state].get(step)
        if following is None:
            raise RemoteProtocolError(f"{step.value} while {self.state.value}")
        self.state = following
