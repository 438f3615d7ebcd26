"""The frame splitter: cuts bytes between two parts into whole frames, each with its kind. Pure.

The one rule: what it gives out, joined, is what it was fed; it only says where a frame begins and what it is. Bytes
that are no frames go through uncut. Before it the proxy's socket; after it the proxy's faults, which want to strike
just before or after a certain word.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, Protocol

from procession.errors import RemoteProtocolError
from procession.wire import two_phase_commit
from procession.wire.frame_codec import FRAME_BYTES_MAX
from procession.wire.messages import TWOPC_STREAM, Reply, TwoPhase

_LENGTH = struct.Struct(">I")
_MESSAGE = struct.Struct(">xQQqH")
_TAGS = ("hello", "ok", "error", "notify", "notify-ack", "message", "ack", "restart", "eos")
_MESSAGE_TAG = 5


class Piece(NamedTuple):
    """A whole frame, or a line, or whatever could not be understood (kind "")."""

    data: bytes
    kind: str


class Cutter(Protocol):
    def feed(self, data: bytes) -> list[Piece]: ...


class FrameCutter:
    """Frames of the connector protocol; two-phase words are named by themselves: phase1, reply, phase2, …; and
    refusal, a reply that says no."""

    def __init__(self) -> None:
        self._rest = b""
        self._is_lost = False

    def feed(self, data: bytes) -> list[Piece]:
        if self._is_lost:
            return [Piece(data, "")]
        pieces: list[Piece] = []
        data = self._rest + data
        start = 0
        while start + 4 <= len(data):
            (length,) = _LENGTH.unpack_from(data, start)
            if not 0 < length <= FRAME_BYTES_MAX:
                self._is_lost, self._rest = True, b""
                return [*pieces, Piece(data[start:], "")]
            stop = start + 4 + length
            if stop > len(data):
                break
            pieces.append(Piece(data[start:stop], _kind(data[start + 4 : stop])))
            start = stop
        self._rest = data[start:]
        return pieces


class LineCutter:
    """Lines of the control port."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Piece]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [Piece(line + b"\n", "line") for line in lines]


def _kind(body: bytes) -> str:
    tag = body[0]
    if tag == _MESSAGE_TAG and len(body) >= _MESSAGE.size:
        stream_id, _, _, key_length = _MESSAGE.unpack_from(body)
        if stream_id == TWOPC_STREAM:
            try:
                return _word(two_phase_commit.decode(body[_MESSAGE.size + key_length :]))
            except RemoteProtocolError:
                return "message"
    return _TAGS[tag] if tag < len(_TAGS) else ""


def _word(message: TwoPhase) -> str:
    match message:
        case Reply(commit=False):
            return "refusal"
        case _:
            return type(message).__name__.lower()
