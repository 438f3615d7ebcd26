"""Simulates a third-party sink: its own server around the shipped participant, transaction log and file output.

Invariant: only the latest session of an instance is open. A new HELLO ends the older session, and later input from
that session is ignored. Another session may come between two events of one read. The reported position of such a sink
is unreliable; some send no reply in phase 2, and some list transactions that they refused. Procession's sinks run the
shipped server (`simulated_sink`).
Upstream: `commit/sink_link`, over the network. Downstream: `observed_sink`.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache

from procession.connectors.file_sink import FileOutput
from procession.errors import ProcessionError, RemoteProtocolError
from procession.sdk.recovery import remove_drafts
from procession.sim.disk import SimulatedPath
from procession.sim.environment import Environment, Machine
from procession.sim.fault_plan import SinkPlan
from procession.sim.network import Endpoint
from procession.sim.observed_sink import ObservedParticipant, ObservedTransactionLog, output_path
from procession.sim.oracle import MEMORY, InvariantViolation
from procession.sim.simulated_files import SimulatedFileSystem, is_injected
from procession.sim.simulated_process import SimulatedProcess
from procession.storage.durable import lock_directory
from procession.wire import two_phase_commit
from procession.wire.connection import Connection, Event, Violation
from procession.wire.lifecycle import ConnectionSide, Role
from procession.wire.messages import (
    DATA_STREAM,
    TWOPC_STREAM,
    Error,
    Frame,
    Hello,
    ListUncommitted,
    Messages,
    Notify,
    NotifyAck,
    Ok,
    Phase1,
    Phase2,
    Reply,
    ReplyUncommitted,
    TwoPhase,
)

CREDITS = 2**31 - 1
HANDSHAKE_S = 0.5

read = lru_cache(MEMORY)(two_phase_commit.decode)
wrap = lru_cache(MEMORY)(two_phase_commit.wrap)


class ForeignSinkSession:
    __slots__ = ("connection", "end", "events", "is_deaf")

    def __init__(self, end: Endpoint) -> None:
        self.end = end
        self.connection = Connection(ConnectionSide.ACCEPTOR, Role.SINK)
        self.events: deque[Event] = deque()
        self.is_deaf = False

    def send(self, frame: Frame) -> None:
        if self.end.is_open and not self.connection.is_over and not self.is_deaf:
            self.end.write(self.connection.send(frame))


class ForeignSink(SimulatedProcess):
    def __init__(self, site: Environment, part: str, machine: Machine, plan: SinkPlan) -> None:
        super().__init__(site, part, machine)
        self.plan = plan
        self._files = SimulatedFileSystem(self, machine.disk)
        self.refusals = 0
        self.hangs = 0
        self._participant: ObservedParticipant | None = None
        self._txnlog: ObservedTransactionLog
        self._session: ForeignSinkSession | None = None

    def start(self) -> None:
        self.post(self._open_directory)

    def _open_directory(self) -> None:
        """Open the directory, as `sdk.sink_directory.SinkDirectory` does."""
        lock_directory(SimulatedPath(self.part), self._files)
        remove_drafts(SimulatedPath(self.part), self._files)
        self.site.network.listeners[self.part] = self

    def failed(self, error: ProcessionError) -> None:
        """End the sink after a failed output or log, because a vote may be affected. Recovery determines this."""
        if not is_injected(error):
            raise InvariantViolation("I7", f"{self.part} ends with {error.sentence!r}, and nothing was done to it")
        self.site.log_event(self.part, "! %s", error.sentence)
        self.kill()

    def voted(self) -> None:
        """Hang after the vote, if the schedule says so."""

    # Sessions

    def accepted(self, end: Endpoint) -> None:
        end.tag = ForeignSinkSession(end)
        self.later(HANDSHAKE_S, self._give_up, end.tag)

    def _give_up(self, session: ForeignSinkSession) -> None:
        if session is not self._session and session.end.is_open:
            session.end.close()

    def lost(self, end: Endpoint, is_clean: bool) -> None:
        """Handle the end of a connection. Input that was already read is still processed, as in a real server."""

    def received(self, end: Endpoint, data: bytes) -> None:
        session: ForeignSinkSession = end.tag
        is_waiting = bool(session.events)
        session.events.extend(session.connection.receive(data))
        if not is_waiting:
            self._take_all(session)

    def _take_all(self, session: ForeignSinkSession) -> None:
        try:
            while session.events:
                self._take(session, session.events.popleft())
                if session.events and self.site.chance.random() < 0.15:
                    self.soon(self._take_all, session)
                    return
        except RemoteProtocolError as error:
            self._refuse(session, error.sentence)

    def _refuse(self, session: ForeignSinkSession, reason: str) -> None:
        session.events.clear()
        self.site.log_event(self.part, "! session refused: %s", reason)
        session.end.other.owner.refused(reason)
        if session.end.is_open and not session.is_deaf:
            session.end.write(session.connection.error_frame(reason))
            session.end.close()

    def _take(self, session: ForeignSinkSession, event: Event) -> None:
        if session.is_deaf:
            return
        match event:
            case Violation(reason):
                raise RemoteProtocolError(reason)
            case Error():
                session.end.close()
            case Hello():
                self._begin(session)
            case _ if self._session is session and self._participant is not None:
                self._use(session, self._participant, event)

    def _begin(self, session: ForeignSinkSession) -> None:
        if self._participant is None:
            output = FileOutput(output_path(self.part), self._files)
            self._txnlog = ObservedTransactionLog(self._files, self.site.oracle, self.part)
            self._txnlog.open()
            self._participant = ObservedParticipant(output, self._txnlog, self)
        if self._session is not None:
            self._session.end.close()
        self._session = session
        self._participant.begin()
        session.send(Ok(CREDITS))

    def _use(self, session: ForeignSinkSession, participant: ObservedParticipant, event: Event) -> None:
        match event:
            case Notify(stream_id):
                session.send(NotifyAck(stream_id == DATA_STREAM, stream_id, 0))
            case Messages():
                for stream_id, messages in event.by_stream():
                    if stream_id == TWOPC_STREAM:
                        for payload in messages.bodies():
                            self._decide(session, participant, read(payload))
                    else:
                        participant.append(messages.ids(), messages.bodies())

    def _decide(self, session: ForeignSinkSession, participant: ObservedParticipant, message: TwoPhase) -> None:
        match message:
            case ListUncommitted(rtag):
                listed = participant.list_uncommitted()
                if self.plan.lists_refused and participant.last_refused is not None:
                    listed += (participant.last_refused,)
                    participant.last_refused = None
                session.send(wrap(ReplyUncommitted(rtag, listed)))
            case Phase1(txn_id, where):
                vote = participant.phase1(txn_id, where)
                if self.hangs:
                    self.hangs -= 1
                    session.is_deaf = True
                session.send(wrap(Reply(txn_id, vote)))
            case Phase2(txn_id, commit):
                participant.phase2(txn_id, commit)
                if self.plan.answers_phase2:
                    session.send(wrap(Reply(txn_id, commit)))
            case ReplyUncommitted() | Reply():
                raise RemoteProtocolError("a participant's message from the coordinator")
