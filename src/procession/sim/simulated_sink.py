"""A sink: the shipped participant, transaction log and file output on the simulated disk, with a model of
`sdk/sink_server`.

Invariant, as there: an instance has one session, the latest. A new HELLO ends the older session, and later input from
it is ignored. The real server waits for its lock between two events of one read, so another session may come between
them here, too. Some sinks behave like third-party sinks: they send no reply in phase 2, list transactions that they
refused, and report positions that mean nothing. Upstream: `commit/sink_link`, over the network. Downstream:
`observed_sink`.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache

from procession.connectors.file_sink import FileOutput
from procession.errors import ProcessionError, RemoteProtocolError
from procession.sdk.participant import SinkParticipant, Where
from procession.sdk.recovery import remove_drafts
from procession.sim.disk import SimulatedPath
from procession.sim.environment import Environment, Machine
from procession.sim.fault_plan import SinkPlan
from procession.sim.network import Endpoint
from procession.sim.observed_sink import ObservedTransactionLog, output_path
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


class RefusingParticipant(SinkParticipant):
    """The real one, but for the transactions that the simulation makes it refuse."""

    refusals = 0
    last_refused: str | None = None

    def phase1(self, txn_id: str, where: Where) -> bool:
        vote = super().phase1(txn_id, where)
        if not vote:
            self.last_refused = txn_id
        return vote

    def _is_here(self, where: Where) -> bool:
        if self.refusals:
            self.refusals -= 1
            return False
        return super()._is_here(where)


class SimulatedSinkSession:
    __slots__ = ("connection", "end", "events", "is_deaf")

    def __init__(self, end: Endpoint) -> None:
        self.end = end
        self.connection = Connection(ConnectionSide.ACCEPTOR, Role.SINK)
        self.events: deque[Event] = deque()
        self.is_deaf = False

    def send(self, frame: Frame) -> None:
        if self.end.is_open and not self.connection.is_over and not self.is_deaf:
            self.end.write(self.connection.send(frame))


class SimulatedSink(SimulatedProcess):
    def __init__(self, site: Environment, part: str, machine: Machine, plan: SinkPlan) -> None:
        super().__init__(site, part, machine)
        self.plan = plan
        self._files = SimulatedFileSystem(self, machine.disk)
        self.refusals = 0
        self.hangs = 0
        self._participant: RefusingParticipant | None = None
        self._txnlog: ObservedTransactionLog
        self._session: SimulatedSinkSession | None = None

    def start(self) -> None:
        self.post(self._open_directory)

    def _open_directory(self) -> None:
        """As `sdk.sink_directory.SinkDirectory`."""
        lock_directory(SimulatedPath(self.part), self._files)
        remove_drafts(SimulatedPath(self.part), self._files)
        self.site.network.listeners[self.part] = self

    def failed(self, error: ProcessionError) -> None:
        """A failed output or log ends the sink, because a vote may be affected. Recovery finds out."""
        if not is_injected(error):
            raise InvariantViolation("I7", f"{self.part} ends with {error.sentence!r}, and nothing was done to it")
        self.site.tell(self.part, "! %s", error.sentence)
        self.kill()

    # Sessions

    def accepted(self, end: Endpoint) -> None:
        end.tag = SimulatedSinkSession(end)
        self.later(HANDSHAKE_S, self._give_up, end.tag)

    def _give_up(self, session: SimulatedSinkSession) -> None:
        if session is not self._session and session.end.is_open:
            session.end.close()

    def lost(self, end: Endpoint, is_clean: bool) -> None:
        """What was read before is still taken: the real server ends its loop only at the end of the stream."""

    def received(self, end: Endpoint, data: bytes) -> None:
        session: SimulatedSinkSession = end.tag
        is_waiting = bool(session.events)
        session.events.extend(session.connection.receive(data))
        if not is_waiting:
            self._take_all(session)

    def _take_all(self, session: SimulatedSinkSession) -> None:
        try:
            while session.events:
                self._take(session, session.events.popleft())
                if session.events and self.site.chance.random() < 0.15:
                    self.soon(self._take_all, session)
                    return
        except RemoteProtocolError as error:
            self._refuse(session, error.sentence)

    def _refuse(self, session: SimulatedSinkSession, reason: str) -> None:
        session.events.clear()
        self.site.tell(self.part, "! session refused: %s", reason)
        session.end.other.owner.refused(reason)
        if session.end.is_open and not session.is_deaf:
            session.end.write(session.connection.error_frame(reason))
            session.end.close()

    def _take(self, session: SimulatedSinkSession, event: Event) -> None:
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

    def _begin(self, session: SimulatedSinkSession) -> None:
        if self._participant is None:
            output = FileOutput(output_path(self.part), self._files)
            self._txnlog = ObservedTransactionLog(self._files, self.site.oracle, self.part)
            self._txnlog.open()
            self._participant = RefusingParticipant(output, self._txnlog)
        if self._session is not None:
            self._session.end.close()
        self._session = session
        self._participant.begin()
        self.site.tell(
            self.part,
            "= session, committed %s, prepared %s",
            self._participant.committed_end,
            self._participant.uncommitted,
        )
        session.send(Ok(CREDITS))

    def _use(self, session: SimulatedSinkSession, participant: RefusingParticipant, event: Event) -> None:
        match event:
            case Notify(stream_id):
                position = participant.committed_end if self.plan.is_ours else 0
                session.send(NotifyAck(stream_id == DATA_STREAM, stream_id, position))
            case Messages():
                for stream_id, messages in event.by_stream():
                    if stream_id == TWOPC_STREAM:
                        for payload in messages.bodies():
                            self._decide(session, participant, read(payload))
                    else:
                        participant.append(messages.ids(), messages.bodies())

    def _decide(self, session: SimulatedSinkSession, participant: RefusingParticipant, message: TwoPhase) -> None:
        match message:
            case ListUncommitted(rtag):
                listed = participant.list_uncommitted()
                if self.plan.lists_refused and participant.last_refused is not None:
                    listed += (participant.last_refused,)
                    participant.last_refused = None
                session.send(wrap(ReplyUncommitted(rtag, listed)))
            case Phase1(txn_id, where):
                self.site.oracle.attempted(self.part, txn_id)
                participant.refusals, self.refusals = self.refusals, 0
                vote = participant.phase1(txn_id, where)
                self.site.tell(self.part, "= votes %s on %s", vote, txn_id)
                if self.hangs:
                    self.hangs -= 1
                    session.is_deaf = True
                self.site.oracle.replied(self.part, txn_id, not vote or self._txnlog.is_durable(txn_id))
                session.send(wrap(Reply(txn_id, vote)))
            case Phase2(txn_id, commit):
                participant.phase2(txn_id, commit)
                self.site.tell(self.part, "= phase 2 %s of %s, committed %s", commit, txn_id, participant.committed_end)
                if self.plan.answers_phase2:
                    session.send(wrap(Reply(txn_id, commit)))
            case ReplyUncommitted() | Reply():
                raise RemoteProtocolError("a participant's message from the coordinator")
