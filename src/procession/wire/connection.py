"""One end of one connection, without the socket: feed it bytes and get events, give it frames and get bytes.

The one rule: what the tables (`lifecycle_walker`) forbid the peer is reported as a `Violation`, what they forbid us
raises `LocalProtocolError`, and neither changes anything else. An acceptor speaks whatever the first frame is of.
Before it stands the socket (`gateway.server`, `sdk`), after it whoever decides (`gateway.state`). Cookies, versions and
two-phase-commit payloads are the decider's matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from procession.errors import LocalProtocolError, RemoteProtocolError
from procession.wire import columns, v3
from procession.wire.columns import BYTES_MAX, COLUMNS_BYTES_MIN, Columns, Stop
from procession.wire.dialect import V3, Dialect, Gather, dialect_of
from procession.wire.draft_messages import AnyFrame, DraftMessages
from procession.wire.frame_codec import FRAME_BYTES_MAX, SHORT_BYTES_MAX, Bytes, Framer
from procession.wire.lifecycle import Role, Side, State
from procession.wire.lifecycle_walker import OVER, Blame, Walk
from procession.wire.messages import (
    Error,
    Hello,
    Ids,
    Message,
    MessageFields,
    Messages,
    NotifyAck,
)

HELLO_BYTES_MAX = 1 + 4 * (2 + SHORT_BYTES_MAX)
"""The longest HELLO there can be: all that a peer may make us hold before it has said who it is."""

REASON_BYTES_MAX = 1024

_CONNECTED = State.CONNECTED


@dataclass(frozen=True, slots=True)
class Violation:
    """The peer broke the protocol. Always the last event: the frames before it count, what follows is discarded."""

    reason: str


Event = AnyFrame | Messages | DraftMessages | Violation
"""MESSAGE frames always come as `Messages`, those of the draft as `DraftMessages`; any other frame comes as itself."""


class Connection(Walk):
    """One end. On a source's connection it also keeps the credits, which sinks do not use."""

    def __init__(
        self,
        side: Side,
        role: Role,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        columns_bytes_min: int = COLUMNS_BYTES_MIN,
        dialect: Dialect = V3,
    ) -> None:
        super().__init__(side, role, dialect)
        self.frame_bytes_max = frame_bytes_max
        self.columns_bytes_min = columns_bytes_min
        self._framer = Framer(min(HELLO_BYTES_MAX, frame_bytes_max))

    # Receiving

    def receive(self, data: Bytes) -> list[Event]:
        """The events that these bytes complete, in order. After an error or RESTART, bytes are discarded.

        `data` may be a view of a buffer that is used again: no event refers to it.
        """
        events: list[Event] = []
        if self.is_over:
            return events
        self._framer.begin(data)
        try:
            while self.state not in OVER and (tag := self._framer.peek()) is not None:
                if self.state is _CONNECTED:
                    self._hear_dialect(tag)
                if tag == self.dialect.message_tag:
                    self._take_messages(events)
                else:
                    frame = self._decoded(tag)
                    self._walk(self.peer, frame, RemoteProtocolError)
                    events.append(frame)
        except RemoteProtocolError as error:
            self.state = State.ERROR
            events.append(Violation(error.sentence))
        if self.state in OVER:
            self._framer.drop()
        else:
            self._framer.keep()
        return events

    def _walk(self, sender: Side, frame: AnyFrame, blame: Blame) -> None:
        self.step(sender, frame, blame)
        if isinstance(frame, Hello):
            self._framer.frame_bytes_max = self.frame_bytes_max

    def _hear_dialect(self, tag: int) -> None:
        if self.side is Side.ACCEPTOR:
            dialect = dialect_of(tag, self.role, self.dialect)
            if dialect is not self.dialect:
                self.speak(dialect)

    def _decoded(self, tag: int) -> AnyFrame:
        if tag == v3.ERROR_TAG and self.side is Side.INITIATOR and self.state is not State.STREAMING:
            # A gateway that turns us away before it has read our HELLO does not know what we speak.
            return v3.decode(self._framer.take())
        return self.dialect.decode(self._framer.take())

    def implied(self) -> Iterator[NotifyAck]:
        """The answers to our NOTIFYs that no frame brings: in the draft a stream is open at once, and OK or an ACK has
        told where it goes on. To be asked whenever something was sent or received."""
        return self.interpreter.answers()

    def _take_messages(self, events: list[Event]) -> None:
        """Consecutive MESSAGE frames at once: by columns if they are many, else frame by frame, to the same event."""
        if self.dialect.gather is not None:
            self._take_frames(self.dialect.gather, events)
            return
        self.allow(self.peer, Message, RemoteProtocolError)
        rows_max = self.credit.affordable if self.peer is self.spender else BYTES_MAX
        size_bytes = self._framer.size_bytes
        if columns.is_ready() and self.columns_bytes_min <= size_bytes <= BYTES_MAX:
            self._take_columns(Columns(size_bytes), rows_max, events)
        else:
            self._take_rows(rows_max, events)

    def _take_columns(self, taken: Columns, rows_max: int, events: list[Event]) -> None:
        """The gateway's hot path: it takes no step per frame."""
        framer, why = self._framer, Stop.END
        try:
            while why is Stop.END and framer.peek() == v3.MESSAGE_TAG:
                framer.position, why = taken.take(framer.window, framer.position, framer.frame_bytes_max, rows_max)
        finally:
            messages = taken.messages()
            allowed = self._allowed(messages.stream_ids)
            if allowed:
                self._deliver(messages.slice(0, allowed), events)
            if allowed < len(messages):
                # Stands before whatever else was met.
                self.allow_message(self.peer, int(messages.stream_ids[allowed]), RemoteProtocolError)
        if why is Stop.TRUNCATED:
            raise RemoteProtocolError("truncated frame")
        if why is Stop.ENOUGH:
            raise RemoteProtocolError("credits overspent")

    def _allowed(self, stream_ids: Ids) -> int:
        """How many of these messages come before the first that its stream forbids."""
        if not len(stream_ids):
            return 0
        is_one = bool((stream_ids == stream_ids[0]).all())
        distinct = stream_ids[:1] if is_one else np.unique(stream_ids)
        forbidden = [stream_id for stream_id in distinct.tolist() if not self._is_allowed(stream_id)]
        return int(np.isin(stream_ids, forbidden).argmax()) if forbidden else len(stream_ids)

    def _is_allowed(self, stream_id: int) -> bool:
        try:
            self.allow_message(self.peer, stream_id, RemoteProtocolError)
        except RemoteProtocolError:
            return False
        return True

    def _take_rows(self, rows_max: int, events: list[Event]) -> None:
        rows: list[MessageFields] = []
        known_open: int | None = None
        try:
            while self._framer.peek() == v3.MESSAGE_TAG:
                if len(rows) == rows_max:
                    raise RemoteProtocolError("credits overspent")
                row = v3.message_fields(self._framer.take())
                if row[0] != known_open:
                    self.allow_message(self.peer, row[0], RemoteProtocolError)
                    known_open = row[0]
                rows.append(row)
        finally:
            if rows:
                self._deliver(Messages.few(rows), events)

    def _take_frames(self, gather: Gather, events: list[Event]) -> None:
        taken: list[AnyFrame] = []
        try:
            while self._framer.peek() == self.dialect.message_tag:
                message = self.dialect.decode(self._framer.take())
                self.step(self.peer, message, RemoteProtocolError)
                taken.append(message)
        finally:
            if taken:
                events.append(gather(tuple(taken)))

    def _deliver(self, messages: Messages, events: list[Event]) -> None:
        if self.peer is self.spender:
            self.credit.spend(len(messages))
        events.append(messages)

    # Sending

    def send(self, frame: AnyFrame) -> bytes:
        """The bytes of this frame, and the step that it means; or LocalProtocolError, and nothing has changed.

        A source may say MESSAGE and EOS_MESSAGE in the words of version 3, whatever it speaks.
        """
        frame = self.interpreter.translated(frame)
        data = self.dialect.encode(frame)
        if len(data) - 4 > self.frame_bytes_max:
            raise LocalProtocolError(f"a frame of {len(data) - 4} bytes, the limit is {self.frame_bytes_max}")
        self._walk(self.side, frame, LocalProtocolError)
        return data

    def send_messages(
        self,
        stream_id: int,
        message_ids: v3.Integers | None,
        event_times: v3.Integers,
        keys: pa.Array | None,
        payloads: pa.Array,
    ) -> pa.Buffer:
        """The bytes of many MESSAGE frames of one stream, made by columns (see `v3.encode_messages`). Without message
        ids they are ephemeral, which only the draft can say."""
        self.allow(self.side, self.dialect.message, LocalProtocolError)
        self.allow_message(self.side, stream_id, LocalProtocolError)
        count = len(payloads)
        if self.side is self.spender and count > self.credit.available:
            raise LocalProtocolError(f"{count} messages for {self.credit.available} credits")
        data = self.dialect.encode_messages(stream_id, message_ids, event_times, keys, payloads, self.frame_bytes_max)
        if self.side is self.spender:
            self.credit.spend(count)
        if message_ids is None:
            self.interpreter.sent_without_ids(stream_id)
        return data

    def error_frame(self, reason: str) -> bytes:
        """ERROR, to be sent before closing. Allowed in every state: after a violation it is what is left to say."""
        self.state = State.ERROR
        return self.dialect.encode(Error(reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")))
