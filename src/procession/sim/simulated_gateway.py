"""Simulates a gateway: the shipped `gateway/server` with its performer, sessions, control port and leader link, on a
simulated host.

Invariant: this module contains no code of the gateway. It creates the host of one process, starts the server on it,
and reports the performer's actions to the oracle when they happen. `simulated_producer` connects to it,
`simulated_driver` and `simulated_spark` make requests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from procession.address import Address
from procession.errors import ConfigError, ProcessionError, StorageError
from procession.gateway import gateway_events as ev
from procession.gateway.control_client import checked
from procession.gateway.gateway_limits import Limits
from procession.gateway.gateway_options import GatewayConfig
from procession.gateway.server import GatewayServer, run_until
from procession.runtime.host import Host
from procession.sim.disk import Disk, SimulatedPath
from procession.sim.durable_gateway import DurableSnapshot, check_acknowledgement
from procession.sim.environment import Environment, Machine
from procession.sim.fault_plan import GATEWAY
from procession.sim.gateway_addresses import control_address, listen_address, name_of
from procession.sim.oracle import CHECKPOINT, InvariantViolation
from procession.sim.set_back import blamed
from procession.sim.simulated_files import SimulatedFileSystem, is_injected_damage
from procession.sim.simulated_loop import AsyncioProcess
from procession.sim.simulated_process import Steps
from procession.sim.simulated_transport import CallTransport, SimulatedListener
from procession.wire.draft_messages import AnyFrame
from procession.wire.messages import Messages
from procession.wire.stream_lifecycle import StreamState

READ_BYTES_MAX = 64 * 1024
WALL_CLOCK_RATE = 1000
"""Speed of the wall clock, because a wall clock shows seconds and a simulated gateway restarts after milliseconds."""
OPEN = StreamState.OPEN

Reply = Callable[[Any], None]


class GatewayFiles(SimulatedFileSystem):
    """The disk of a gateway's machine, and the directory of the checkpoint, which all machines of a pipeline share."""

    def __init__(self, process: SimulatedGateway, disk: Disk, shared: Disk) -> None:
        super().__init__(process, disk)
        self._shared = SimulatedFileSystem(process, shared)

    def read(self, path: Path) -> bytes:
        return self._shared.read(path) if path.parts[0] == CHECKPOINT else super().read(path)


class OracleObserver(ev.GatewayObserver):
    """Reports the decisions and actions of the shipped performer to the oracle when they happen."""

    def __init__(self, process: SimulatedGateway) -> None:
        self._process = process
        self._site = process.site
        self._durable_snapshot = DurableSnapshot(process.machine.disk, process.part)

    def on_event(self, event: ev.Event | ev.OfOrder) -> None:
        self._process.is_dirty = True
        is_data = isinstance(event, ev.FrameReceived) and isinstance(event.what, Messages)
        self._site.log_event(self._process.part, "< %s", "records" if is_data else event)

    def on_send(self, frame: AnyFrame) -> None:
        # An abandoned gateway may open a stream at an older position, because its records are never committed.
        is_zombie = self._process.part in self._site.abandoned
        check_acknowledgement(self._site, self._durable_snapshot, frame, is_zombie=is_zombie)

    def on_trim(self, before_sequence: int) -> None:
        self._site.oracle.trimmed(before_sequence, self._durable_snapshot().end)

    def on_confirmed(self, next_sequence: int) -> None:
        self._site.confirmed(self._process.part, next_sequence)


class SimulatedGateway(AsyncioProcess):
    def __init__(
        self, site: Environment, part: str, machine: Machine, limits: Limits, segment_bytes_max: int, checkpoint: Disk
    ) -> None:
        """Prepare a gateway. `checkpoint` is the disk on which drivers claim their fences."""
        super().__init__(site, part, machine, is_interruptible=False)
        self.has_left = False
        self.is_dirty = False
        """Whether the performer has decided anything since the last check."""
        self.server: GatewayServer | None = None
        self._config = GatewayConfig(
            SimulatedPath(part),
            listen=listen_address(part),
            control=control_address(part),
            limits=limits,
            segment_bytes_max=segment_bytes_max,
            read_bytes_max=READ_BYTES_MAX,
            handshake_timeout_s=0.5,
            ack_interval_s=0.2,
            linger_s=0.05,
            name=part,
            join=None if part == GATEWAY else control_address(GATEWAY),
            machine=machine.name,
            checkpoint=SimulatedPath(CHECKPOINT),
            link_interval_s=0.15,
            link_timeout_s=0.5,
        )
        self._host = Host(
            files=GatewayFiles(self, machine.disk, checkpoint),
            listen=self._listen,
            monotonic_s=lambda: site.clock.now,
            wall_clock_s=lambda: WALL_CLOCK_RATE * site.clock.now,
            random_bits=lambda bits: site.chance.randrange(0, 1 << bits),
        )

    def _listen(self, address: Address, previous: Address | None) -> Any:
        return SimulatedListener(address)

    def start(self) -> None:
        self.begin(self._main)

    def _main(self) -> Coroutine[Any, Any, None]:
        self.site.gateways[self.part] = self
        return self._serve()

    async def _serve(self) -> None:
        try:
            self.server = server = GatewayServer(self._config, self._host, OracleObserver(self))
            self.site.log_event(self.part, "= recovered to %s", server.gateway.state.next_sequence)
            await run_until(server, self.stopped)
        except ProcessionError as error:
            self.failed(error)
            return
        self.has_left = server.link is not None and server.link.has_left.done()
        self.site.log_event(self.part, "= has left" if self.has_left else "= has stopped")
        self.later(0.0, self.kill)

    def failed(self, error: ProcessionError) -> None:
        if isinstance(error, ConfigError) and self.part in self.site.abandoned:
            self.site.log_event(self.part, "! %s", error.sentence)
            self.site.gone_for_good.add(self.part)
        elif isinstance(error, ConfigError) and self.site.set_back:
            self._refuses(error)
        elif not is_injected_damage(error):
            raise InvariantViolation("I7", f"the gateway ends with {error.sentence!r}, and nothing was done to it")
        else:
            self.site.log_event(self.part, "! %s", error.sentence)
        self.later(0.0, self.kill)

    def _refuses(self, error: ProcessionError) -> None:
        self.site.log_event(self.part, "! refuses: %s", error.sentence)
        self.site.refused(self.part)

    def stop(self) -> Steps | None:
        """Handle SIGTERM."""
        self.stopped.set()
        return self.loop.turn()

    def check(self) -> None:
        """Check I8: at most one session and at most one gateway hold a stream, and closed sessions hold no stream."""
        if not self.is_dirty or self.server is None:
            return
        self.is_dirty = False
        state = self.server.gateway.state
        for stream in state.registry:
            if stream.session is not None and stream.session not in state.sessions:
                raise InvariantViolation(
                    "I8", f"stream {stream.stream_id} is held by session {stream.session}, which is gone"
                )
            if len(state.sessions) > 1 and (holders := self._holders(stream.stream_id)) > 1:
                raise InvariantViolation("I8", f"stream {stream.stream_id} is open in {holders} sessions at once")
        if len(self.site.gateways) > 1 and (held := self.held):
            for part, other in self.site.gateways.items():
                if other is not self and other.is_alive and (both := held & other.held):
                    raise InvariantViolation("I8", f"{self.part} and {part} both hold {sorted(both)}")

    @property
    def held(self) -> set[int]:
        if self.server is None or not self.server.gateway.is_confirmed or self.part in self.site.abandoned:
            return set()
        claims = self.server.gateway.state.claims
        return set() if claims is None else set(claims.held)

    def _holders(self, stream_id: int) -> int:
        assert self.server is not None
        living = self.server.gateway.state.sessions
        sessions = [session for session in self.server.sessions if session.number in living]
        return [session.connection.stream_state(stream_id) for session in sessions].count(OPEN)

    # Requests at the control port

    def on_request(self, request: dict[str, Any], reply: Reply) -> Steps | None:
        """Handle a connection with one request."""
        if (protocol := self.ports.get(control_address(self.part))) is None:
            return None

        def answered(line: bytes) -> None:
            try:
                reply(checked(json.loads(line)))
            except StorageError as error:
                self._refuses(error)
                reply(blamed(error, is_injected_damage=self.part in self.site.set_back))
            except ProcessionError as error:
                reply(error)

        CallTransport(self.loop, protocol, json.dumps(request).encode() + b"\n", answered)
        return self.loop.turn()

    def let_go(self, part: str) -> Steps | None:
        """Handle an operator's request to the leader to remove a gateway."""
        return self.on_request({"op": "leave", "name": name_of(part)}, lambda _: None)
