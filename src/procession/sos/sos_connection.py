"""One end of a connection to the object service, without the socket: converts bytes to frames, and frames to bytes.
Pure.

Invariant: a step of the peer that the lifecycle forbids is a `SosViolation`, a forbidden step of this side is a
LocalProtocolError; neither changes anything else. A client has at most as many requests without a reply as WELCOME
granted, and each reply answers one of them. `sos/sos_server` and `sos/sos_client` have the sockets.
"""

from __future__ import annotations

from dataclasses import dataclass

from procession.errors import LocalProtocolError, ProcessionError, RemoteProtocolError
from procession.sos.sos_frames import (
    FRAME_BYTES_MAX,
    HELLO_BYTES_MAX,
    REASON_BYTES_MAX,
    REPLIES,
    REQUESTS,
    SHAPES,
    ChunksReply,
    NamesReply,
    ProgressReply,
    RefusedReply,
    SosError,
    SosFrame,
    SosHello,
    SosWelcome,
    VolumeReply,
    decode,
    encode,
)
from procession.sos.sos_frames import AppendChunk as Append
from procession.sos.sos_frames import CreateObject as Create
from procession.sos.sos_frames import ListVolumes as List
from procession.sos.sos_frames import ReadChunks as Read
from procession.sos.sos_lifecycle import SOS, SosState
from procession.wire.frame_codec import Bytes, Framer
from procession.wire.lifecycle import ConnectionSide

_ANSWERED_BY: dict[type, type] = {Append: ProgressReply, Create: ProgressReply, List: NamesReply, Read: ChunksReply}
"""The reply to each request, unless it is refused. Unlisted requests are answered with the volume."""


@dataclass(frozen=True, slots=True)
class SosViolation:
    """The peer broke the protocol. It is the last event."""

    reason: str


SosEvent = SosFrame | SosViolation


class SosConnection:
    """One end of a connection. `credits` is the number of requests that a server grants."""

    def __init__(self, side: ConnectionSide, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.side = side
        self.state = SosState.CONNECTED
        self.credits = 0
        """Maximum number of requests without a reply at a time."""
        self.waiting: dict[int, type] = {}
        """The requests without a reply, by number, with the kind of their reply."""
        self._frame_bytes_max = frame_bytes_max
        self._framer = Framer(HELLO_BYTES_MAX)

    @property
    def is_over(self) -> bool:
        return self.state is SosState.ERROR

    @property
    def free_credits(self) -> int:
        return self.credits - len(self.waiting)

    def receive(self, data: Bytes) -> list[SosEvent]:
        """Decode the frames that these bytes complete, in order. After an error, bytes are discarded."""
        events: list[SosEvent] = []
        if self.is_over:
            return events
        self._framer.begin(data)
        try:
            while self.state is not SosState.ERROR and self._framer.peek() is not None:
                value = decode(self._framer.take())
                self._step(self.side.other, value, RemoteProtocolError)
                events.append(value)
        except RemoteProtocolError as error:
            self.state = SosState.ERROR
            events.append(SosViolation(error.sentence))
        (self._framer.drop if self.is_over else self._framer.keep)()
        return events

    def send(self, value: SosFrame) -> bytes:
        """Encode a frame and take its step. Raises LocalProtocolError and changes nothing if it is forbidden."""
        data = encode(value)
        self._step(self.side, value, LocalProtocolError)
        return data

    def error_frame(self, reason: str) -> bytes:
        """Encode an ERROR, to be sent before closing. Allowed in every state, even after a violation."""
        self.state = SosState.ERROR
        return encode(SosError(reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")))

    def _step(self, sender: ConnectionSide, value: SosFrame, blame: type[ProcessionError]) -> None:
        kind = type(value)
        following = SOS[self.state][sender].get(kind)
        if following is None:
            raise blame(f"a frame of tag {SHAPES[kind][0]} while the connection is {self.state.value}")
        if isinstance(value, REQUESTS):
            if value.request in self.waiting:
                raise blame(f"request {value.request} twice")
            if self.free_credits < 1:
                raise blame("credits overspent")
            self.waiting[value.request] = _ANSWERED_BY.get(kind, VolumeReply)
        elif isinstance(value, REPLIES):
            expected = self.waiting.get(value.request)
            if expected is None or kind not in (expected, RefusedReply):
                raise blame(f"a reply to request {value.request}, which does not wait for it")
            del self.waiting[value.request]
        elif isinstance(value, SosHello):
            self._framer.frame_bytes_max = self._frame_bytes_max
        elif isinstance(value, SosWelcome):
            self.credits = value.credits
        self.state = following
