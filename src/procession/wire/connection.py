"""One end of one connection, without the socket: feed it bytes and get events, give it frames and get bytes.

The one rule: it walks the tables of `lifecycle` and `stream`; what they forbid the peer is reported as a `Violation`,
what they forbid us raises `LocalProtocolError`, and neither changes anything else. Before it stands the socket
(`gateway.server`, `sdk`), after it whoever decides (`gateway.state`). Cookies, versions and two-phase-commit payloads
are the decider's matter.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pyarrow as pa

from procession.errors import LocalProtocolError, RemoteProtocolError
from procession.wire import v3
from procession.wire.codec import FRAME_BYTES_MAX, SHORT_BYTES_MAX, Framer
from procession.wire.credit import CreditWindow
from procession.wire.lifecycle import TABLES, Role, Side, State
from procession.wire.messages import (
    TWOPC_STREAM,
    Ack,
    Eos,
    Error,
    Frame,
    Hello,
    Message,
    Messages,
    Notify,
    NotifyAck,
    Ok,
    Restart,
)
from procession.wire.stream import STREAM, StreamState, StreamStep

HELLO_BYTES_MAX = 1 + 4 * (2 + SHORT_BYTES_MAX)
"""The longest HELLO there can be: all that a peer may make us hold before it has said who it is."""

REASON_BYTES_MAX = 1024

_MESSAGE_FIELDS = struct.Struct(">xQQqH")


@dataclass(frozen=True, slots=True)
class Violation:
    """The peer broke the protocol. Always the last event: the frames before it count, what follows is discarded."""

    reason: str


Event = Frame | Messages | Violation
"""MESSAGE frames always come as `Messages`; every other frame comes as itself."""


Blame = type[LocalProtocolError] | type[RemoteProtocolError]
"""Whose error a forbidden step is: ours when we send, the peer's when we receive."""


class Connection:
    """The protocol state of one end. On a source's connection it also keeps the credits, which sinks do not use."""

    def __init__(self, side: Side, role: Role, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.side = side
        self.role = role
        self.frame_bytes_max = frame_bytes_max
        self.state = State.CONNECTED
        self.credit = CreditWindow()
        self._framer = Framer(min(HELLO_BYTES_MAX, frame_bytes_max))
        self._streams: dict[int, StreamState] = {TWOPC_STREAM: StreamState.OPEN} if role is Role.SINK else {}

    @property
    def is_over(self) -> bool:
        """Nothing may be sent any more, and what comes is discarded."""
        return self.state in (State.ERROR, State.DISCONNECTED)

    def stream_state(self, stream_id: int) -> StreamState:
        return self._streams.get(stream_id, StreamState.START)

    # Receiving

    def receive(self, data: bytes) -> list[Event]:
        """The events that these bytes complete, in order. After an error or RESTART, bytes are discarded."""
        events: list[Event] = []
        if self.is_over:
            return events
        try:
            self._take(self._framer.feed(data), events)
            if self._framer.is_broken and not self.is_over:
                self._framer.feed(b"")
        except RemoteProtocolError as error:
            self.state = State.ERROR
            events.append(Violation(error.sentence))
        return events

    def _take(self, bodies: list[bytes], events: list[Event]) -> None:
        position = 0
        while position < len(bodies) and not self.is_over:
            if bodies[position][0] == v3.MESSAGE_TAG:
                position = self._take_messages(bodies, position, events)
            else:
                frame = v3.decode(bodies[position])
                self._step(self.side.other, frame, RemoteProtocolError)
                events.append(frame)
                position += 1

    def _take_messages(self, bodies: list[bytes], position: int, events: list[Event]) -> int:
        """Consecutive MESSAGE frames at once. The gateway's hot loop: it asks the tables per run, not per frame."""
        self._allow(self.side.other, Message, RemoteProtocolError)
        afford = self.credit.affordable if self._spends(self.side.other) else len(bodies)
        stop = min(len(bodies), position + afford)
        stream_ids: list[int] = []
        message_ids: list[int] = []
        event_times: list[int] = []
        keys: list[bytes] = []
        payloads: list[bytes] = []
        unpack, fixed = _MESSAGE_FIELDS.unpack_from, _MESSAGE_FIELDS.size
        known_open: int | None = None
        try:
            while position < stop:
                body = bodies[position]
                if body[0] != v3.MESSAGE_TAG:
                    break
                stream_id, message_id, event_time, key_length = unpack(body)
                payload_start = fixed + key_length
                if payload_start > len(body):
                    raise RemoteProtocolError("truncated frame")
                if stream_id != known_open:
                    self._allow_message(self.side.other, stream_id, RemoteProtocolError)
                    known_open = stream_id
                stream_ids.append(stream_id)
                message_ids.append(message_id)
                event_times.append(event_time)
                keys.append(body[fixed:payload_start])
                payloads.append(body[payload_start:])
                position += 1
        except struct.error:
            raise RemoteProtocolError("truncated frame") from None
        finally:
            if message_ids:
                if self._spends(self.side.other):
                    self.credit.spend(len(message_ids))
                events.append(Messages(stream_ids, message_ids, event_times, keys, payloads))
        if position == stop < len(bodies) and bodies[position][0] == v3.MESSAGE_TAG:
            raise RemoteProtocolError("credits overspent")
        return position

    # Sending

    def send(self, frame: Frame) -> bytes:
        """The bytes of this frame, and the step that it means; or LocalProtocolError, and nothing has changed."""
        data = v3.encode(frame)
        if len(data) - 4 > self.frame_bytes_max:
            raise LocalProtocolError(f"a frame of {len(data) - 4} bytes, the limit is {self.frame_bytes_max}")
        self._step(self.side, frame, LocalProtocolError)
        return data

    def send_messages(
        self,
        stream_id: int,
        message_ids: v3.Integers,
        event_times: v3.Integers,
        keys: pa.Array | None,
        payloads: pa.Array,
    ) -> pa.Buffer:
        """The bytes of many MESSAGE frames of one stream, made by columns (see `v3.encode_messages`)."""
        self._allow(self.side, Message, LocalProtocolError)
        self._allow_message(self.side, stream_id, LocalProtocolError)
        count = len(payloads)
        if self._spends(self.side) and count > self.credit.available:
            raise LocalProtocolError(f"{count} messages for {self.credit.available} credits")
        data = v3.encode_messages(stream_id, message_ids, event_times, keys, payloads, self.frame_bytes_max)
        if self._spends(self.side):
            self.credit.spend(count)
        return data

    def error_frame(self, reason: str) -> bytes:
        """ERROR, to be sent before closing. Allowed in every state: after a violation it is what is left to say."""
        self.state = State.ERROR
        return v3.encode(Error(reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")))

    # Steps

    def _step(self, sender: Side, frame: Frame, blame: Blame) -> None:
        """Check the frame against the tables and the credits, then move. A frame that is refused changes nothing."""
        following = self._allow(sender, type(frame), blame)
        match frame:
            case Hello():
                self._framer.frame_bytes_max = self.frame_bytes_max
            case Ok(credits=credits):
                self.credit.grant(credits)
            case Notify(stream_id=stream_id):
                self._produce(sender, stream_id, StreamStep.NOTIFY, blame)
            case NotifyAck(success=success, stream_id=stream_id):
                step = StreamStep.ACCEPTED if success else StreamStep.REFUSED
                self._streams[stream_id] = self._after(stream_id, step, blame)
            case Message(stream_id=stream_id):
                self._allow_message(sender, stream_id, blame)
                self._produce(sender, stream_id, StreamStep.MESSAGE, blame)
            case Eos(stream_id=stream_id):
                self._produce(sender, stream_id, StreamStep.EOS, blame)
            case Ack(credits=credits, positions=positions):
                self._streams |= {
                    stream_id: self._after(stream_id, StreamStep.ACK, blame) for stream_id, _ in positions
                }
                self.credit.grant(credits)
            case Restart():
                self._streams = dict.fromkeys(self._streams, StreamState.TERMINATED)
        self.state = following

    def _allow(self, sender: Side, kind: type[Frame], blame: Blame) -> State:
        following = TABLES[self.role][self.state][sender].get(kind)
        if following is None:
            raise blame(f"{kind.__name__} from the {sender.value} while {self.state.value}")
        return following

    def _allow_message(self, sender: Side, stream_id: int, blame: Blame) -> None:
        if self.role is Role.SINK and sender is Side.ACCEPTOR and stream_id != TWOPC_STREAM:
            raise blame(f"a sink's MESSAGE on stream {stream_id}")
        self._after(stream_id, StreamStep.MESSAGE, blame)

    def _after(self, stream_id: int, step: StreamStep, blame: Blame) -> StreamState:
        before = self.stream_state(stream_id)
        following = STREAM[before].get(step)
        if following is None:
            raise blame(f"{step.value} on stream {stream_id}, which is {before.value}")
        return following

    def _produce(self, sender: Side, stream_id: int, step: StreamStep, blame: Blame) -> None:
        """A frame of the connector: it moves its stream and costs a credit."""
        following = self._after(stream_id, step, blame)
        if self._spends(sender):
            if sender is self.side and self.credit.available < 1:
                # We hold ourselves to what was granted; the drift is for peers.
                raise LocalProtocolError("no credit left")
            if step is StreamStep.EOS:
                self.credit.tolerate()
            self.credit.spend()
        self._streams[stream_id] = following

    def _spends(self, sender: Side) -> bool:
        return self.role is Role.SOURCE and sender is Side.INITIATOR
