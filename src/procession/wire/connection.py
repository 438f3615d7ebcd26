"""One end of a connection, without the socket: takes bytes and returns events, takes frames and returns bytes.

Invariant: a step of the peer that the lifecycle tables forbid is reported as a `Violation`. A forbidden step of this
side raises `LocalProtocolError`. Neither changes anything else. An acceptor speaks the protocol version of the first
frame that it receives. The socket is in `gateway.server` or `sdk`. Cookies, versions and two-phase-commit payloads are
checked by the caller (`gateway.state`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from procession.errors import LocalProtocolError, RemoteProtocolError
from procession.wire import columns, v3
from procession.wire.columns import BYTES_MAX, COLUMNS_BYTES_MIN, Columns, PassEnd
from procession.wire.dialect import V3, Dialect, Gather, dialect_of
from procession.wire.draft_messages import AnyFrame, DraftMessages
from procession.wire.frame_codec import FRAME_BYTES_MAX, SHORT_BYTES_MAX, Bytes, Framer
from procession.wire.lifecycle import ConnectionSide, ConnectionState, Role
from procession.wire.lifecycle_walker import OVER, Blame, LifecycleWalker
from procession.wire.messages import (
    STREAM_ID_OF,
    Error,
    Hello,
    Ids,
    Message,
    MessageFields,
    Messages,
    NotifyAck,
)

HELLO_BYTES_MAX = 1 + 4 * (2 + SHORT_BYTES_MAX)
"""Size of the longest possible HELLO, which is the most that is buffered for a peer before its HELLO."""

REASON_BYTES_MAX = 1024

_CONNECTED = ConnectionState.CONNECTED


@dataclass(frozen=True, slots=True)
class Violation:
    """The peer broke the protocol. It is always the last event: earlier frames are valid, later bytes are discarded."""

    reason: str


Event = AnyFrame | Messages | DraftMessages | Violation
"""MESSAGE frames always arrive as `Messages`, MESSAGE frames of the draft as `DraftMessages`, other frames as
themselves."""


class Connection(LifecycleWalker):
    """One end of a connection. On a source's connection it also counts credits, which sinks do not use."""

    def __init__(
        self,
        side: ConnectionSide,
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
        """Return the events that these bytes complete, in order. After an error or RESTART, bytes are discarded.

        `data` may be a view of a reused buffer: no event refers to it.
        """
        events: list[Event] = []
        if self.is_over:
            return events
        self._framer.begin(data)
        try:
            while self.state not in OVER and (tag := self._framer.peek()) is not None:
                if self.state is _CONNECTED:
                    self._detect_dialect(tag)
                if tag == self.dialect.message_tag:
                    self._take_messages(events)
                else:
                    frame = self._decoded(tag)
                    self._walk(self.peer, frame, RemoteProtocolError)
                    events.append(frame)
        except RemoteProtocolError as error:
            self.state = ConnectionState.ERROR
            events.append(Violation(error.sentence))
        if self.state in OVER:
            self._framer.drop()
        else:
            self._framer.keep()
        return events

    def _walk(self, sender: ConnectionSide, frame: AnyFrame, blame: Blame) -> None:
        self.step(sender, frame, blame)
        if isinstance(frame, Hello):
            self._framer.frame_bytes_max = self.frame_bytes_max

    def _detect_dialect(self, tag: int) -> None:
        if self.side is ConnectionSide.ACCEPTOR:
            dialect = dialect_of(tag, self.role, self.dialect)
            if dialect is not self.dialect:
                self.use_dialect(dialect)

    def _decoded(self, tag: int) -> AnyFrame:
        if (
            tag == v3.ERROR_TAG
            and self.side is ConnectionSide.INITIATOR
            and self.state is not ConnectionState.STREAMING
        ):
            # A gateway that refuses this side before it has read the HELLO does not know the protocol version.
            return v3.decode(self._framer.take())
        return self.dialect.decode(self._framer.take())

    def implied(self) -> Iterator[NotifyAck]:
        """Return the answers to NOTIFYs of this side that arrive without a frame. Call it after every send and receive.

        In the draft a stream is open at once, and its point of reference is known from OK or an ACK.
        """
        return self.interpreter.answers()

    def _take_messages(self, events: list[Event]) -> None:
        """Decode consecutive MESSAGE frames into one event: by columns if there are many, else frame by frame."""
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
        """Decode by columns. This is the gateway's hot path, without work per frame in Python."""
        framer, why = self._framer, PassEnd.END
        try:
            while why is PassEnd.END and framer.peek() == v3.MESSAGE_TAG:
                framer.position, why = taken.take(framer.window, framer.position, framer.frame_bytes_max, rows_max)
        finally:
            messages = taken.messages()
            allowed = self._allowed(messages.stream_ids)
            if allowed:
                self._deliver(messages.slice(0, allowed), events)
            if allowed < len(messages):
                # This violation comes before any error that the pass found later.
                self.allow_message(self.peer, int(messages.stream_ids[allowed]), RemoteProtocolError)
        if why is PassEnd.TRUNCATED:
            raise RemoteProtocolError("truncated frame")
        if why is PassEnd.ENOUGH:
            raise RemoteProtocolError("credits overspent")

    def _allowed(self, stream_ids: Ids) -> int:
        """Return the number of messages before the first one that its stream forbids."""
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
                is_own = self._framer.is_own
                row = v3.message_fields(self._framer.take_view(), is_own=is_own)
                if (stream_id := STREAM_ID_OF(row)) != known_open:
                    self.allow_message(self.peer, stream_id, RemoteProtocolError)
                    known_open = stream_id
                rows.append(row)
        finally:
            if rows:
                self._deliver(Messages.from_rows(rows), events)

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
        """Encode this frame and take its step in the lifecycle. Raises LocalProtocolError and changes nothing if it is
        forbidden.

        A source may pass MESSAGE and EOS_MESSAGE of version 3 in every dialect.
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
        """Encode many MESSAGE frames of one stream by columns (see `v3.encode_messages`).

        Messages without message ids are ephemeral, which only the draft supports."""
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
        """Encode an ERROR, to be sent before closing. Allowed in every state, even after a violation."""
        self.state = ConnectionState.ERROR
        return self.dialect.encode(Error(reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")))
