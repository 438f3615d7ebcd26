"""Simulates a sink: the shipped `sdk/sink_server` and `sdk/sink_directory` with the shipped file output, on a
simulated host.

Invariant: this module contains no code of the sink. It starts the server on the simulated loop, and reports votes,
commits and refusals to the oracle. Third-party sinks are in `foreign_sink`. Upstream: `commit/sink_link`, over the
network. Downstream: `observed_sink`.
"""

from __future__ import annotations

from procession.address import Address
from procession.connectors.file_sink import FileOutput
from procession.errors import ProcessionError
from procession.sdk.output import Wait
from procession.sdk.participant import SinkParticipant
from procession.sdk.sink_directory import SinkDirectory
from procession.sdk.sink_server import SinkServer
from procession.sim.disk import SimulatedPath
from procession.sim.environment import Environment, Machine
from procession.sim.network import Endpoint
from procession.sim.observed_sink import ObservedParticipant, ObservedTransactionLog, output_path
from procession.sim.oracle import InvariantViolation
from procession.sim.simulated_files import SimulatedFileSystem, is_injected
from procession.sim.simulated_loop import AsyncioProcess
from procession.sim.simulated_process import Steps
from procession.sim.simulated_transport import SimulatedListener, SimulatedTransport
from procession.wire.connection import Connection
from procession.wire.lifecycle import ConnectionSide, Role
from procession.wire.messages import Error
from procession.wire.v3 import encode

HANDSHAKE_S = 0.5
TYPE_AT = 4
"""Position of the type in a frame, after the length."""
ERROR_TYPE = encode(Error(""))[TYPE_AT]
EXPECTED = ("no HELLO in time", "the sink failed")
"""Reasons that a sink sends to an idle connection, or when its disk fails."""


class SimulatedSink(AsyncioProcess):
    def __init__(self, site: Environment, part: str, machine: Machine) -> None:
        super().__init__(site, part, machine, is_interruptible=False)
        self.refusals = 0
        self.hangs = 0
        self._files = SimulatedFileSystem(self, machine.disk)

    def start(self) -> None:
        self.begin(self._serve)

    async def _serve(self) -> None:
        try:
            self._directory = SinkDirectory(SimulatedPath(self.part), self._open_output, files=self._files)
            server = SinkServer(self._open_participant, handshake_timeout_s=HANDSHAKE_S)
            await server.serve(SimulatedListener(Address(self.part, 0)))  # type: ignore[arg-type]
        except ProcessionError as error:
            self.failed(error)

    def _open_output(self, instance: str) -> FileOutput:
        return FileOutput(output_path(instance), self._files)

    def _open_participant(self, instance: str, wait: Wait) -> SinkParticipant:
        output, txnlog = self._open_output(instance), ObservedTransactionLog(self._files, self.site.oracle, instance)
        txnlog.open()
        return ObservedParticipant(output, txnlog, self)

    def voted(self) -> None:
        """Hang after a vote and before it is sent, if the schedule says so."""
        if self.hangs:
            self.hangs -= 1
            for end in self.ends:
                end.mute()

    def failed(self, error: ProcessionError) -> None:
        """End the sink after a failed output or log, because a vote may be affected. Recovery determines this."""
        if not is_injected(error):
            raise InvariantViolation("I7", f"{self.part} ends with {error.sentence!r}, and nothing was done to it")
        self.site.log_event(self.part, "! %s", error.sentence)
        self.later(0.0, self.kill)

    def accepted(self, end: Endpoint) -> Steps | None:
        if (make_protocol := self.ports.get(end.address)) is None:
            end.close()
            return None
        ObservedTransport(self.loop, end, make_protocol)
        return self.loop.turn()


class ObservedTransport(SimulatedTransport):
    """Reports the reason that a sink sends to a driver when it ends the session."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if data[TYPE_AT] == ERROR_TYPE:
            (error,) = Connection(ConnectionSide.INITIATOR, Role.SINK).receive(bytes(data))
            assert isinstance(error, Error)
            sink = self._end.owner
            sink.site.log_event(sink.part, "! session refused: %s", error.reason)
            if error.reason not in EXPECTED:
                self._end.other.owner.refused(error.reason)
        super().write(data)
