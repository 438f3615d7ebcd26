"""Runs the cluster of a chaos run: gateways, a driver, two sinks and producers that start and end, all real
processes.

Invariant: there is a proxy between any two parts. Each part is started with its own command. `chaos/live_cluster` has
the code for all clusters.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

from procession.chaos.chaos_records import APP
from procession.chaos.frame_splitter import LineSplitter
from procession.chaos.live_cluster import ANYWHERE, LiveCluster, address_in
from procession.chaos.proxy import Proxies, Proxy
from procession.chaos.scenario import (
    BETWEEN,
    CONTROLS,
    DRIVER,
    GATEWAY,
    GATEWAYS,
    LEFT,
    RIGHT,
    THIRD,
    TO_GATEWAY,
    TO_LEFT,
    TO_RIGHT,
    TO_SECOND,
    TO_THIRD,
)
from procession.deployment.local_pipeline import COMMAND, SPARE
from procession.storage.secret import Secret
from procession.supervisor.part import Part

EXECUTORS_READY_S = 240.0
"""Startup timeout, on a busy machine, of a driver with executors, which starts three JVMs."""


class ChaosCluster(LiveCluster):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory, APP)
        announcements = {name: self._gateways.announcement(name) for name in (*GATEWAYS, THIRD)}
        listens = zip((TO_GATEWAY, TO_SECOND, TO_THIRD), announcements.values(), strict=True)
        controls = zip(CONTROLS, announcements.values(), strict=True)
        self.proxies = Proxies(
            *(Proxy(door, address_in(where, "listen")) for door, where in listens),
            *(Proxy(door, address_in(where, "control"), LineSplitter) for door, where in controls),
            Proxy(BETWEEN, address_in(announcements[GATEWAY], "control"), LineSplitter),
            Proxy(TO_LEFT, address_in(self._announcement(LEFT), "listen")),
            Proxy(TO_RIGHT, address_in(self._announcement(RIGHT), "listen")),
        )

    def _announcement(self, sink: str) -> Path:
        return self.directory / sink.removeprefix("sink-") / "sink.json"

    def start(self) -> None:
        """Start gateways, sinks and driver. Return when each is ready, or when asked to stop."""
        place = self.directory
        for name in GATEWAYS:
            self.start_gateway(name)
        shown = self._cookie(Secret.SINKS)
        file_sink = [*COMMAND, "sink", "file", str(place / "left"), "--listen", ANYWHERE, *shown]
        self.start_part(LEFT, file_sink, self._announcement(LEFT))
        faulty_sink = [sys.executable, "-m", "procession.chaos.faulty_sink", str(place / "right"), "--listen", ANYWHERE]
        self.start_part(RIGHT, [*faulty_sink, *shown, "--behaviour", str(self.behaviour)], self._announcement(RIGHT))
        if self.supervisor.wait_ready():
            self.supervisor.start(self._driver(""))
            self.supervisor.wait_ready()

    def _driver(self, master: str) -> Part:
        arguments = self._driver_arguments({"left": TO_LEFT, "right": TO_RIGHT})
        ready = self.directory / "driver.json"
        if not master:
            return self._part(DRIVER, arguments, ready, spare=SPARE)
        # No spare, because it would need as many executors again.
        return replace(self._part(DRIVER, [*arguments, "--master", master], ready), ready_timeout_s=EXECUTORS_READY_S)

    def start_faulty_producer(self, name: str, path: Path, fault: str) -> None:
        argv = [sys.executable, "-m", "procession.chaos.faulty_producer", str(path), "--fault", fault]
        argv += ["--to", str(self.proxies.address(TO_GATEWAY)), "--acks", str(self._ack_log(name))]
        argv += self._cookie(Secret.PRODUCERS)
        self._acks.follow(self._ack_log(name))
        self.supervisor.forget(name)
        self.supervisor.finite.add(name)
        self.supervisor.start(Part(name, tuple(argv)))

    def instances(self) -> dict[str, Path]:
        return {side: self.directory / side / f"chaos-{side}-0" for side in ("left", "right")}

    def save_copy(self) -> None:
        """Copy the right sink's files."""
        shutil.rmtree(self.directory / "right.saved", ignore_errors=True)
        shutil.copytree(self.directory / "right", self.directory / "right.saved")

    def restore_copy(self) -> None:
        for path in (self.directory / "right.saved").iterdir():
            shutil.copy2(path, self.directory / "right" / path.name)
