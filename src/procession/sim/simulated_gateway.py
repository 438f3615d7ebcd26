"""A gateway: the shipped state, log, recovery and small files on the simulated disk, with a model of
`gateway/performer`, `server` and `control`. Of several gateways the first one leads with the shipped `Leadership`, and
the others have a link to it.

Invariant, as in `gateway/performer`: actions are performed in the order of their decisions. Rows are in the log before
any action that depends on them. A snapshot is on disk before its ACKs are sent, and its ACKs before the log is trimmed.
Rows are gathered for a moment. Snapshots and syncs run concurrently, so other events come between a decision and its
durability. `simulated_producer` sends to it, `simulated_driver` makes requests; it writes through `simulated_files`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from procession.errors import ConfigError, ProcessionError, StorageError
from procession.gateway import gateway_events as ev
from procession.gateway import retired_file
from procession.gateway.gateway_directory import MemberFile, save_snapshot
from procession.gateway.gateway_limits import Limits
from procession.gateway.gateway_options import GatewayConfig
from procession.gateway.leader import Leadership
from procession.gateway.members import Members
from procession.gateway.recovery import open_directory
from procession.gateway.state import GatewayState
from procession.sim.control_requests import ConfirmRequest, GatewayReply, OfferRequest
from procession.sim.disk import SimulatedPath
from procession.sim.durable_gateway import DurableSnapshot
from procession.sim.environment import Environment, Machine
from procession.sim.fault_plan import GATEWAY
from procession.sim.network import Endpoint
from procession.sim.oracle import InvariantViolation
from procession.sim.simulated_confirmation import Confirmation
from procession.sim.simulated_files import SimulatedFileSystem, is_injected_damage
from procession.sim.simulated_leader_link import (
    LEADERS_DOOR,
    LeaderEnd,
    SimulatedLeaderLink,
    member_of,
    name_of,
    next_start,
)
from procession.sim.simulated_process import SimulatedProcess
from procession.sim.simulated_session import SimulatedSession, check_acknowledgement
from procession.storage.log import IngressLog
from procession.storage.log_ranges import LogOffset
from procession.wire.draft_messages import AnyFrame
from procession.wire.lifecycle import ConnectionState
from procession.wire.messages import Restart
from procession.wire.stream_lifecycle import StreamState

TICK_S = 0.2
HANDSHAKE_S = 0.5
APPEND_DELAY_S = 0.002
OPEN = StreamState.OPEN
EPOCH_BYTES_MAX = 1 << 30

Reply = Callable[[Any], None]
Request = ev.EpochCommitted | ev.FenceRaised | ConfirmRequest | OfferRequest | ev.RetireStreams


class SimulatedGateway(SimulatedProcess):
    def __init__(
        self,
        site: Environment,
        part: str,
        machine: Machine,
        limits: Limits,
        segment_bytes_max: int,
        peers: Sequence[str] = (),
        *,
        is_confirmed: bool = True,
    ) -> None:
        """`peers` are all gateways, including this one, if there are several. Unless it `is_confirmed`, a driver must
        confirm the directory first."""
        super().__init__(site, part, machine)
        self.has_left = False
        self._peers = peers
        self._is_departing = False
        self._config = GatewayConfig(SimulatedPath(part), limits=limits, segment_bytes_max=segment_bytes_max)
        self._files = SimulatedFileSystem(self, machine.disk)
        self._sessions: dict[int, SimulatedSession] = {}
        self._numbers = 0
        self._waiting: list[pa.RecordBatch] = []
        self._is_flushing = False
        self._requests: deque[tuple[Request, Reply]] = deque()
        self._is_locked = False
        self._is_dirty = False
        """Whether a session was opened, closed or sent a frame since the last check."""
        self._durable_snapshot = DurableSnapshot(machine.disk, part)
        self.state: GatewayState
        self._log: IngressLog
        self.confirmation: Confirmation
        self._is_awaited = not is_confirmed
        self._leadership: Leadership | None = None
        self._link: SimulatedLeaderLink | None = None

    def start(self) -> None:
        self.post(self._begin)

    def _begin(self) -> None:
        """As `gateway.performer.GatewayPerformer.__init__`."""
        config, files, randrange = self._config, self._files, self.site.chance.randrange
        opened = open_directory(config, files, lambda: randrange(1, 2**64), lambda: f"{randrange(2**127, 2**128):x}")
        found, self._log = opened.found, opened.log
        self.confirmation = Confirmation(self.site, self.part, opened, is_awaited=self._is_awaited)
        is_leading = self.part == GATEWAY if self._peers else None
        end, now = self._log.next_sequence, self.site.clock.now
        tail = list(self._log.read(found.log_start, end))
        self.state = GatewayState(
            config.limits, found.snapshot, tail, end, is_leading=is_leading, retired=found.retired, now=now
        )
        self.site.tell(self.part, "= recovered to %s, %s", end, found.snapshot)
        if self._peers:
            self._lead_or_follow()
        self.site.network.listeners[self.part] = self
        self.site.gateways[self.part] = self
        self.later(TICK_S, self._tick)

    def _lead_or_follow(self) -> None:
        if self.part == GATEWAY:
            members = Members(MemberFile(self._config.directory, self._files))
            self._leadership = Leadership(members, self.state, self.handle)
            own = member_of(self.part, self.confirmation.identity)
            self._leadership.begin(own, is_confirmed=self.confirmation.is_confirmed)
            self.site.network.listeners[LEADERS_DOOR] = self
            return
        self._link = SimulatedLeaderLink(self, next_start(self._config.directory, self._files, self.site.clock.now))
        self._link.connect()

    def failed(self, error: ProcessionError) -> None:
        if not is_injected_damage(error):
            raise InvariantViolation("I7", f"the gateway ends with {error.sentence!r}, and nothing was done to it")
        self.site.tell(self.part, "! %s", error.sentence)
        self.kill()

    def stop(self) -> None:
        """SIGTERM: producers are sent away with a RESTART, and what is here is put on disk."""
        for session in list(self._sessions.values()):
            if session.connection.state is ConnectionState.STREAMING:
                self._send(session.number, Restart())
            session.end.close()
        self._end()

    def _end(self) -> None:
        self._flush()
        self._log.sync()
        self.kill()

    def check(self) -> None:
        """I8: a stream is held by one living session at most, and by none that is gone; and by one gateway at most."""
        if not self._is_dirty:
            return
        self._is_dirty = False
        sessions = self.state.sessions
        for stream in self.state.registry:
            if stream.session is not None and stream.session not in sessions:
                raise InvariantViolation(
                    "I8", f"stream {stream.stream_id} is held by session {stream.session}, which is gone"
                )
            if len(sessions) > 1 and (holders := self._holders(stream.stream_id)) > 1:
                raise InvariantViolation("I8", f"stream {stream.stream_id} is open in {holders} sessions at once")
        if self._peers and (held := self.held):
            for part, other in self.site.gateways.items():
                if other is not self and other.is_alive and (both := held & other.held):
                    raise InvariantViolation("I8", f"{self.part} and {part} both hold {sorted(both)}")

    @property
    def held(self) -> set[int]:
        claims = self.state.claims if self.confirmation.is_confirmed else None
        return set() if claims is None else set(claims.held)

    def _holders(self, stream_id: int) -> int:
        living = [self._sessions[number] for number in self.state.sessions if number in self._sessions]
        return [session.connection.stream_state(stream_id) for session in living].count(OPEN)

    # Sessions

    def accepted(self, end: Endpoint) -> None:
        if end.address == LEADERS_DOOR:
            assert self._leadership is not None
            end.tag = LeaderEnd(end, self, self._leadership)
            return
        if self._is_departing:
            end.close()  # it accepts no more connections
            return
        self._numbers += 1
        end.tag = session = SimulatedSession(end, self._numbers)
        self._sessions[session.number] = session
        self.handle(ev.SessionOpened(session.number))
        self.later(HANDSHAKE_S, self._give_up_handshake, session)

    def _give_up_handshake(self, session: SimulatedSession) -> None:
        if session.end.is_open and session.connection.state in (ConnectionState.CONNECTED, ConnectionState.HANDSHAKE):
            self.handle(ev.SessionClosed(session.number))
            self._close(session.number, "no HELLO in time")

    def received(self, end: Endpoint, data: bytes) -> None:
        if isinstance(end.tag, LeaderEnd):
            end.tag.take(data)
            return
        if isinstance(end.tag, SimulatedLeaderLink):
            end.tag.take(end, data)
            return
        session: SimulatedSession = end.tag
        for event in session.connection.receive(data):
            self.handle(ev.FrameReceived(session.number, event))

    def lost(self, end: Endpoint, is_clean: bool) -> None:
        if isinstance(end.tag, LeaderEnd):
            end.tag.lost()
            return
        if isinstance(end.tag, SimulatedLeaderLink):
            end.tag.lost(end)
            return
        self._sessions.pop(end.tag.number, None)
        self.handle(ev.SessionClosed(end.tag.number))

    def _tick(self) -> None:
        self.handle(ev.AckIntervalPassed())
        self.on_request(ev.RetireStreams(), lambda _: None)
        self.later(TICK_S, self._tick)

    # Doing

    def handle(self, event: ev.Event) -> None:
        if isinstance(event, ev.LeaderFound) and not self.confirmation.is_confirmed:
            return  # streams are refused until it is
        self._is_dirty = True
        for action in self._decided(event):
            self._perform(action)

    def _decided(self, event: ev.Event) -> list[ev.Action]:
        return self.state.handle(event, self.site.clock.now)

    def _perform(self, action: ev.Action) -> None:
        match action:
            case ev.AppendRows():
                self._waiting.append(action.batch)
                if not self._is_flushing:
                    self._is_flushing = True
                    self.later(APPEND_DELAY_S, self._flush)
            case ev.SendFrame():
                self._send(action.session, action.frame)
            case ev.CloseSession():
                self._close(action.session, action.reason)
            case ev.TrimLog():
                self.site.oracle.trimmed(action.before_sequence, self._durable_snapshot().end_sequence)
                self._log.trim(action.before_sequence)
            case ev.AskForStream(stream_id):
                self._leader.ask(stream_id)
            case ev.RelinquishStream(stream_id, committed):
                self._leader.relinquish(stream_id, committed)
            case ev.WriteSnapshot():
                raise InvariantViolation("I4", "a snapshot is asked for by something that does not wait for it")

    @property
    def _leader(self) -> Leadership | SimulatedLeaderLink:
        leader = self._leadership or self._link
        assert leader is not None
        return leader

    def _send(self, number: int, frame: AnyFrame) -> None:
        session = self._sessions.get(number)
        if session is None or session.connection.is_over or not session.end.is_open:
            return
        check_acknowledgement(self.site, self._durable_snapshot, frame)
        session.end.write(session.connection.send(frame))

    def _close(self, number: int, reason: str | None) -> None:
        session = self._sessions.pop(number, None)
        if session is not None and session.end.is_open:
            if reason is not None:
                self.site.tell(self.part, "! session %s: %s", number, reason)
                session.end.write(session.connection.error_frame(reason))
            session.end.close()

    def _flush(self) -> None:
        self._is_flushing = False
        if self._waiting:
            batch = pa.concat_batches(self._waiting) if len(self._waiting) > 1 else self._waiting[0]
            self._waiting = []
            self._log.append(batch)
            self.handle(ev.RowsAppended(self._log.next_sequence))

    # Leaving

    def let_go(self, part: str) -> None:
        """The operator asks this gateway, the leader, to remove a gateway."""
        if self._leadership is not None:
            try:
                self._leadership.leave(name_of(part))
            except ConfigError as error:
                self.site.tell(self.part, "! %s", error.sentence)

    def depart(self, others: Sequence[str]) -> None:
        """Accepts no more producers, and redirects those that are connected to another gateway."""
        if self._is_departing:
            return
        self._is_departing = True
        self.site.tell(self.part, "= departs, producers may go to %s", others)
        for number, session in enumerate(list(self._sessions.values())):
            if session.connection.state is ConnectionState.STREAMING:
                self._send(session.number, Restart(others[number % len(others)] if others else None))
            self.handle(ev.SessionClosed(session.number))
            self._close(session.number, None)

    @property
    def is_settled(self) -> bool:
        """As `gateway.core.Gateway.is_settled`."""
        return not self.state.claims and self.state.snapshot.end_sequence == self.state.next_sequence

    def leave(self) -> None:
        self.site.tell(self.part, "= has left")
        self.has_left = True
        self._end()

    # What the driver asks for: one at a time, as behind the real gateway's lock

    def on_request(self, request: Request, reply: Reply) -> None:
        self._requests.append((request, reply))
        if not self._is_locked:
            self._next_request()

    def _next_request(self) -> None:
        self._is_locked = bool(self._requests)
        if not self._requests:
            return
        request, reply = self._requests.popleft()
        try:
            actions: list[ev.Action] = []
            self.confirmation.check_compared(request)
            if isinstance(request, ev.EpochCommitted | ev.RetireStreams):
                actions = self._decided(request)
            else:
                if isinstance(request, ConfirmRequest | OfferRequest):
                    members = () if self._leadership is None else self._leadership.names
                    self.confirmation.check(self._log, request, self.state.snapshot, members)
                self.state.snapshot.check_fence(request.fence)
                if request.fence > self.state.snapshot.fence:
                    actions = self._decided(ev.FenceRaised(request.fence))
        except StorageError as error:
            self._answer(reply, self.confirmation.excused(error))
            return
        except ProcessionError as error:
            self._answer(reply, error)
            return
        self._begin_snapshot(actions, request, reply)

    def _begin_snapshot(self, actions: list[ev.Action], request: Request, reply: Reply) -> None:
        if not actions:
            self._written(request, reply)
            return
        (action,) = actions
        assert isinstance(action, ev.WriteSnapshot)
        self.soon(self._save, action, request, reply)

    def _save(self, write: ev.WriteSnapshot, request: Request, reply: Reply) -> None:
        if write.retiring is not None and write.retiring.mark is not None:
            retired_file.write(self._config.directory, write.retiring, self._files)
        save_snapshot(self._config.directory, write.snapshot, self._files)
        self.soon(self._saved, write, request, reply)

    def _saved(self, write: ev.WriteSnapshot, request: Request, reply: Reply) -> None:
        for action in self._decided(ev.SnapshotWritten(write.snapshot, write.retiring)):
            self._perform(action)
        if write.retiring is not None:
            retired_file.remove_others(self._config.directory, write.snapshot.retired, self._files)
        self._written(request, reply)

    def _written(self, request: Request, reply: Reply) -> None:
        offset = LogOffset(self.state.next_sequence)
        if isinstance(request, OfferRequest):
            self._flush()
            self._log.sync()
            try:
                end = self._log.end_for(request.offered.sequence, request.records_max, EPOCH_BYTES_MAX)
                offset = self._log.offset(end)
            except StorageError as error:
                self._answer(reply, error)  # a late request of a replaced driver, for rows that are trimmed
                return
        is_behind = isinstance(request, ConfirmRequest | OfferRequest) and not self._confirmed(request)
        gateways = tuple(self._leadership.gateways) if self._leadership is not None else ()
        self._answer(reply, GatewayReply(offset, gateways, is_behind))

    def _confirmed(self, request: ConfirmRequest | OfferRequest) -> bool:
        """A driver knows this log. Whether producers may come now."""
        if self.confirmation.confirm(request, self.state.snapshot):
            if self._leadership is not None:
                self._leadership.lead()
            elif self._link is not None:
                self._link.greet_again()
        return self.confirmation.is_confirmed

    def _answer(self, reply: Reply, answer: Any) -> None:
        reply(answer)
        self._next_request()
