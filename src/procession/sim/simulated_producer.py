"""Simulates a producer: the shipped `Connection` and `StreamProgress`, with a copy of `sdk/source_session` and
`sdk/source_client`.

Invariant, as there: the producer sends nothing without a credit, begins at the committed position that the gateway
reports, and is done only when every record and the end of its stream are committed. A NOTIFY that is accepted after
the end confirms this. Some producers ignore the committed position and start from the beginning, as third-party
clients do. Upstream: the records of its stream. Downstream: `simulated_gateway`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from procession.sdk.source_records import Stream
from procession.sdk.stream_progress import StreamProgress
from procession.sim.environment import Environment, Machine
from procession.sim.network import Endpoint
from procession.sim.oracle import InvariantViolation
from procession.sim.simulated_process import SimulatedProcess
from procession.wire.connection import Connection, Event, Violation
from procession.wire.lifecycle import ConnectionSide, Role
from procession.wire.messages import Ack, Eos, Error, Hello, Message, Notify, NotifyAck, Ok, Restart
from procession.wire.v3 import SOURCE_VERSION

HANDSHAKE_S = 0.5
RETRY_S = 0.05
"""Delay before a refused producer repeats its request after the next ACK. Without the delay, with a small window,
producer and gateway would only exchange requests and refusals."""


class Producer(SimulatedProcess):
    def __init__(
        self,
        site: Environment,
        part: str,
        machine: Machine,
        stream: int,
        ids: Sequence[int],
        replays: str,
        gateways: Sequence[str],
    ) -> None:
        super().__init__(site, part, machine)
        self.is_done = False
        self._ids = ids
        self._replays = replays
        self._gateways = deque(gateways)
        self._address = self._gateways[0]
        self._progress = StreamProgress(Stream(stream, f"stream {stream}"))
        self._connection: Connection
        self._end: Endpoint | None = None
        self._next: int | None = None
        """The number of the record to be sent next; None while the stream is not open."""
        self._is_leaving = False
        self._is_confirming = False
        self._was_refused = False
        self._is_waiting = False
        """Whether the producer waits for credits."""

    def start(self) -> None:
        self._connect()

    def _connect(self) -> None:
        self.site.network.connect(self, self._address, self._connected)

    def _again(self) -> None:
        self._end = self._next = None
        self.later(0.02 + 0.1 * self.site.chance.random(), self._connect)

    def _elsewhere(self) -> None:
        """Connect to another gateway. If a redirect leads to an unreachable gateway, return to the gateway that sent
        it; if that fails, try the next gateway."""
        if self._address == self._gateways[0]:
            self._gateways.rotate(-1)
        self._address = self._gateways[0]
        self._again()

    def _connected(self, end: Endpoint | None) -> None:
        if end is None:
            self._elsewhere()
            return
        self._end = end
        self._connection = Connection(ConnectionSide.INITIATOR, Role.SOURCE)
        self._next, self._is_leaving, self._was_refused, self._is_waiting = None, False, False, False
        self._is_confirming = False
        self._progress.begin()
        end.write(self._connection.send(Hello(SOURCE_VERSION, b"", "simulated", self.part)))
        self.later(HANDSHAKE_S, self._give_up, end)

    def _give_up(self, end: Endpoint) -> None:
        if end is self._end and not self._connection.credit.available and self._connection.state.name != "STREAMING":
            end.close()
            self._again()

    def lost(self, end: Endpoint, is_clean: bool) -> None:
        if end is not self._end:
            return
        if is_clean and self._progress.is_done:
            self.is_done = True
            self.site.log_event(self.part, "= done")
        else:
            self._elsewhere()

    def received(self, end: Endpoint, data: bytes) -> None:
        if end is self._end:
            for event in self._connection.receive(data):
                self._take(end, event)

    def _take(self, end: Endpoint, event: Event) -> None:
        stream, oracle = self._progress.stream.id, self.site.oracle
        match event:
            case Ok():
                self._notify(end)
            case NotifyAck() if event.success and self._progress.is_ended:
                self._progress.is_end_committed = True
                self._close_if_done(end)
            case NotifyAck() if event.success:
                oracle.acknowledged_to(stream, event.point_of_reference)
                self._progress.commit(event.point_of_reference)
                self._progress.begin()
                self._open(end)
            case NotifyAck():
                self._was_refused = True
            case Ack():
                for _, point in event.positions:
                    oracle.acknowledged_to(stream, point)
                    self._progress.commit(point)
                if self._was_refused:
                    self._was_refused = False
                    self.later(RETRY_S * self.site.chance.random(), self._notify, end)
                self._close_if_done(end)
                if self._is_waiting and self._connection.credit.available:
                    self._is_waiting = False
                    self.soon(self._pump, end)
            case Restart():
                self._address = event.address or self._address
                end.close()
                self._again()
            case Error(reason):
                if reason not in ("the gateway is stopping", "no HELLO in time"):
                    raise InvariantViolation("I7", f"the gateway ended {self.part}'s session with {reason!r}")
            case Violation(reason):
                raise InvariantViolation("I7", f"the gateway broke the protocol towards {self.part}: {reason}")

    def _notify(self, end: Endpoint) -> None:
        if end is self._end and not self._connection.is_over:
            if not self._connection.credit.available:
                self._was_refused = True  # the next ACK grants credits
                return
            stream, committed = self._progress.stream, self._progress.committed
            end.write(self._connection.send(Notify(stream.id, stream.name, committed or 0)))

    def _open(self, end: Endpoint) -> None:
        committed = self._progress.committed
        first = next(
            (number for number, message_id in enumerate(self._ids) if committed is None or message_id > committed), None
        )
        after = len(self._ids) if first is None else first
        if self._replays != "no" and self.site.chance.random() < 0.7:
            after = 0 if self._replays == "zero" else self.site.chance.randrange(0, after + 1)
        self.site.log_event(self.part, "= opened, committed %s, sends from record %s", committed, after)
        self._next = after
        self.soon(self._pump, end)

    def _pump(self, end: Endpoint) -> None:
        """Send a few records, or the end of the stream."""
        if end is not self._end or self._next is None or self._connection.is_over:
            return
        if not self._connection.credit.available:
            self._is_waiting = True
            return
        chance, stream, frames = self.site.chance, self._progress.stream.id, []
        count = min(self._connection.credit.available, chance.randrange(1, 5), len(self._ids) - self._next)
        for message_id in self._ids[self._next : self._next + count]:
            payload = f"{stream}:{message_id}".encode()
            frames.append(self._connection.send(Message(stream, message_id, 0, b"", payload)))
            self._progress.last = message_id
        self._next += count
        if self._next == len(self._ids) and self._connection.credit.available:
            frames.append(self._connection.send(Eos(stream)))
            self._progress.is_ended = True
            self._next = None
        end.write(b"".join(frames))
        if self._next is not None:
            self.later(0.02 * chance.random(), self._pump, end)
        self._close_if_done(end)

    def _close_if_done(self, end: Endpoint) -> None:
        if self._progress.is_acknowledged and not self._is_confirming:
            self._is_confirming = True
            self._notify(end)
        if self._progress.is_done and not self._is_leaving:
            self._is_leaving = True
            end.half_close()
