"""Injects the loss of a gateway for good: its process and its directory are gone, or it only seems so, and it wakes up
later as a zombie. An operator then abandons it.

Invariant: the operator's command is the shipped `commit/log_locations.abandon`, in a process that may be killed at
each step, and is then repeated. `world` triggers the loss at a fault, and never restarts a gateway that is gone. A
zombie may do anything except what the oracle would see: get a record committed, or open a stream that another gateway
holds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from procession.commit.log_locations import LogLocations, abandon
from procession.errors import ProcessionError, RoundError
from procession.sim.disk import SimulatedPath
from procession.sim.environment import Environment, Machine
from procession.sim.fault_plan import DRIVER, GONE
from procession.sim.gateway_addresses import name_of
from procession.sim.oracle import CHECKPOINT
from procession.sim.simulated_driver import SimulatedDriver
from procession.sim.simulated_files import SimulatedFileSystem
from procession.sim.simulated_process import SimulatedProcess, Steps

OPERATOR = "operator"
AT_OFFER_SHARE = 0.6
"""Share of losses that wait until an epoch with records of the gateway is offered."""
OFFER_WAIT_S = 1.0
"""Maximum time that they wait."""
REPEAT_S = 0.1
POLL_S = 0.5
"""Maximum interval at which drivers look for abandoned gateways."""
KILLED_SHARE = 0.3
"""Share of the operator's commands that are killed."""


class LostGatewayOperator:
    def __init__(self, site: Environment, machines: dict[str, Machine], kill: Callable[[str], None]) -> None:
        self._site = site
        self._machines = machines
        self._kill = kill
        self._part = ""
        self._due: Callable[[], None] | None = None
        """Loses the gateway, if it is not lost yet."""

    def begin(self, part: str, kind: str, seconds: float) -> None:
        """Lose a gateway, and abandon it after this time. Only one gateway of a run is lost. Often it is lost when an
        epoch with records of it is offered, because such an epoch may have to be voided."""
        if self._part or self._site.set_back:
            return
        self._part = part
        self._due = partial(self._lose, kind, seconds)
        at_offer = self._site.chance.random() < AT_OFFER_SHARE
        self._site.clock.after(OFFER_WAIT_S if at_offer else 0.0, self._lose_once)

    def offered(self, names: Collection[str]) -> None:
        """Handle an epoch that Spark begins, with records of these gateways."""
        if self._due is not None and name_of(self._part) in names:
            self._lose_once()

    def _lose_once(self) -> None:
        if self._due is not None:
            due, self._due = self._due, None
            due()

    def _lose(self, kind: str, seconds: float) -> None:
        part, chance = self._part, self._site.chance
        if kind == GONE:
            self._site.gone_for_good.add(part)
            self._kill(part)
            disk = self._machines[part].disk
            disk.root.change({part: None})
            disk.root.sync()
            disk.renamed()
        else:
            for process in [process for process in self._machines[part].processes if process.part == part]:
                process.pause(2 * seconds * chance.random())
        self._site.log_event(part, "! is lost for good" if kind == GONE else "! seems to be lost")
        self._site.clock.after(seconds, self._abandon)

    def _abandon(self) -> None:
        """Run the operator's command until it succeeds."""
        machine = self._machines[DRIVER]
        if self._part in self._site.abandoned:
            return
        if machine.is_up and not machine.disk.is_full and not machine.disk.is_read_only:
            command = AbandonCommand(self._site, machine, self._part, self._end_drivers)
            command.start()
            if self._site.chance.random() < KILLED_SHARE:
                self._site.clock.after(0.01 * self._site.chance.random(), command.kill)
        self._site.clock.after(REPEAT_S, self._abandon)

    def _end_drivers(self, fence: int) -> None:
        """End the drivers up to this fence, as a driver does that polls the checkpoint, until there is a later one."""
        drivers = [process for process in self._machines[DRIVER].processes if isinstance(process, SimulatedDriver)]
        claimed = [driver for driver in drivers if driver.has_claimed]
        for driver in claimed:
            if driver.checkpoint.fence <= fence:
                driver.later(0.0, driver.failed, RoundError(f"{name_of(self._part)} was abandoned"))
        if all(driver.checkpoint.fence <= fence for driver in claimed):
            self._site.clock.after(POLL_S * self._site.chance.random(), self._end_drivers, fence)


class AbandonCommand(SimulatedProcess):
    """The command `procession gateways abandon`."""

    def __init__(self, site: Environment, machine: Machine, part: str, abandoned: Callable[[int], None]) -> None:
        super().__init__(site, OPERATOR, machine)
        self._abandoned = abandoned
        self._files = SimulatedFileSystem(self, machine.disk)
        self._lost = part

    def start(self) -> None:
        self.post(self._run_command)

    def failed(self, error: ProcessionError) -> None:
        self.site.log_event(self.part, "! %s", error.sentence)
        self.kill()

    def _run_command(self) -> Steps:
        root, name = SimulatedPath(CHECKPOINT), name_of(self._lost)
        place = LogLocations(root, self._files).all().get(name)
        if place is None and not self._files.exists(root / "CURRENT"):
            self.kill()  # no driver has ever run
            return
        identity = "" if place is None else place.identity
        found = yield from self.blocking(abandon, root, name, identity, self._files)
        self.site.log_event(self.part, "= %s is abandoned by drivers after %s", name, found.fence)
        self.site.abandoned.add(self._lost)
        self._abandoned(found.fence)
        self.kill()
