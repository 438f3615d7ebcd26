"""One end of one connection, without the socket: feed it bytes and get events, give it frames and get bytes.

The one rule: it walks the tables of its dialect; what they forbid the peer is reported as a `Violation`, what they
forbid us raises `LocalProtocolError`, and neither changes anything else. An acceptor speaks whatever the first frame is
of. Before it stands the socket (`gateway.server`, `sdk`), after it whoever decides (`gateway.state`). Cookies, versions
and two-phase-commit payloads are the decider's matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from procession.errors import LocalProtocolError, RemoteProtocolError
from procession.wire import columns, draft, v3
from procession.wire.codec import FRAME_BYTES_MAX, SHORT_BYTES_MAX, Bytes, Framer
from procession.wire.columns import BYTES_MAX, COLUMNS_BYTES_MIN, Columns, Stop
from procession.wire.credit import CreditWindow
from procession.wire.dialect import DRAFT, V3, Dialect
from procession.wire.draft_messages import (
    NEEDS,
    AckCounts,
    AnyFrame,
    Debug,
    DraftMessage,
    DraftMessages,
    DraftOk,
    Extension,
)
from procession.wire.interpreter import Interpreter
from procession.wire.lifecycle import Role, Side, State
from procession.wire.messages import (
    TWOPC_STREAM,
    Ack,
    Eos,
    Error,
    Hello,
    Ids,
    Message,
    MessageFields,
    Messages,
    Notify,
    NotifyAck,
    Ok,
    Restart,
)
from procession.wire.stream import StreamState, StreamStep

HELLO_BYTES_MAX = 1 + 4 * (2 + SHORT_BYTES_MAX)
"""The longest HELLO there can be: all that a peer may make us hold before it has said who it is."""

REASON_BYTES_MAX = 1024

_OVER = frozenset({State.ERROR, State.DISCONNECTED})
_CONNECTED = State.CONNECTED
_START = StreamState.START
_MESSAGE = StreamStep.MESSAGE


@dataclass(frozen=True, slots=True)
class Violation:
    """The peer broke the protocol. Always the last event: the frames before it count, what follows is discarded."""

    reason: str


Event = AnyFrame | Messages | DraftMessages | Violation
"""MESSAGE frames always come as `Messages`, those of the draft as `DraftMessages`; any other frame comes as itself."""


Blame = type[LocalProtocolError] | type[RemoteProtocolError]
"""Whose error a forbidden step is: ours when we send, the peer's when we receive."""


class Connection:
    """The protocol state of one end. On a source's connection it also keeps the credits, which sinks do not use."""

    def __init__(
        self,
        side: Side,
        role: Role,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        columns_bytes_min: int = COLUMNS_BYTES_MIN,
        dialect: Dialect = V3,
    ) -> None:
        if role not in dialect.connection:
            raise LocalProtocolError(f"the {dialect.name} is for sources")
        self.side = side
        self.role = role
        self._peer = side.other
        self._spender = Side.INITIATOR if role is Role.SOURCE else None
        """Whose frames cost credits."""
        self.dialect = dialect
        self.extensions: frozenset[Extension] = frozenset()
        self.frame_bytes_max = frame_bytes_max
        self.columns_bytes_min = columns_bytes_min
        self.state = State.CONNECTED
        self.credit = CreditWindow()
        self._framer = Framer(min(HELLO_BYTES_MAX, frame_bytes_max))
        self._streams: dict[int, StreamState] = {TWOPC_STREAM: StreamState.OPEN} if role is Role.SINK else {}
        self._interpreter = Interpreter()

    @property
    def is_over(self) -> bool:
        """Nothing may be sent any more, and what comes is discarded."""
        return self.state in _OVER

    def stream_state(self, stream_id: int) -> StreamState:
        return self._streams.get(stream_id, _START)

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
            while self.state not in _OVER and (tag := self._framer.peek()) is not None:
                if self.state is _CONNECTED:
                    self._hear_dialect(tag)
                if tag == self.dialect.message_tag:
                    self._take_messages(events)
                else:
                    frame = self._decoded(tag)
                    self._step(self._peer, frame, RemoteProtocolError)
                    events.append(frame)
        except RemoteProtocolError as error:
            self.state = State.ERROR
            events.append(Violation(error.sentence))
        if self.state in _OVER:
            self._framer.drop()
        else:
            self._framer.keep()
        return events

    def _hear_dialect(self, tag: int) -> None:
        if self.side is Side.ACCEPTOR and self.role is Role.SOURCE and tag in draft.TAGS:
            self.dialect = DRAFT

    def _decoded(self, tag: int) -> AnyFrame:
        if tag == v3.ERROR_TAG and self.side is Side.INITIATOR and self.state is not State.STREAMING:
            # A gateway that turns us away before it has read our HELLO does not know what we speak.
            return v3.decode(self._framer.take())
        return self.dialect.decode(self._framer.take())

    def implied(self) -> Iterator[NotifyAck]:
        """The answers to our NOTIFYs that no frame brings: in the draft a stream is open at once, and OK or an ACK has
        told where it goes on. To be asked whenever something was sent or received."""
        return self._interpreter.answers()

    def _take_messages(self, events: list[Event]) -> None:
        """Consecutive MESSAGE frames at once: by columns if they are many, else frame by frame, to the same event."""
        if self.dialect is DRAFT:
            self._take_drafted(events)
            return
        self._allow(self._peer, Message, RemoteProtocolError)
        rows_max = self.credit.affordable if self._peer is self._spender else BYTES_MAX
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
                self._allow_message(self._peer, int(messages.stream_ids[allowed]), RemoteProtocolError)
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
            self._allow_message(self._peer, stream_id, RemoteProtocolError)
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
                    self._allow_message(self._peer, row[0], RemoteProtocolError)
                    known_open = row[0]
                rows.append(row)
        finally:
            if rows:
                self._deliver(Messages.few(rows), events)

    def _take_drafted(self, events: list[Event]) -> None:
        taken: list[DraftMessage] = []
        try:
            while self._framer.peek() == draft.MESSAGE_TAG:
                message = draft.decode(self._framer.take())
                assert isinstance(message, DraftMessage)
                self._step(self._peer, message, RemoteProtocolError)
                taken.append(message)
        finally:
            if taken:
                events.append(DraftMessages(tuple(taken)))

    def _deliver(self, messages: Messages, events: list[Event]) -> None:
        if self._peer is self._spender:
            self.credit.spend(len(messages))
        events.append(messages)

    # Sending

    def send(self, frame: AnyFrame) -> bytes:
        """The bytes of this frame, and the step that it means; or LocalProtocolError, and nothing has changed.

        A source may say MESSAGE and EOS_MESSAGE in the words of version 3, whatever it speaks.
        """
        if self.dialect is DRAFT:
            frame = self._interpreter.translated(frame)
        data = self.dialect.encode(frame)
        if len(data) - 4 > self.frame_bytes_max:
            raise LocalProtocolError(f"a frame of {len(data) - 4} bytes, the limit is {self.frame_bytes_max}")
        self._step(self.side, frame, LocalProtocolError)
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
        self._allow(self.side, DraftMessage if self.dialect is DRAFT else Message, LocalProtocolError)
        self._allow_message(self.side, stream_id, LocalProtocolError)
        count = len(payloads)
        if self.side is self._spender and count > self.credit.available:
            raise LocalProtocolError(f"{count} messages for {self.credit.available} credits")
        data = self.dialect.encode_messages(stream_id, message_ids, event_times, keys, payloads, self.frame_bytes_max)
        if self.side is self._spender:
            self.credit.spend(count)
        if message_ids is None:
            self._interpreter.sent_without_ids(stream_id)
        return data

    def error_frame(self, reason: str) -> bytes:
        """ERROR, to be sent before closing. Allowed in every state: after a violation it is what is left to say."""
        self.state = State.ERROR
        return self.dialect.encode(Error(reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")))

    # Steps

    def _step(self, sender: Side, frame: AnyFrame, blame: Blame) -> None:
        """Check the frame against the tables and the credits, then move. A frame that is refused changes nothing."""
        following = self._allow(sender, type(frame), blame)
        match frame:  # the most frequent first, and no more taken out of a frame than is asked for
            case Message():
                moved = self._allow_message(sender, frame.stream_id, blame)
                if sender is self._spender:
                    self._charge(sender)
                self._streams[frame.stream_id] = moved
            case Ack():
                self._acknowledge(frame.credits, frame.positions, blame)
            case Hello(version=version):
                self.extensions = self._asked_for(version, blame)
                self._framer.frame_bytes_max = self.frame_bytes_max
            case Ok(credits=credits):
                if isinstance(frame, DraftOk) and self.side is Side.INITIATOR:
                    self._interpreter.told((stream_id, point) for stream_id, _, point in frame.streams)
                self.credit.grant(credits)
            case Notify(stream_id=stream_id):
                self._produce(sender, stream_id, StreamStep.NOTIFY, blame)
                if self.dialect is DRAFT and sender is self.side:
                    self._interpreter.notified(stream_id)
            case NotifyAck():
                step = StreamStep.ACCEPTED if frame.success else StreamStep.REFUSED
                self._streams[frame.stream_id] = self._after(frame.stream_id, step, blame)
            case DraftMessage(stream_id=stream_id):
                self._produce(sender, stream_id, StreamStep.LAST if frame.is_last else StreamStep.MESSAGE, blame)
            case Eos(stream_id=stream_id):
                self._produce(sender, stream_id, StreamStep.EOS, blame)
            case Debug() if sender is self._spender:
                self._charge(sender)
            case AckCounts(credits=credits, positions=counted):
                self._acknowledge(credits, [position[:2] for position in counted], blame)
            case Restart():
                self._streams = dict.fromkeys(self._streams, StreamState.TERMINATED)
        self.state = following

    def _asked_for(self, version: str, blame: Blame) -> frozenset[Extension]:
        """What HELLO's version asks for. Which versions of its own dialect are welcome is for the decider."""
        asked_for = draft.VERSIONS.get(version)
        if self.dialect is DRAFT and asked_for is None:
            raise blame(f"unknown version {version[:20]!r}, this is {draft.VERSION}")
        if self.dialect is V3 and asked_for is not None:
            raise blame(f"version {version!r} is not said in frames of v3")
        return asked_for or frozenset()

    def _acknowledge(self, credits_given: int, positions: Iterable[tuple[int, int]], blame: Blame) -> None:
        points = dict(positions)
        self._streams |= {stream_id: self._after(stream_id, StreamStep.ACK, blame) for stream_id in points}
        if self.dialect is DRAFT and self.side is Side.INITIATOR:
            self._interpreter.told(points.items())
        self.credit.grant(credits_given)

    def _allow(self, sender: Side, kind: type[AnyFrame], blame: Blame) -> State:
        following = self.dialect.connection[self.role][self.state][sender].get(kind)
        if following is None or (kind in NEEDS and NEEDS[kind] not in self.extensions):
            raise blame(f"{kind.__name__} from the {sender.value} while {self.state.value}")
        return following

    def _allow_message(self, sender: Side, stream_id: int, blame: Blame) -> StreamState:
        if self.role is Role.SINK and sender is Side.ACCEPTOR and stream_id != TWOPC_STREAM:
            raise blame(f"a sink's MESSAGE on stream {stream_id}")
        return self._after(stream_id, _MESSAGE, blame)

    def _after(self, stream_id: int, step: StreamStep, blame: Blame) -> StreamState:
        before = self._streams.get(stream_id, _START)
        following = self.dialect.stream[before].get(step)
        if following is None:
            raise blame(f"{step.value} on stream {stream_id}, which is {before.value}")
        return following

    def _produce(self, sender: Side, stream_id: int, step: StreamStep, blame: Blame) -> None:
        """A frame of the connector: it moves its stream and costs a credit."""
        following = self._after(stream_id, step, blame)
        if sender is self._spender:
            self._charge(sender, is_end=step is StreamStep.EOS)
        self._streams[stream_id] = following

    def _charge(self, sender: Side, *, is_end: bool = False) -> None:
        if sender is self.side and self.credit.available < 1:
            # We hold ourselves to what was granted; the drift is for peers.
            raise LocalProtocolError("no credit left")
        if is_end:
            self.credit.tolerate()
        self.credit.spend()
