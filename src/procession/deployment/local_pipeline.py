"""Runs a pipeline on one machine: gateways, the driver and the connectors of the app, as supervised processes.

Invariant: the command line of a part contains everything except secrets, so the part can also be started alone with
the same arguments. Secrets are in files, or in the environment, which parts inherit. Used by `procession run` and
`procession demo`; uses `supervisor/supervisor`.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

from procession.address import Address, other_port, parse_address
from procession.cache import find_place
from procession.commit.emitter_server import ANNOUNCEMENT, announced_address
from procession.commit.log_locations import LogLocations
from procession.deployment.cookies import check_open
from procession.deployment.part_arguments import (
    GATEWAY,
    connector_arguments,
    driver_arguments,
    emitter_arguments,
    gateway_arguments,
    option_arguments,
    server_tls_arguments,
)
from procession.deployment.pipeline_replicas import PipelineReplicas
from procession.deployment.run_inputs import FilePattern
from procession.deployment.settings import Settings
from procession.driver.driver import CACHE, READY
from procession.driver.spark_process import COMMAND_STARTED
from procession.driver.stream_order import check_gateways, order_arguments
from procession.gateway.input_pins import pin_new_gateway
from procession.gateway.listen_address import ADDRESS_FILE, addresses
from procession.planner.connector import Packing
from procession.planner.graph import Graph, Node, SinkConnection
from procession.spark.master import is_on_this_machine
from procession.storage.driver_claim import checkpoint_of
from procession.storage.secret import Secret, make_pipeline_private, make_secret, path_of
from procession.supervisor.part import Part
from procession.supervisor.supervisor import Supervisor

DRIVER = "driver"
EMITTER = "emitter"
SOURCE = "source"

SPARE = ("--spare",)
"""The option that makes a driver a spare."""
EARLY = ("--early",)
"""The option of a driver that starts before its sinks have addresses."""

HERE = "127.0.0.1:0"
"""Address with any free port, reachable only from this machine."""

STARTED = time.monotonic()
"""Approximate start time of this command."""

COMMAND = (sys.executable, "-m", "procession")


def _as_it_is(argv: Sequence[str]) -> tuple[str, ...]:
    return tuple(argv)


@dataclass(frozen=True)
class LocalPipeline:
    """The parts of a pipeline. Relative directories of the app's sinks are relative to `base`."""

    supervisor: Supervisor
    app: Path
    graph: Graph
    directory: Path
    base: Path
    settings: Settings
    listen: str = HERE
    input_streams: frozenset[int] = frozenset()
    """The streams of `--input`. A source ends when all of its streams have ended."""
    sink_listen: str = HERE
    """Address at which each sink listens for the driver."""
    has_checkpoint: bool = True
    """Whether the checkpoint is in this directory, so that gateways can compare a driver's fence with it."""
    has_emitter: bool = False
    """Whether an emitter starts with the gateways and sinks, for a driver on another machine."""
    gateway_at: str = ""
    """Control address of a first gateway that is not in this directory."""
    enter: Callable[[Sequence[str]], tuple[str, ...]] = _as_it_is
    """Returns the command that runs a command on the host of the parts, in the same process."""
    env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Additional environment per part: tests use it to arm fault points."""

    @property
    def sink_directories(self) -> dict[str, Path]:
        """The directories of sinks that start with the pipeline. Sinks of one directory share a process."""
        return {sink.name: self._sink_directory(sink) for sink in self.graph.sinks if sink.sink_traits.is_started}

    def _sink_directory(self, sink: Node) -> Path:
        named = sink.sink_traits.directory
        return (self.base / named(sink.url)).resolve() if named is not None else self.directory / "sinks" / sink.name

    @property
    def sink_parts(self) -> dict[Path, str]:
        """The name of the process that serves each directory."""
        directories = dict.fromkeys(self.sink_directories.values())
        return {directory: f"sink-{number}" for number, directory in enumerate(directories)}

    @property
    def replicas(self) -> PipelineReplicas:
        return PipelineReplicas(self.settings, self.graph.name)

    @property
    def replicated(self) -> dict[str, Path]:
        """The directories that replicas store, by the part in their volume's name. The driver's is first: it may
        contain others."""
        gateways = {part: self.directory / part for part in self.gateway_parts}
        sinks = {self._served(directory)[0].sink: directory for directory in self.sink_parts}
        kept = {_volume_part(sink): directory for sink, directory in sinks.items() if sink.sink_traits.is_replicated}
        return {DRIVER: self.directory, **gateways, **kept}

    @property
    def gateway_directory(self) -> Path:
        """The directory of the first gateway."""
        return self.directory / GATEWAY

    @property
    def gateways_in(self) -> Path:
        """The directory with the gateways' directories."""
        return self.directory

    @property
    def gateway_parts(self) -> list[str]:
        """The names of the gateways' processes and directories, the leader first. Abandoned ones are replaced by
        new ones."""
        abandoned = LogLocations(checkpoint_of(self.directory)).abandoned
        names = (f"{GATEWAY}-{number}" for number in itertools.count(1))
        usable = (name for name in names if name not in abandoned)
        return [GATEWAY, *itertools.islice(usable, self.settings.gateways - 1)]

    @property
    def address(self) -> str:
        """The addresses for producers, once the gateways are ready."""
        return ",".join(self._addresses)

    @property
    def control(self) -> str:
        """The address at which other machines' gateways join, once the first gateway is ready."""
        return str(addresses(self.gateway_directory)["control"])

    @property
    def _addresses(self) -> list[str]:
        return [str(addresses(self.directory / part)["listen"]) for part in self.gateway_parts]

    @property
    def is_new(self) -> bool:
        """Whether the first gateway admits producers before a driver has confirmed its log: nothing was ever in it."""
        return not self.gateway_directory.exists()

    def start(self, beside: Callable[[], None] = lambda: None) -> bool:
        """Start gateways, sinks and the driver. Return False if asked to stop meanwhile. `beside` is called when
        gateways and sinks are ready, and starts what need not wait for the driver."""
        return self.start_ends(has_early_driver=True) and self.start_driver(beside)

    def start_ends(self, *, has_early_driver: bool = False) -> bool:
        """Start gateways and sinks. Return False if asked to stop meanwhile. With `has_early_driver`, also start a
        driver, which starts Spark and then waits for `start_driver`."""
        find_place(self.directory / CACHE)
        self.settings.check_tls()
        check_gateways(self.graph, self.settings.gateways)
        check_open(self.settings.cookie_file, is_open=self.settings.open_producers)
        make_pipeline_private(self.directory)
        (self.directory / "logs").mkdir(parents=True, exist_ok=True)
        self._make_secrets()
        for part in self.gateway_parts:
            pin_new_gateway(self.gateway_directory, self.directory / part)
            self.supervisor.start(self._part(part, self._gateway(part), self.directory / part / ADDRESS_FILE, 2))
        self.start_sinks(self.sink_parts)
        if self.has_emitter:
            self.start_emitter()
        names = self.supervisor.names
        if has_early_driver:
            self.supervisor.start_early(self._driver_part(self._driver(), EARLY))
        return self.supervisor.wait_ready(*names)

    def start_driver(self, beside: Callable[[], None] = lambda: None) -> bool:
        """Start the driver, or let the early driver take over, and call `beside`. The sinks must be ready. Return False
        if asked to stop meanwhile."""
        part = self.driver_part()
        if self.supervisor.has(DRIVER):
            self.supervisor.replace(DRIVER, part)
        else:
            self.supervisor.start(part)
        beside()
        return self.supervisor.wait_ready(DRIVER)

    def driver_part(self) -> Part:
        """Return the part of this app's driver. The sinks must be ready."""
        spare = SPARE if self.settings.spare_driver else ()
        sinks = self._sink_addresses()
        turn = " ".join(["go", *sinks]) + "\n"
        argv = self._driver() + [word for named in sinks for word in ("--sink", named)]
        return replace(self._driver_part(argv, spare), turn=turn.encode())

    def _driver_part(self, argv: list[str], spare: tuple[str, ...]) -> Part:
        part = self._part(DRIVER, argv, self.directory / READY, 1, 45.0, spare)
        if is_on_this_machine(self.settings.master or "local"):
            return part
        # A cluster may give executors at any time, and on YARN a new driver waits behind all others. The driver itself
        # notices a JVM that hangs.
        return replace(part, ready_timeout_s=inf)

    def _sink_addresses(self) -> list[str]:
        """Return NAME=HOST:PORT of each sink that was started."""
        found = {
            sink: json.loads((at / "sink.json").read_text())["listen"] for sink, at in self.sink_directories.items()
        }
        return [f"{sink}={address}" for sink, address in found.items()]

    def start_sinks(self, parts: Mapping[Path, str]) -> None:
        """Start the processes of these sinks' directories, under these names."""
        for directory, name in parts.items():
            part = self._part(name, self.sink_arguments(directory), directory / "sink.json", 3)
            is_opaque = self._served(directory)[0].sink.connector.is_opaque
            self.supervisor.start(replace(part, is_of_url=not is_opaque))

    def start_emitter(self) -> None:
        """Start an emitter at the address of the sinks."""
        directory = self.directory / EMITTER
        secret = self.settings.control_cookie_file or self._made(Secret.CONTROL)
        argv = emitter_arguments(self.settings, directory, self.sink_listen, secret)
        self.supervisor.start(self._part(EMITTER, argv, directory / ANNOUNCEMENT, 2))

    @property
    def emitter_address(self) -> str:
        """The address of the emitter, once it is ready."""
        return str(announced_address(self.directory / EMITTER))

    def start_source(
        self,
        paths: Sequence[Path],
        *,
        rate: float | None = None,
        is_stamping: bool = False,
        name: str = SOURCE,
        turn: int = 0,
        event_time: Sequence[str] = (),
    ) -> None:
        """Start a file source. It exits when all of its records are committed. `turn` chooses the first gateway."""
        argv = ["source", "file", *map(str, paths), *self._sending(turn)]
        argv += ["--rate", str(rate)] if rate else []
        argv += ["--stamp"] if is_stamping else []
        argv += event_time
        self._start_sending(name, argv)

    def start_pattern(self, files: FilePattern, *, turn: int = 0, event_time: Sequence[str] = ()) -> None:
        """Start a source of files that are one stream."""
        state = self.directory / "sources" / f"{files.source}.{files.stream:016x}"
        argv = ["source", "file", files.pattern, "--one-stream", files.pattern, "--state", str(state)]
        argv += [*(["--follow"] if files.is_endless else []), *event_time, *self._sending(turn)]
        self._start_sending(part_of(files), argv)

    def start_given(self, path: Path) -> None:
        """Start the source of the records in this file (`connectors/given_records`)."""
        self._start_sending(SOURCE, ["source", "given", str(path), *self._sending(0)])

    def start_connected(self) -> None:
        """Start the connectors of the app's sources that read a URL."""
        for turn, source in enumerate(self.graph.connected):
            directory = self.directory / "sources" / source.name
            arguments = connector_arguments(source, directory)
            argv = ["source", source.connector.name, *arguments, *self._sending(turn), "--source", source.name]
            is_opaque = source.connector.is_opaque
            self._start_sending(f"{SOURCE}-{source.name}", argv, is_of_url=not is_opaque)

    def _sending(self, turn: int) -> list[str]:
        found = self._addresses
        to = ",".join(found[turn % len(found) :] + found[: turn % len(found)])
        return ["--to", to, *self.producer_arguments, *self._client_tls()]

    def _start_sending(self, name: str, argv: Sequence[str], *, is_of_url: bool = False) -> None:
        env = self.env.get(name, self.env.get(SOURCE, {}))
        # A source waits until its records are committed, so the driver has the next rank.
        self.supervisor.start(Part(name, self.enter((*COMMAND, *argv)), env=env, stop_rank=0, is_of_url=is_of_url))

    def _part(
        self,
        name: str,
        argv: Sequence[str],
        announcement: Path,
        stop_rank: int,
        stop_timeout_s: float = 10.0,
        spare: tuple[str, ...] = (),
    ) -> Part:
        return Part(
            name,
            self.enter((*COMMAND, *argv)),
            env={COMMAND_STARTED: str(STARTED), **self.env.get(name, {})},
            is_ready=announced_in(announcement),
            stop_rank=stop_rank,
            stop_timeout_s=stop_timeout_s,
            spare=spare,
        )

    def _gateway(self, part: str = GATEWAY) -> list[str]:
        # Only the first gateway uses the given address; the others take any port of the same host.
        listen = self.listen if part == GATEWAY else str(other_port(self.listen))
        argv = gateway_arguments(self.settings, self.directory, part, listen, has_checkpoint=self.has_checkpoint)
        return argv + order_arguments(self.graph) + self._metrics(part) + self.replicas.arguments(part)

    def _metrics(self, part: str) -> list[str]:
        """Return the metrics address of a gateway: the first has the given address, the others have the following
        ports."""
        if self.settings.metrics is None:
            return []
        host, port = parse_address(self.settings.metrics)
        return ["--metrics", str(Address(host, port + self.gateway_parts.index(part) if port else 0))]

    def _served(self, directory: Path) -> list[SinkConnection]:
        at = self.sink_directories
        return [end for end in self.graph.participants if at.get(end.name, at.get(end.sink.name)) == directory]

    def sink_arguments(self, directory: Path) -> list[str]:
        """Return the command line of the process that serves the sinks of this directory."""
        served = self._served(directory)
        sink = served[0].sink
        argv = [
            "sink",
            sink.connector.name,
            *sink.sink_traits.arguments(sink.url, directory),
            "--listen",
            self.sink_listen,
        ]
        if sink.sink_traits.packing is Packing.BLOCKS:
            argv += ["--records", "lanes" if sink.lanes else "blocks"]
        argv += ["--order", self.graph.order.value] if sink.sink_traits.takes_order else []
        for end in served:
            if end.sink.is_idempotent:
                argv += ["--idempotent", end.instance]
        shown = self.settings.sink_cookie_file or self._made(Secret.SINKS)
        argv += self.replicas.arguments(_volume_part(sink)) if sink.sink_traits.is_replicated else []
        return [*argv, "--cookie-file", str(shown), *server_tls_arguments(self.settings)]

    def _make_secrets(self) -> None:
        """Create the shared secrets before any gateway starts, because a gateway that joins does not create them."""
        if self.settings.control_cookie_file is None:
            make_secret(self.directory, Secret.CONTROL)
        if self.settings.cookie_file is None and not self.settings.open_producers:
            make_secret(self.directory, Secret.PRODUCERS)

    def _made(self, secret: Secret) -> Path:
        """Return the file of a secret of this pipeline, and create it if it is missing."""
        make_secret(self.directory, secret)
        return path_of(self.directory, secret)

    def _driver(self) -> list[str]:
        settings = self.settings
        argv = ["driver", str(self.app), "--dir", str(self.directory)]
        argv += ["--gateway", self.gateway_at] if self.gateway_at else []
        argv += driver_arguments(settings)
        for stream in sorted(self.input_streams):
            argv += ["--input-stream", str(stream)]
        argv += self.replicas.arguments(DRIVER)
        return argv + option_arguments(settings, "control_cookie_file", "sink_cookie_file") + self._client_tls()

    @property
    def producer_arguments(self) -> list[str]:
        """The arguments that give a source its secret."""
        if self.settings.open_producers:
            return []
        return ["--cookie-file", str(self.settings.cookie_file or self._made(Secret.PRODUCERS))]

    def _client_tls(self) -> list[str]:
        return option_arguments(self.settings, "tls_ca", "tls_cert", "tls_key", "tls_name")


def part_of(files: FilePattern) -> str:
    """Return the name of the part that reads these files. Names of sources contain no dot, so it is unique."""
    return f"{SOURCE}-{files.source}.{files.stream:016x}"


def _volume_part(sink: Node) -> str:
    """Return the part in a volume's name for the directory of this sink and of the sinks that share it."""
    return f"sink-{sink.name}"


def announced_in(path: Path) -> Callable[[int], bool]:
    """Return a test of readiness: a part is ready when its announcement file has its process id."""

    def is_ready(pid: int) -> bool:
        try:
            return bool(json.loads(path.read_text())["pid"] == pid)
        except (OSError, ValueError, KeyError):
            return False

    return is_ready
