"""A sink: the real `Outlet` and `Connection`, with the rim of `sdk/sink_server` around them.

The one rule, as there: an instance has one session, the latest; a new HELLO ends the older one, and nothing that the
older one still says is heard. The real server waits for its lock between two events of one read, so here too another
session may come between them. Some sinks are not ours: they answer no phase 2, list what they refused, and their
position counts for nothing. Before it: `simulated_sink_link`, over the network. After it: `simulated_sink_files`.
"""

from __future__ import annotations

from collections import deque

from procession.errors import ProcessionError, RemoteProtocolError
from procession.sdk.participant import Outlet, Where
from procession.sim.disk_calls import Files
from procession.sim.environment import Machine, Site
from procession.sim.fault_plan import SinkPlan
from procession.sim.network import End
from procession.sim.simulated_process import Process
from procession.sim.simulated_sink_files import FileOutput, SimTxnLog
from procession.sim.simulated_sink_link import read, wrap
from procession.sim.violation import Breach
from procession.wire.connection import Connection, Event, Violation
from procession.wire.lifecycle import Role, Side
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


class MoodyOutlet(Outlet):
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


class Session:
    __slots__ = ("connection", "end", "events", "is_deaf")

    def __init__(self, end: End) -> None:
        self.end = end
        self.connection = Connection(Side.ACCEPTOR, Role.SINK)
        self.events: deque[Event] = deque()
        self.is_deaf = False

    def send(self, frame: Frame) -> None:
        if self.end.is_open and not self.connection.is_over and not self.is_deaf:
            self.end.write(self.connection.send(frame))


class Sink(Process):
    def __init__(self, site: Site, part: str, machine: Machine, plan: SinkPlan) -> None:
        super().__init__(site, part, machine)
        self.plan = plan
        self.refusals = 0
        self.hangs = 0
        self._outlet: MoodyOutlet | None = None
        self._txnlog: SimTxnLog
        self._session: Session | None = None

    def start(self) -> None:
        self.site.network.listeners[self.part] = self

    def failed(self, error: ProcessionError) -> None:
        """A failing output or log ends the sink: a promise may be at stake, and recovery has to look."""
        if not error.fields.get("is_done_to_us"):
            raise Breach("I7", f"{self.part} ends with {error.sentence!r}, and nothing was done to it")
        self.site.tell(self.part, "! %s", error.sentence)
        self.kill()

    # Sessions

    def accepted(self, end: End) -> None:
        end.tag = Session(end)
        self.later(HANDSHAKE_S, self._give_up, end.tag)

    def _give_up(self, session: Session) -> None:
        if session is not self._session and session.end.is_open:
            session.end.close()

    def lost(self, end: End, is_clean: bool) -> None:
        """What was read before is still taken: the real server ends its loop only at the end of the stream."""

    def heard(self, end: End, data: bytes) -> None:
        session: Session = end.tag
        is_waiting = bool(session.events)
        session.events.extend(session.connection.receive(data))
        if not is_waiting:
            self._take_all(session)

    def _take_all(self, session: Session) -> None:
        try:
            while session.events:
                self._take(session, session.events.popleft())
                if session.events and self.site.chance.random() < 0.15:
                    self.soon(self._take_all, session)
                    return
        except RemoteProtocolError as error:
            self._refuse(session, error.sentence)

    def _refuse(self, session: Session, reason: str) -> None:
        session.events.clear()
        self.site.tell(self.part, "! session refused: %s", reason)
        if session.end.is_open and not session.is_deaf:
            session.end.write(session.connection.error_frame(reason))
            session.end.close()

    def _take(self, session: Session, event: Event) -> None:
        if session.is_deaf:
            return
        match event:
            case Violation(reason):
                raise RemoteProtocolError(reason)
            case Error():
                session.end.close()
            case Hello():
                self._begin(session)
            case _ if self._session is session and self._outlet is not None:
                self._use(session, self._outlet, event)

    def _begin(self, session: Session) -> None:
        if self._outlet is None:
            files = Files(self, self.machine.disk)
            output = FileOutput(files, self.part)
            self._txnlog = SimTxnLog(files, output, self.site.oracle, self.part)
            self._txnlog.open()
            self._outlet = MoodyOutlet(output, self._txnlog)
        if self._session is not None:
            self._session.end.close()
        self._session = session
        self._outlet.begin()
        self.site.tell(
            self.part, "= session, committed %s, prepared %s", self._outlet.committed_end, self._outlet.uncommitted
        )
        session.send(Ok(CREDITS))

    def _use(self, session: Session, outlet: MoodyOutlet, event: Event) -> None:
        match event:
            case Notify(stream_id):
                position = outlet.committed_end if self.plan.is_ours else 0
                session.send(NotifyAck(stream_id == DATA_STREAM, stream_id, position))
            case Messages():
                for stream_id, messages in event.by_stream():
                    if stream_id == TWOPC_STREAM:
                        for payload in messages.bodies():
                            self._decide(session, outlet, read(payload))
                    else:
                        outlet.append(messages.ids(), messages.bodies())

    def _decide(self, session: Session, outlet: MoodyOutlet, message: TwoPhase) -> None:
        match message:
            case ListUncommitted(rtag):
                listed = outlet.list_uncommitted()
                if self.plan.lists_refused and outlet.last_refused is not None:
                    listed += (outlet.last_refused,)
                    outlet.last_refused = None
                session.send(wrap(ReplyUncommitted(rtag, listed)))
            case Phase1(txn_id, where):
                outlet.refusals, self.refusals = self.refusals, 0
                vote = outlet.phase1(txn_id, where)
                self.site.tell(self.part, "= votes %s on %s", vote, txn_id)
                if self.hangs:
                    self.hangs -= 1
                    session.is_deaf = True
                self.site.oracle.replied(self.part, txn_id, not vote or self._txnlog.is_durable(txn_id))
                session.send(wrap(Reply(txn_id, vote)))
            case Phase2(txn_id, commit):
                outlet.phase2(txn_id, commit)
                self.site.tell(self.part, "= phase 2 %s of %s, committed %s", commit, txn_id, outlet.committed_end)
                if self.plan.answers_phase2:
                    session.send(wrap(Reply(txn_id, commit)))
            case ReplyUncommitted() | Reply():
                raise RemoteProtocolError("a participant's message from the coordinator")
