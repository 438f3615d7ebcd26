"""A driver's link to one sink: the real `Connection`, with a model of `commit/sink_link`.

Invariant, as there: HELLO, NOTIFY and LIST_UNCOMMITTED are sent together; no data before all three are answered and the
coordinator has settled what was listed. Records go out a few at a time, and other events come between. Upstream:
`simulated_driver`. Downstream: `simulated_sink`, over the network.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from procession.commit.coordinator import REFUSALS_MAX
from procession.commit.round_events import EmitEpoch, Phase2Confirmed, SinkConnected, SinkLost, VoteReceived
from procession.commit.stop_reasons import not_greeted, not_voted
from procession.errors import RemoteProtocolError
from procession.sim.network import Endpoint
from procession.sim.oracle import MEMORY
from procession.wire import two_phase_commit
from procession.wire.connection import Connection, Violation
from procession.wire.lifecycle import ConnectionSide, Role
from procession.wire.messages import (
    DATA_STREAM,
    NOTHING_COMMITTED,
    Error,
    Hello,
    ListUncommitted,
    Message,
    Messages,
    Notify,
    NotifyAck,
    Ok,
    Phase1,
    Phase2,
    Reply,
    ReplyUncommitted,
)
from procession.wire.v3 import SINK_VERSION

if TYPE_CHECKING:
    from procession.sim.simulated_driver import SimulatedDriver

ANSWER_S = 0.4
BACKOFF_S = 0.1
LIST_TAG = 1

read = lru_cache(MEMORY)(two_phase_commit.decode)
wrap = lru_cache(MEMORY)(two_phase_commit.wrap)


class SimulatedSinkLink:
    def __init__(self, driver: SimulatedDriver, sink: str, *, is_authoritative: bool) -> None:
        self._driver = driver
        self.sink = sink
        self._is_authoritative = is_authoritative
        self._end: Endpoint | None = None
        """The connection that is being greeted, or in use."""
        self._connection: Connection
        self._is_ready = False
        self._granted = False
        self._position: int | None = None
        self._listed: tuple[str, ...] | None = None
        self._phase2_sent: set[str] = set()
        self._deadline = 0
        self._is_hung = False
        self._voting: str | None = None
        self._greetings_refused = self._votes_refused = 0

    def connect(self) -> None:
        self._driver.site.network.connect(self._driver, self.sink, self._connected)

    def _connected(self, end: Endpoint | None) -> None:
        if end is None:
            self._driver.later(BACKOFF_S * (0.5 + self._driver.site.chance.random()), self.connect)
            return
        end.tag = self
        self._end, self._connection = end, Connection(ConnectionSide.INITIATOR, Role.SINK)
        self._is_ready = self._granted = self._is_hung = False
        self._position = self._listed = None
        hello = Hello(SINK_VERSION, b"", "simulated", self.sink)
        frames = (hello, Notify(DATA_STREAM, self.sink, 0), wrap(ListUncommitted(LIST_TAG)))
        end.write(b"".join(self._connection.send(frame) for frame in frames))
        self._driver.later(ANSWER_S, self._give_up_greeting, end)

    def _give_up_greeting(self, end: Endpoint) -> None:
        if end is self._end and not self._is_ready:
            self.close(BACKOFF_S)

    # What comes

    def received(self, data: bytes) -> Iterable[object]:
        """The coordinator's events that these bytes mean."""
        for received in self._connection.receive(data):
            for word in map(read, received.bodies()) if isinstance(received, Messages) else (received,):
                event = self._take(word) if self._is_ready else self._greeted(word)
                if event is not None:
                    yield event

    def _greeted(self, event: object) -> SinkConnected | None:
        match event:
            case Ok():
                self._granted = True
            case NotifyAck() if event.success:
                point = event.point_of_reference
                self._position = 0 if point == NOTHING_COMMITTED else point
            case NotifyAck():
                raise RemoteProtocolError("the sink refuses the stream")
            case ReplyUncommitted():
                self._listed = event.txn_ids
            case Error(reason):
                raise RemoteProtocolError(f"the sink says: {reason}")
            case Violation(reason):
                raise RemoteProtocolError(reason)
        if self._granted and self._position is not None and self._listed is not None:
            self._is_ready = True
            self._greetings_refused = 0
            return SinkConnected(self.sink, self._listed, self._position if self._is_authoritative else None)
        return None

    def _take(self, event: object) -> Phase2Confirmed | VoteReceived | None:
        match event:
            case Reply() if event.txn_id in self._phase2_sent:
                self._phase2_sent.discard(event.txn_id)
                return Phase2Confirmed(self.sink, event.txn_id) if event.commit else None
            case Reply():
                self._deadline += 1
                self._voting, self._votes_refused = None, 0
                self._phase2_sent.clear()
                return VoteReceived(self.sink, event.txn_id, event.commit)
            case Error(reason):
                raise RemoteProtocolError(f"the sink says: {reason}")
            case Violation(reason):
                raise RemoteProtocolError(reason)
        return None

    def lost(self, end: Endpoint) -> Iterable[object]:
        """The connection is closed, by either end. Opens another."""
        if end is not self._end:
            return
        self._end = None
        self._deadline += 1
        self._phase2_sent.clear()
        self._count()
        self._driver.later(BACKOFF_S * self._driver.site.chance.random(), self.connect)
        if self._is_ready:
            self._is_ready = False
            yield SinkLost(self.sink, self._is_hung)

    def _count(self) -> None:
        """As the real link: a session that ends at its greeting, or before the vote, is a refusal."""
        if not self._is_ready:
            self._greetings_refused += 1
        elif self._voting is not None and not self._is_hung:
            self._votes_refused += 1
        if self._greetings_refused >= REFUSALS_MAX:
            raise not_greeted(repr(self.sink), self._greetings_refused, "the connection was lost")
        if self._votes_refused >= REFUSALS_MAX:
            raise not_voted(repr(self.sink), self._voting, self._votes_refused, "the connection was lost")
        self._voting = None

    def close(self, delay_s: float = 0.0) -> None:
        """Close, and connect again. The news comes as of any lost connection, in its turn."""
        end = self._end
        self._voting = None
        if end is not None and end.is_open:
            end.close()
            self._driver.later(delay_s, self._driver.link_lost, self, end)

    # What the driver asks for

    def emit(self, action: EmitEpoch, payloads: Sequence[bytes]) -> None:
        if self._end is not None and self._is_ready:
            self._voting = action.txn
            self._emit(self._end, self._connection, action, payloads, action.start)

    def _emit(
        self, end: Endpoint, connection: Connection, action: EmitEpoch, payloads: Sequence[bytes], position: int
    ) -> None:
        """Sends a few records and, after the last one, requests the vote. Does nothing if the connection is closed."""
        if connection.is_over:
            return
        chance, frames = self._driver.site.chance, []
        count = chance.randrange(1, 6)
        for payload in payloads[:count]:
            frames.append(connection.send(Message(DATA_STREAM, position, 0, b"", payload)))
            position += len(payload)
        end.write(b"".join(frames))
        if payloads[count:]:
            self._driver.soon(self._emit, end, connection, action, payloads[count:], position)
            return
        self._driver.asks_for_vote(action)
        end.write(connection.send(wrap(Phase1(action.txn, ((DATA_STREAM, action.start, position),)))))
        if end is self._end:
            self._deadline += 1
            self._driver.later(ANSWER_S, self._give_up, end, self._deadline)

    def _give_up(self, end: Endpoint, deadline: int) -> None:
        if end is self._end and deadline == self._deadline:
            self._is_hung = True
            self.close()

    def phase2(self, txn: str, commit: bool) -> None:
        if self._end is not None and self._is_ready and not self._connection.is_over:
            self._phase2_sent.add(txn)
            self._end.write(self._connection.send(wrap(Phase2(txn, commit))))
