"""Two-phase commit inside the connector protocol: its messages to payloads and back, and a participant's lifecycle.

The one rule: at a participant one transaction is open at a time, nothing is written between PHASE1 and PHASE2, and what
was voted abort is never committed. The payloads travel in MESSAGE frames of stream 0, which `connection` carries as
they are.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable

from procession.errors import RemoteProtocolError
from procession.wire import frame_codec
from procession.wire.frame_codec import Reader
from procession.wire.messages import (
    TWOPC_STREAM,
    ListUncommitted,
    Message,
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
    """The two-phase-commit message that this payload of a stream-0 MESSAGE says."""
    reader = Reader(payload)
    tag = reader.u8()
    decoder = _DECODERS.get(tag)
    if decoder is None:
        raise RemoteProtocolError(f"unknown two-phase-commit tag {tag}")
    message = decoder(reader)
    reader.finish()
    return message


def encode(message: TwoPhase) -> bytes:
    """The payload: tag and fields, without an inner length word."""
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
    """The MESSAGE frame that carries it."""
    return Message(stream_id=TWOPC_STREAM, message_id=0, event_time=0, key=b"", payload=encode(message))


class Round(enum.Enum):
    """Where a participant stands."""

    SETTLING = "settling"
    OPEN = "open"
    VOTING = "voting"
    PREPARED = "prepared"
    REFUSED = "refused"

    __hash__ = object.__hash__  # as in `lifecycle`


class Step(enum.Enum):
    """What moves a participant on."""

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


ROUND: dict[Round, dict[Step, Round]] = {
    # Transactions left prepared by an earlier session are decided before any new data.
    Round.SETTLING: {
        Step.LIST: Round.SETTLING,
        Step.PHASE2_COMMIT: Round.SETTLING,
        Step.PHASE2_ABORT: Round.SETTLING,
        Step.SETTLED: Round.OPEN,
        Step.WORKERS_LEFT: Round.SETTLING,
    },
    Round.OPEN: {
        Step.LIST: Round.OPEN,
        Step.DATA: Round.OPEN,
        Step.PHASE1: Round.VOTING,
        Step.WORKERS_LEFT: Round.OPEN,
    },
    # Until the vote is durable nothing can be said of the transaction, not even whether it is listed.
    Round.VOTING: {
        Step.VOTE_COMMIT: Round.PREPARED,
        Step.VOTE_ABORT: Round.REFUSED,
    },
    # Between PHASE1 and PHASE2 no output may come, on no stream.
    Round.PREPARED: {
        Step.LIST: Round.PREPARED,
        Step.PHASE2_COMMIT: Round.OPEN,
        Step.PHASE2_ABORT: Round.OPEN,
        Step.WORKERS_LEFT: Round.PREPARED,
    },
    Round.REFUSED: {
        Step.LIST: Round.REFUSED,
        Step.PHASE2_ABORT: Round.OPEN,
        Step.WORKERS_LEFT: Round.REFUSED,
    },
}


class Participant:
    """One sink connection's place in its round. A step that the table does not have is the coordinator's error."""

    def __init__(self, prepared: tuple[str, ...] = ()) -> None:
        self.open_txn_ids = set(prepared)
        self.state = Round.SETTLING if prepared else Round.OPEN

    def listed(self) -> None:
        """LIST_UNCOMMITTED came, and is answered."""
        self._move(Step.LIST)

    def data(self) -> None:
        """Output came on stream 1."""
        self._move(Step.DATA)

    def phase1(self, txn_id: str) -> None:
        self._move(Step.PHASE1)
        self.open_txn_ids = {txn_id}

    def vote(self, commit: bool) -> None:
        self._move(Step.VOTE_COMMIT if commit else Step.VOTE_ABORT)

    def phase2(self, txn_id: str, commit: bool) -> None:
        if txn_id not in self.open_txn_ids:
            raise RemoteProtocolError(f"phase 2 of transaction {txn_id}, which is not open here")
        self._move(Step.PHASE2_COMMIT if commit else Step.PHASE2_ABORT)
        self.open_txn_ids.remove(txn_id)
        if self.state is Round.SETTLING and not self.open_txn_ids:
            self._move(Step.SETTLED)

    def workers_left(self) -> None:
        """The coordinator told who has left the cluster: news, and no step of the round."""
        self._move(Step.WORKERS_LEFT)

    def _move(self, step: Step) -> None:
        following = ROUND[self.state].get(step)
        if following is None:
            raise RemoteProtocolError(f"{step.value} while {self.state.value}")
        self.state = following
