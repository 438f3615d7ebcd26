"""Runs clusters with other systems: a gateway, a driver, sinks to these systems, and the systems themselves.

Invariant: the systems are parts, too: they are killed and restarted like all other parts. Connectors reach them
through proxies; readers and workloads connect directly. A sink's directory can be copied, for a second sink of the
same output. `chaos/systems` defines the systems and sinks of a cluster; `chaos/live_cluster` has the code for all
clusters.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from procession.address import Address
from procession.chaos.chaos_records import SALTED
from procession.chaos.frame_splitter import LineSplitter, PieceSplitter
from procession.chaos.live_cluster import ANYWHERE, LiveCluster, address_in
from procession.chaos.output_monitor import MonitoredOutputs
from procession.chaos.proxy import Proxies, Proxy
from procession.chaos.scenario import CONTROL, DRIVER, GATEWAY, SECOND_SINK, TO_GATEWAY
from procession.chaos.system_outputs import RecordReader, SystemOutput
from procession.chaos.system_parts import link_to, output_of
from procession.chaos.system_server import HOST, SystemServer
from procession.chaos.visible_records import VisibleRecords
from procession.commit.transaction_id import TransactionId
from procession.deployment.local_pipeline import COMMAND
from procession.storage.driver_claim import checkpoint_of
from procession.storage.secret import Secret
from procession.supervisor.part import Part
from procession.verify.decisions import DecisionReader
from procession.verify.order import PromisedOrder

PIPELINE = "chaos"
SERVER_READY_S = 120.0


class StoppedEarly(Exception):
    """The user stopped the run before the systems of its cluster were ready."""


@dataclass(frozen=True, slots=True)
class SinkProgram:
    """A sink: its URL in the app, the arguments of its program for a directory, and the reader of its output."""

    part: str
    url: str
    arguments: Callable[[Path], Sequence[str]]
    records: VisibleRecords
    env: Mapping[str, str] = field(default_factory=dict)
    order: PromisedOrder = PromisedOrder.TOTAL

    @property
    def output(self) -> str:
        return output_of(self.part)


class SystemCluster(LiveCluster):
    """A cluster with systems. Call `add_server`, then `start_servers`, `use` and `start`.

    Args:
        directory: The directory of its files.
        links: Functions that return the port of the system behind each link, called for each connection.
        sinks: The parts that are sinks.
    """

    def __init__(self, directory: Path, links: Mapping[str, Callable[[], int]], sinks: Sequence[str]) -> None:
        super().__init__(directory, "")
        gateway = self._gateways.announcement(GATEWAY)
        self._directories = {sink: directory / "sinks" / output_of(sink) for sink in sinks}
        self._copies = 0
        self._second_sinks: set[str] = set()
        self._sinks: Sequence[SinkProgram] = ()
        self._servers: dict[str, SystemServer] = {}
        self._readers: dict[str, RecordReader] = {}
        self.proxies = Proxies(
            Proxy(TO_GATEWAY, address_in(gateway, "listen")),
            Proxy(CONTROL, address_in(gateway, "control"), LineSplitter),
            *(Proxy(link_to(sink), self._address_of(sink)) for sink in sinks),
            *(Proxy(link, _at(port), PieceSplitter) for link, port in links.items()),
        )

    def _address_of(self, sink: str) -> Callable[[], Address]:
        return lambda: address_in(self._directory_of(sink) / "sink.json", "listen")()

    def _directory_of(self, sink: str) -> Path:
        """Return the directory of the sink to which the driver is connected."""
        return self._copy_of(sink) if sink in self._second_sinks else self._directories[sink]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        for server in self._servers.values():
            server.close()

    # Starting

    def add_server(self, name: str, server: SystemServer) -> None:
        """Add a system, which `start_servers` starts and which ends with the cluster."""
        self._servers[name] = server

    def start_servers(self) -> None:
        """Start the systems. Return when all are ready. Raises StoppedEarly if asked to stop before that."""
        for name, server in self._servers.items():
            part = Part(name, tuple(server.command()), {}, server.is_ready, SERVER_READY_S, stop_rank=3)
            self.supervisor.start(part)
        if not self.supervisor.wait_ready():
            raise StoppedEarly

    def use(self, sinks: Sequence[SinkProgram]) -> MonitoredOutputs:
        """Use these sinks. Return their outputs, and start to read them."""
        self._sinks = sinks
        lines = "".join(f'lines.sink("{sink.output}", to="{sink.url}")\n' for sink in sinks)
        self._app.write_text(SALTED + lines)
        outputs = []
        for sink in sinks:
            reader = RecordReader(sink.records, self.directory / "visible" / f"{sink.output}.data")
            reader.start()
            self._stack.callback(reader.close)
            self._readers[sink.output] = reader
            outputs.append(SystemOutput(sink.output, reader, self._instance_of(sink), self._decided_end, sink.order))
        return MonitoredOutputs(outputs, self.decisions)

    def _instance_of(self, sink: SinkProgram) -> Callable[[], Path]:
        return lambda: self._directory_of(sink.part) / f"{PIPELINE}-{sink.output}-0"

    def start(self) -> None:
        self.start_gateway(GATEWAY)
        for sink in self._sinks:
            self.supervisor.start(self._sink(sink.part, sink.part, self._directories[sink.part]))
        if self.supervisor.wait_ready():
            self.supervisor.start(self._driver(""))
            self.supervisor.wait_ready()

    def start_connector(self, name: str, argv: Sequence[str]) -> None:
        """Start a source that never ends and logs its acknowledgements."""
        log = self._ack_log(name)
        self._acks.follow(log)
        arguments = [*argv, "--to", str(self.proxies.address(TO_GATEWAY)), "--acks", str(log)]
        self.supervisor.start(Part(name, (*arguments, *self._cookie(Secret.PRODUCERS)), self._clocks.environment(name)))

    def _sink(self, part: str, sink: str, directory: Path) -> Part:
        (program,) = (sink_program for sink_program in self._sinks if sink_program.part == sink)
        argv = [*COMMAND, "sink", *program.arguments(directory), "--listen", ANYWHERE, "--records", "blocks"]
        argv += self._cookie(Secret.SINKS)
        return self._part(part, argv, directory / "sink.json", env=program.env)

    def _driver(self, master: str) -> Part:
        arguments = self._driver_arguments({sink.output: link_to(sink.part) for sink in self._sinks})
        return self._part(DRIVER, arguments, self.directory / "driver.json")

    # Actions

    def start_second_sink(self, sink: str, *, is_copy: bool) -> None:
        if not is_copy:
            self.supervisor.start(self._sink(SECOND_SINK, sink, self._directories[sink]))
            return
        self._copies += 1
        shutil.copytree(self._directories[sink], self._copy_of(sink))
        (self._copy_of(sink) / "sink.json").unlink()
        self.supervisor.start(self._sink(SECOND_SINK, sink, self._copy_of(sink)))
        self._second_sinks.add(sink)
        self.proxies.put(link_to(sink), "cut", 0.0, 0.0)

    def end_second_sink(self, sink: str, *, is_promoted: bool) -> None:
        self.supervisor.forget(SECOND_SINK)
        if is_promoted:
            self._directories[sink] = self._copy_of(sink)
            self.supervisor.change(self._sink(sink, sink, self._directories[sink]))
        if sink in self._second_sinks:
            self._second_sinks.discard(sink)
            self.proxies.put(link_to(sink), "cut", 0.0, 0.0)

    def _copy_of(self, sink: str) -> Path:
        return self.directory / "sinks" / f"{output_of(sink)}-{self._copies}"

    # Reading

    def instances(self) -> dict[str, Path]:
        return {sink.output: self._instance_of(sink)() for sink in self._sinks}

    def _decided_end(self, output: str) -> int | None:
        """Return the decided end of the output, from the checkpoint. None while it is unknown."""
        if self._reader is None:
            self._reader = DecisionReader(checkpoint_of(self.directory))
        record = self._reader.last()
        shares = record.parts.values() if record is not None else ()
        ends = [share.end for share in shares if (txn := TransactionId.parse(share.txn)) and txn.sink == output]
        return max(ends, default=None)

    def log_tails(self) -> str:
        failures = [f"reader of {name}: {reader.why_not}" for name, reader in self._readers.items() if reader.why_not]
        return "\n".join([super().log_tails(), *failures])


def _at(port: Callable[[], int]) -> Callable[[], Address]:
    return lambda: Address(HOST, port())
