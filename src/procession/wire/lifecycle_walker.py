"""The lifecycle walker: the state of one end of a connection in its dialect's tables, and its credits. Pure.

Invariant: a step that the tables or the credits forbid is an error of the sender and changes nothing. A connector
spends only granted credits, except one frame of drift per end of stream. `connection` encodes and decodes the frames;
the tables are in `lifecycle`, `stream_lifecycle` and `draft_lifecycle`.
"""

from __future__ import annotations

from collections.abc import Iterable

from procession.errors import LocalProtocolError, RemoteProtocolError
from procession.wire.dialect import V3, Dialect
from procession.wire.draft_messages import NEEDS, AckCounts, AnyFrame, Debug, DraftMessage, Extension
from procession.wire.lifecycle import ConnectionSide, ConnectionState, Role
from procession.wire.messages import TWOPC_STREAM, Ack, Eos, Hello, Message, Notify, NotifyAck, Ok, Restart
from procession.wire.stream_lifecycle import StreamState, StreamStep


class CreditWindow:
    """The balance of one session. Both ends keep one; they differ only by frames in flight and the drift."""

    def __init__(self) -> None:
        self.available = 0
        self.drift = 0

    @property
    def affordable(self) -> int:
        """The number of frames that the peer may send before it overspends."""
        return self.available + self.drift

    def grant(self, count: int) -> None:
        self.available += count

    def spend(self, count: int = 1) -> None:
        """Spend credits for frames, all or none. Overspending beyond the drift is the peer's error."""
        if count > self.affordable:
            raise RemoteProtocolError("credits overspent")
        self.available -= count

    def tolerate(self) -> None:
        """Allow one more frame of drift at the end of a stream, because existing peers do not charge for EOS."""
        self.drift += 1


OVER = frozenset({ConnectionState.ERROR, ConnectionState.DISCONNECTED})
_START = StreamState.START
_MESSAGE = StreamStep.MESSAGE

Blame = type[LocalProtocolError] | type[RemoteProtocolError]
"""The error for a forbidden step: LocalProtocolError for a sent frame, RemoteProtocolError for a received frame."""


class LifecycleWalker:
    """The state of the connection, of each of its streams, and of the credits."""

    def __init__(self, side: ConnectionSide, role: Role, dialect: Dialect = V3) -> None:
        if role not in dialect.connection:
            raise LocalProtocolError(f"the {dialect.name} is for sources")
        self.side = side
        self.role = role
        self.peer = side.other
        self.spender = ConnectionSide.INITIATOR if role is Role.SOURCE else None
        """The side whose frames cost credits."""
        self.dialect = dialect
        self.extensions: frozenset[Extension] = frozenset()
        self.state = ConnectionState.CONNECTED
        self.credit = CreditWindow()
        self.interpreter = dialect.interpreter()
        self._streams: dict[int, StreamState] = {TWOPC_STREAM: StreamState.OPEN} if role is Role.SINK else {}

    def use_dialect(self, dialect: Dialect) -> None:
        """Switch to the peer's dialect, before the first frame."""
        self.dialect = dialect
        self.interpreter = dialect.interpreter()

    @property
    def is_over(self) -> bool:
        """Whether the connection is over: nothing may be sent, and received bytes are discarded."""
        return self.state in OVER

    def stream_state(self, stream_id: int) -> StreamState:
        return self._streams.get(stream_id, _START)

    def step(self, sender: ConnectionSide, frame: AnyFrame, blame: Blame) -> None:
        """Check the frame against the tables and the credits, then change state. A forbidden frame changes nothing."""
        following = self.allow(sender, type(frame), blame)
        match frame:  # the most frequent frames first
            case Message():
                moved = self.allow_message(sender, frame.stream_id, blame)
                if sender is self.spender:
                    self._charge(sender)
                self._streams[frame.stream_id] = moved
            case Ack():
                self._acknowledge(frame.credits, frame.positions, blame)
            case Hello(version=version):
                self.extensions = self._requested_extensions(version, blame)
            case Ok(credits=credits):
                if self.side is ConnectionSide.INITIATOR:
                    self.interpreter.ok_received(frame)
                self.credit.grant(credits)
            case Notify(stream_id=stream_id):
                self._produce(sender, stream_id, StreamStep.NOTIFY, blame)
                if sender is self.side:
                    self.interpreter.notified(stream_id)
            case NotifyAck():
                step = StreamStep.ACCEPTED if frame.success else StreamStep.REFUSED
                self._streams[frame.stream_id] = self._after(frame.stream_id, step, blame)
            case DraftMessage(stream_id=stream_id):
                self._produce(sender, stream_id, StreamStep.LAST if frame.is_last else StreamStep.MESSAGE, blame)
            case Eos(stream_id=stream_id):
                self._produce(sender, stream_id, StreamStep.EOS, blame)
            case Debug() if sender is self.spender:
                self._charge(sender)
            case AckCounts(credits=credits, positions=counted):
                self._acknowledge(credits, [position[:2] for position in counted], blame)
            case Restart():
                self._streams = dict.fromkeys(self._streams, StreamState.TERMINATED)
        self.state = following

    def _requested_extensions(self, version: str, blame: Blame) -> frozenset[Extension]:
        """Return the extensions that HELLO's version requests. The caller decides which versions it accepts."""
        try:
            return self.dialect.extensions(version)
        except ValueError as error:
            raise blame(str(error)) from None

    def _acknowledge(self, credits_given: int, positions: Iterable[tuple[int, int]], blame: Blame) -> None:
        points = dict(positions)
        self._streams |= {stream_id: self._after(stream_id, StreamStep.ACK, blame) for stream_id in points}
        if self.side is ConnectionSide.INITIATOR:
            self.interpreter.committed(points.items())
        self.credit.grant(credits_given)

    def allow(self, sender: ConnectionSide, kind: type[AnyFrame], blame: Blame) -> ConnectionState:
        following = self.dialect.connection[self.role][self.state][sender].get(kind)
        if following is None or (kind in NEEDS and NEEDS[kind] not in self.extensions):
            raise blame(f"{kind.__name__} from the {sender.value} while {self.state.value}")
        return following

    def allow_message(self, sender: ConnectionSide, stream_id: int, blame: Blame) -> StreamState:
        if self.role is Role.SINK and sender is ConnectionSide.ACCEPTOR and stream_id != TWOPC_STREAM:
            raise blame(f"a sink's MESSAGE on stream {stream_id}")
        return self._after(stream_id, _MESSAGE, blame)

    def _after(self, stream_id: int, step: StreamStep, blame: Blame) -> StreamState:
        before = self._streams.get(stream_id, _START)
        following = self.dialect.stream[before].get(step)
        if following is None:
            raise blame(f"{step.value} on stream {stream_id}, which is {before.value}")
        return following

    def _produce(self, sender: ConnectionSide, stream_id: int, step: StreamStep, blame: Blame) -> None:
        """Take the step of a connector's frame, which costs a credit."""
        following = self._after(stream_id, step, blame)
        if sender is self.spender:
            self._charge(sender, is_end=step is StreamStep.EOS)
        self._streams[stream_id] = following

    def _charge(self, sender: ConnectionSide, *, is_end: bool = False) -> None:
        if sender is self.side and self.credit.available < 1:
            # This side spends only granted credits; the drift is only for peers.
            raise LocalProtocolError("no credit left")
        if is_end:
            self.credit.tolerate()
        self.credit.spend()
