"""Splits bytes between two parts into whole frames, each with its kind. Pure.

Invariant: the concatenated output equals the input. Bytes that are not frames pass unsplit. The proxy uses it to
inject faults just before or after a certain message.
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


class SplitFrame(NamedTuple):
    """A complete frame or line, or unknown bytes (kind "")."""

    data: bytes
    kind: str


class StreamSplitter(Protocol):
    def feed(self, data: bytes) -> list[SplitFrame]: ...


class FrameSplitter:
    """Splits frames of the connector protocol. Two-phase-commit messages have their own kinds: phase1, reply, phase2;
    and refusal, a reply that votes abort."""

    def __init__(self) -> None:
        self._rest = b""
        self._is_unsynchronized = False

    def feed(self, data: bytes) -> list[SplitFrame]:
        if self._is_unsynchronized:
            return [SplitFrame(data, "")]
        pieces: list[SplitFrame] = []
        data = self._rest + data
        start = 0
        while start + 4 <= len(data):
            (length,) = _LENGTH.unpack_from(data, start)
            if not 0 < length <= FRAME_BYTES_MAX:
                self._is_unsynchronized, self._rest = True, b""
                return [*pieces, SplitFrame(data[start:], "")]
            stop = start + 4 + length
            if stop > len(data):
                break
            pieces.append(SplitFrame(data[start:stop], _kind(data[start + 4 : stop])))
            start = stop
        self._rest = data[start:]
        return pieces


class LineSplitter:
    """Splits the lines of the control port."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[SplitFrame]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [SplitFrame(line + b"\n", "line") for line in lines]


class PieceSplitter:
    """Returns each read as one piece, for protocols of other systems."""

    def feed(self, data: bytes) -> list[SplitFrame]:
        return [SplitFrame(data, "")]


def _kind(body: bytes) -> str:
    tag = body[0]
    if tag == _MESSAGE_TAG and len(body) >= _MESSAGE.size:
        stream_id, _, _, key_length = _MESSAGE.unpack_from(body)
        if stream_id == TWOPC_STREAM:
            try:
                return _two_phase_kind(two_phase_commit.decode(body[_MESSAGE.size + key_length :]))
            except RemoteProtocolError:
                return "message"
    return _TAGS[tag] if tag < len(_TAGS) else ""


def _two_phase_kind(message: TwoPhase) -> str:
    match message:
        case Reply(commit=False):
            return "refusal"
        case _:
            return type(message).__name__.lower()
