"""Simulates an emitter that listens: the shipped `commit/emitter_server` on a simulated host.

Invariant: this module contains no code of the emitter. It starts the server on the simulated loop, and gives it the
runs of the driver that it serves. Upstream: the shipped `commit/emitter_client` in `simulated_driver`. Downstream: the
sinks, over the network.
"""

from __future__ import annotations

from collections.abc import Mapping

from procession.address import Address
from procession.commit.emitter_frames import RunPlace
from procession.commit.emitter_server import EmitterConfig, EmitterServer
from procession.commit.epoch_link import LinkMaker, direct_links
from procession.sim.disk import SimulatedPath
from procession.sim.environment import Environment, Machine
from procession.sim.simulated_loop import AsyncioProcess
from procession.sim.simulated_tasks import RunsInMemory
from procession.sim.simulated_transport import SimulatedListener

EMITTER = "emitter"
COOKIE = b"control"
GREETING_S = 0.5


class SimulatedEmitter(AsyncioProcess):
    """An emitter process. `runs` has the runs of each driver, by its name for their place."""

    def __init__(self, site: Environment, machine: Machine, runs: Mapping[str, RunsInMemory]) -> None:
        super().__init__(site, EMITTER, machine)
        self._runs = runs

    def start(self) -> None:
        self.begin(self._serve)

    def stop(self) -> None:
        self.kill()

    async def _serve(self) -> None:
        config = EmitterConfig(SimulatedPath(EMITTER), "", COOKIE, greeting_timeout_s=GREETING_S)
        await EmitterServer(config, self._links).serve(SimulatedListener(Address(EMITTER, 0)))  # type: ignore[arg-type]

    def _links(self, place: RunPlace) -> LinkMaker:
        return direct_links(
            self._runs[place.directory], uniform=lambda low, high: low + (high - low) * self.site.chance.random()
        )
