"""Runs the cluster of a chaos run in which machines are lost: three object services replicate the directory of each
part.

Invariant: a part whose directory was deleted is started with the same command as before (`--restore`), and outputs are
not read until it has restored the directory. A lost object service starts with an empty directory, and counts as away
until it is a member of all volumes again. `chaos/live_cluster` has the code for all clusters.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from functools import partial
from pathlib import Path

from procession.address import Address
from procession.chaos import proxy
from procession.chaos.chaos_records import APP
from procession.chaos.frame_splitter import LineSplitter, PieceSplitter
from procession.chaos.live_cluster import ANYWHERE, LiveCluster, address_in
from procession.chaos.machine_scenarios import SERVICES, WRITERS, link_to_service
from procession.chaos.proxy import Proxies, Proxy
from procession.chaos.scenario import (
    BETWEEN,
    CONTROL,
    CONTROL_SECOND,
    DRIVER,
    GATEWAY,
    GATEWAYS,
    LEFT,
    RIGHT,
    SINKS,
    TO_GATEWAY,
    TO_LEFT,
    TO_RIGHT,
    TO_SECOND,
)
from procession.chaos.system_server import HOST, free_port, is_listening
from procession.deployment.local_pipeline import COMMAND
from procession.driver.epoch_log import EpochTail
from procession.errors import ProcessionError
from procession.sos.replicated_files import MARKER
from procession.sos.sos_client import SosClient
from procession.sos.volume_rules import VolumeState
from procession.storage.secret import Secret, find_secret, path_of
from procession.supervisor.part import Part

ASK_INTERVAL_S = 0.5
ANSWER_TIMEOUT_S = 1.0
BEYOND_PROXIES = proxy.HOST
"""The host that gateways advertise. Logs are fetched without a proxy."""


class MachineCluster(LiveCluster):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory, APP, driver=directory / DRIVER)
        gateways = {name: self._gateways.announcement(name) for name in GATEWAYS}
        self._ports = {service: free_port() for service in SERVICES}
        self._asked: dict[str, float] = {}
        self.proxies = Proxies(
            Proxy(TO_GATEWAY, address_in(gateways[GATEWAY], "listen")),
            Proxy(TO_SECOND, address_in(gateways[GATEWAYS[1]], "listen")),
            Proxy(CONTROL, address_in(gateways[GATEWAY], "control"), LineSplitter),
            Proxy(CONTROL_SECOND, address_in(gateways[GATEWAYS[1]], "control"), LineSplitter),
            Proxy(BETWEEN, address_in(gateways[GATEWAY], "control"), LineSplitter),
            Proxy(TO_LEFT, address_in(self._announcement(LEFT), "listen")),
            Proxy(TO_RIGHT, address_in(self._announcement(RIGHT), "listen")),
            *(
                Proxy(link_to_service(service), partial(self._address_of, service), PieceSplitter)
                for service in SERVICES
            ),
        )

    def _address_of(self, service: str) -> Address:
        return Address(HOST, self._ports[service])

    def _directory_of(self, part: str) -> Path:
        return self.directory / part.removeprefix("sink-")

    def _announcement(self, part: str) -> Path:
        return self._directory_of(part) / {DRIVER: "driver.json"}.get(part, "sink.json")

    # Starting

    def start(self) -> None:
        for service in SERVICES:
            self.supervisor.start(self._service(service))
        if not self.supervisor.wait_ready():
            return
        for name in GATEWAYS:
            self.start_gateway(name)
        for sink in SINKS:
            program = [*COMMAND, "sink", "file", str(self._directory_of(sink)), "--listen", ANYWHERE]
            self.start_part(sink, [*program, *self._cookie(Secret.SINKS)], self._announcement(sink))
        if self.supervisor.wait_ready():
            self.supervisor.start(self._driver(""))
            self.supervisor.wait_ready()

    def _service(self, name: str) -> Part:
        argv = [*COMMAND, "sos", "--dir", str(self._directory_of(name)), "--listen", str(self._address_of(name))]
        argv += self._cookie(Secret.SOS)
        return Part(name, tuple(argv), {}, lambda _: is_listening(self._ports[name]), stop_rank=3)

    def start_part(self, name: str, argv: list[str], announcement: Path) -> None:
        if name in GATEWAYS:  # its log is on another machine than the driver and the executors
            argv = [*argv, "--machine", name, "--flight", f"{BEYOND_PROXIES}:0"]
        super().start_part(name, self._replicated(name, argv), announcement)

    def _driver(self, master: str) -> Part:
        arguments = self._driver_arguments({"left": TO_LEFT, "right": TO_RIGHT})
        arguments += ["--control-cookie-file", str(path_of(self.directory, Secret.CONTROL))]
        arguments += ["--sink-cookie-file", str(path_of(self.directory, Secret.SINKS))]
        return self._part(DRIVER, self._replicated(DRIVER, arguments), self._announcement(DRIVER))

    def _replicated(self, part: str, argv: list[str]) -> list[str]:
        """Return the command of a part whose directory the services replicate. The command restores a missing
        directory."""
        addresses = ",".join(str(self.proxies.address(link_to_service(service))) for service in SERVICES)
        program = [*argv, "--replicas", addresses, "--replica-volume", self._volume(part), "--restore"]
        return [*program, "--replica-cookie-file", str(path_of(self.directory, Secret.SOS))]

    def _volume(self, part: str) -> str:
        return f"chaos-{part}"

    # Actions

    def delete_files(self, name: str) -> None:
        """Delete the directory of a part that does not run."""
        shutil.rmtree(self._directory_of(name), ignore_errors=True)
        if name == DRIVER:
            self._epochs = EpochTail(self._directory_of(DRIVER) / "epochs.jsonl")

    # Reading

    def instances(self) -> dict[str, Path]:
        return {side: self.directory / side / f"chaos-{side}-0" for side in ("left", "right")}

    @property
    def is_incomplete(self) -> bool:
        return not all((self._directory_of(part) / MARKER).exists() for part in (DRIVER, *SINKS))

    def is_filled(self, name: str) -> bool:
        """Return whether this service's copy is a member of all volumes. Called repeatedly."""
        now = time.monotonic()
        if now < self._asked.get(name, 0.0):
            return False
        self._asked[name] = now + ASK_INTERVAL_S
        return asyncio.run(self._has_all(self._address_of(name)))

    async def _has_all(self, address: Address) -> bool:
        try:
            client = await SosClient.open(address, find_secret(self.directory, Secret.SOS), timeout_s=ANSWER_TIMEOUT_S)
        except ProcessionError:
            return False
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return all([is_member(await client.describe(self._volume(part))) for part in WRITERS])
        except (ProcessionError, TimeoutError):
            return False
        finally:
            client.close()


def is_member(copy: VolumeState | None) -> bool:
    """Return whether this copy is a member of the volume."""
    if copy is None or not copy.newest:
        return False
    head = copy.objects[copy.newest].head
    return copy.identity in head.config.members and not head.is_joint
