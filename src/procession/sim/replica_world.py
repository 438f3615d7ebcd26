"""Simulates object services and the writers of one replicated volume: the shipped code on simulated hosts.

Invariant: acknowledged writes survive the loss of machines, within the limits of `docs/decisions/0017` for the number
of replicas. The history of each established writer begins with the history of every earlier writer, and has all
writes that earlier writers acknowledged. Faults end, and then a last writer must find everything. Takes a plan and
returns the findings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from procession.address import Address
from procession.errors import FencedError, ProcessionError
from procession.runtime.host import Host
from procession.sim.disk import Disk, SimulatedPath
from procession.sim.environment import Environment, Machine
from procession.sim.fault_plan import PlannedFault
from procession.sim.oracle import InvariantViolation
from procession.sim.randomness import Randomness
from procession.sim.simulated_files import SimulatedFileSystem, is_injected
from procession.sim.simulated_loop import AsyncioProcess
from procession.sim.simulated_process import SimulatedProcess
from procession.sim.simulated_transport import SimulatedListener
from procession.sim.world import without_log
from procession.sos.quorum_copies import QuorumPhase, claims_needed
from procession.sos.recovery import RECORD
from procession.sos.replicated_volume import ReplicaOptions, ReplicatedVolume
from procession.sos.sos_server import SosConfig, SosServer, open_store
from procession.sos.volume_rules import QuorumConfig

VOLUME = "v"
EVENTS_MAX = 60_000
STALL_S = 300.0
RESTART_S = 0.05
SIZES = ((1, 1), (2, 2), (3, 2), (3, 2), (3, 2), (3, 3), (3, 3), (5, 3))
SERVICE_FAULTS = (
    "kill",
    "kill",
    "power",
    "power",
    "scatter",
    "lose",
    "lose",
    "lie",
    "pause",
    "cut",
    "cut",
    "fsync",
    "full",
)
WRITER_FAULTS = ("kill", "kill", "takeover", "takeover", "pause", "cut")
SERVICE_STEPS, WRITER_STEPS = 60, 60


@dataclass(frozen=True, slots=True)
class ReplicaPlan:
    replicas: int
    write_quorum: int
    appends: int
    """Number of appends that must be acknowledged, by all writers together."""
    roll_bytes: int
    faults: tuple[PlannedFault, ...]

    @property
    def losses(self) -> int:
        """Maximum number of copies that may be lost at a time."""
        return min(self.write_quorum - 1, (self.replicas + 1) // 2 - 1)

    @property
    def lying_services_max(self) -> int:
        """Maximum number of copies that may lose data that they reported as synced, and perhaps their identity."""
        members = tuple(bytes([number]) for number in range(self.replicas))
        claims = claims_needed(QuorumConfig(members, self.write_quorum))
        return min(self.losses, self.write_quorum + claims - self.replicas - 1)


def make_replica_plan(chance: Randomness) -> ReplicaPlan:
    replicas, write_quorum = chance.choice(SIZES)
    faults = []
    for _ in range(chance.choice((0, 1, 2, 3, 4, 6, 8))):
        is_writer = chance.random() < 0.3
        part = "writer" if is_writer else f"sos-{chance.randrange(0, replicas)}"
        kind = chance.choice(WRITER_FAULTS if is_writer else SERVICE_FAULTS)
        step = chance.randrange(1, 3 * (WRITER_STEPS if is_writer else SERVICE_STEPS))
        is_at_edge = not is_writer and chance.random() < 0.35
        step = step // 4 + 1 if is_at_edge else step
        faults.append(PlannedFault(part, step, kind, 0.4 * chance.random(), is_at_edge=is_at_edge))
    roll_bytes = chance.choice((20, 60, 10_000))
    return ReplicaPlan(replicas, write_quorum, chance.choice((2, 4, 8, 12)), roll_bytes, tuple(faults))


@dataclass
class ReplicaOracle:
    """Checks the replies to the writers, and the history that each writer finds."""

    acknowledged: dict[bytes, int] = field(default_factory=dict)
    histories: dict[int, list[bytes]] = field(default_factory=dict)

    def established(self, fence: int, history: list[bytes]) -> None:
        if len(set(history)) != len(history):
            raise InvariantViolation("R3", f"fence {fence} finds an append twice: {history}")
        for payload, writer in self.acknowledged.items():
            if writer < fence and payload not in history:
                raise InvariantViolation("R1", f"fence {fence} lacks {payload!r}, acknowledged by fence {writer}")
        for other, known in self.histories.items():
            shorter, longer = (known, history) if other < fence else (history, known)
            if longer[: len(shorter)] != shorter:
                raise InvariantViolation(
                    "R2", f"fences {other} and {fence} have different histories: {known}, {history}"
                )
        self.histories[fence] = history

    def acknowledge(self, fence: int, payload: bytes) -> None:
        for other, found in self.histories.items():
            if other > fence and payload not in found:
                raise InvariantViolation("R1", f"fence {fence} acknowledges {payload!r}, which fence {other} lacks")
        self.acknowledged[payload] = fence


class SimulatedService(AsyncioProcess):
    """A simulated object service."""

    def __init__(self, site: Environment, part: str, machine: Machine, *, may_be_damaged: bool) -> None:
        super().__init__(site, part, machine)
        self._may_be_damaged = may_be_damaged
        files = SimulatedFileSystem(self, machine.disk)
        self._host = Host(files=files, random_bits=lambda bits: random_bits(site.chance, bits))

    def start(self) -> None:
        self.begin(self._serve)

    async def _serve(self) -> None:
        config = SosConfig(SimulatedPath("sos"), "", b"c", handshake_timeout_s=1.0)
        try:
            store = await self.loop.run_in_executor(None, open_store, config, self._host)
            if store.damaged:
                self._delete_volumes()
            await SosServer(config, store).serve(SimulatedListener(Address(self.part, 0)))  # type: ignore[arg-type]
        except ProcessionError as error:
            self.failed(error)

    def _delete_volumes(self) -> None:
        """Do the next step that the error names. Only a disk that reports false syncs leaves a damaged volume."""
        if not self._may_be_damaged:
            raise InvariantViolation("R6", f"a crash of {self.part} has left a damaged volume")
        self.site.log_event(self.part, "= the operator deletes the damaged volume")
        self.machine.disk = Disk()
        self.kill()

    def failed(self, error: ProcessionError) -> None:
        if not is_injected(error):
            raise InvariantViolation("R7", f"{self.part} ends with {error.sentence!r}, and nothing was done to it")
        self.site.log_event(self.part, "! %s", error.sentence)
        self.later(0.0, self.kill)


class SimulatedWriter(AsyncioProcess):
    """A process that claims the volume, reads its history, and appends."""

    def __init__(self, site: Environment, machine: Machine, world: ReplicaWorld, name: int) -> None:
        super().__init__(site, "writer", machine)
        self._world = world
        self._name = name
        plan = world.plan
        addresses = tuple(Address(f"sos-{number}", 0) for number in range(plan.replicas))
        options = ReplicaOptions(
            addresses, plan.write_quorum, b"c", reconnect_s=0.02, reconnect_max_s=0.2, roll_bytes=plan.roll_bytes
        )
        host = Host(random_bits=lambda bits: random_bits(site.chance, bits))
        self.volume = ReplicatedVolume(VOLUME, options, host=host)
        self.history: list[bytes] = []
        self.is_done = False

    def start(self) -> None:
        self.begin(self.write)

    @property
    def is_whole(self) -> bool:
        """Whether every replica is a member and has all data."""
        writer = self.volume._writer
        return not self.volume.missing and bool(writer.chain) and not writer.chain[-1].head.is_joint

    async def write(self) -> None:
        oracle, chance = self._world.oracle, self.site.chance
        try:
            await self.volume.open()
            fence = self.volume.fence  # the volume may begin a new segment while it is read
            self.history = [data async for _, data in self.volume.history()]
            oracle.established(fence, self.history)
            self.site.log_event(self.part, "= writer %s leads with fence %s", self._name, self.volume.fence)
            number, waiting = 0, list[bytes]()
            while len(oracle.acknowledged) < self._world.plan.appends:
                waiting.append(b"%d.%d;" % (self._name, number))
                number += 1
                is_barrier = chance.random() < 0.6
                count = self.volume.append(waiting[-1], is_barrier=is_barrier)
                if is_barrier:
                    await self.volume.until(count)
                    for payload in waiting:
                        oracle.acknowledge(self.volume.fence, payload)
                    waiting.clear()
            self.is_done = True
        except FencedError as error:
            self.site.log_event(self.part, "! %s", error.sentence)
            self.later(0.0, self.kill)


class ReplicaWorld:
    def __init__(self, plan: ReplicaPlan, chance: Randomness, *, is_recorded: bool = False) -> None:
        self.plan = plan
        self.oracle = ReplicaOracle()
        self.site = site = Environment(chance, plan.faults, is_recorded=is_recorded)
        site.inject, site.gone = self._inject, self._gone
        self._machines = {f"sos-{number}": Machine(f"sos-{number}") for number in range(plan.replicas)}
        self._lost: set[str] = set()
        self._lying_services: set[str] = set()
        self.writers = 0
        self._current: SimulatedWriter | None = None
        self._is_calm = False

    def run(self) -> InvariantViolation | None:
        with without_log():
            try:
                self._run()
            except InvariantViolation as found:
                return found
        return None

    def _run(self) -> None:
        for part in self._machines:
            self._start_service(part)
        self.start_writer()
        self._advance()
        # All machines come back, and a last writer reads everything.
        self._is_calm = True
        for machine in self._machines.values():
            self._repair(machine)
            self._power_on(machine)
        self.plan = ReplicaPlan(self.plan.replicas, self.plan.write_quorum, self.plan.appends, 10_000, ())
        last = self.start_writer()
        self._advance()
        if missing := [payload for payload in self.oracle.acknowledged if payload not in last.history]:
            raise InvariantViolation("R1", f"at the end {missing} are lost")
        # An earlier writer that still runs may have taken the volume meanwhile.
        self._advance(lambda: last.is_whole or last.volume._writer.phase is QuorumPhase.FENCED)

    def _advance(self, is_reached: Callable[[], bool] | None = None) -> None:
        """Let time pass until the current writer is done, or `is_reached` holds."""
        events, end_s = 0, self.site.clock.now + STALL_S
        while not (self._is_done() if is_reached is None else is_reached()):
            events += 1
            if not self.site.clock.advance() or events > EVENTS_MAX or self.site.clock.now > end_s:
                missing = self._current.volume.missing if self._current is not None else []
                raise InvariantViolation(
                    "R4", f"no progress; acknowledged {len(self.oracle.acknowledged)}, missing {missing}"
                )

    def _is_done(self) -> bool:
        return self._current is not None and self._current.is_done

    @property
    def acknowledged(self) -> int:
        """Writes that the quorum had, as their writers were told."""
        return len(self.oracle.acknowledged)

    def dismantle(self) -> None:
        with without_log():
            self.site.dismantle()

    # Processes

    def _start_service(self, part: str) -> None:
        machine = self._machines[part]
        if machine.is_up and not machine.processes:
            if machine.disk.is_full or machine.disk.is_read_only:
                self.site.clock.after(0.1, self._start_service, part)
                return
            SimulatedService(self.site, part, machine, may_be_damaged=part in self._lying_services).start()

    def start_writer(self) -> SimulatedWriter:
        self.writers += 1
        self._current = SimulatedWriter(self.site, Machine("w"), self, self.writers)
        self._current.start()
        return self._current

    def _gone(self, process: SimulatedProcess) -> None:
        if process.part in self._machines:
            self.site.clock.after(RESTART_S, self._start_service, process.part)
        elif process is self._current and not self._current.is_done:
            self.site.clock.after(RESTART_S, self._restart_writer, process)

    def take_over(self) -> None:
        """Another writer starts, while the earlier one still runs."""
        if not self._is_calm:
            self.start_writer()

    def _restart_writer(self, process: SimulatedProcess) -> None:
        if process is self._current:
            self.start_writer()

    # Faults

    def _inject(self, fault: PlannedFault, process: SimulatedProcess) -> None:
        if self._is_calm:
            return
        machine = process.machine
        match fault.kind:
            case "kill":
                process.kill()
            case "pause":
                process.pause(fault.seconds)
            case "cut":
                for end in sorted(process.ends, key=lambda end: end.number):
                    end.cut()
            case "takeover":
                self.site.clock.after(0.01, self.take_over)
            case "power" | "scatter":
                self._cut_power(machine, fault.seconds, is_scattered=fault.kind == "scatter")
            case "fsync":
                machine.disk.fsync_failures = 1
                self.site.clock.after(fault.seconds, self._repair, machine)
            case "full":
                machine.disk.is_full = True
                self.site.clock.after(fault.seconds, self._repair, machine)
            case "lose":
                self._lose(process.part, fault.seconds)
            case "lie":
                if (
                    len(self._lying_services | self._lost | {process.part}) <= self.plan.lying_services_max
                    and not self._lost
                ):
                    self._lying_services.add(process.part)
                    machine.disk.is_lying = True
                    self.site.clock.after(fault.seconds, self._cut_power, machine, 0.1)

    def _lose(self, part: str, seconds: float) -> None:
        """Lose a machine with its disk. A machine with an empty disk replaces it."""
        writer = self._current
        if writer is not None and writer.is_alive and writer.is_whole:
            members = [member.hex() for member in writer.volume._writer.chain[-1].head.config.members]
            self._lost -= {lost for lost in self._lost if self._identity(lost) in members}
        if len(self._lost | {part}) > self.plan.losses or self._lying_services:
            return
        self._lost.add(part)
        machine = self._machines[part]
        self._cut_power(machine, seconds)
        machine.disk = Disk()

    def _identity(self, part: str) -> str | None:
        """Return the identity of the copy on a machine's disk. A writer may not have noticed yet that the machine is
        lost."""
        record = self._machines[part].disk.durable_file(f"sos/volumes/{VOLUME}/{RECORD}")
        return None if record is None else str(json.loads(record)["identity"])

    def _cut_power(self, machine: Machine, seconds: float, *, is_scattered: bool = False) -> None:
        if machine.cut_power(self.site.chance, is_scattered=is_scattered):
            self.site.clock.after(seconds, self._power_on, machine)

    def _power_on(self, machine: Machine) -> None:
        machine.is_up = True
        self._start_service(machine.name)

    def _repair(self, machine: Machine) -> None:
        machine.disk.is_full = machine.disk.is_read_only = False
        machine.disk.fsync_failures = 0


def random_bits(chance: Randomness, bits: int) -> int:
    return chance.randrange(0, 1 << bits)


@contextmanager
def replica_world(plan: ReplicaPlan, chance: Randomness, *, is_recorded: bool = False) -> Iterator[ReplicaWorld]:
    """Yield a world that is taken apart at the end."""
    world = ReplicaWorld(plan, chance, is_recorded=is_recorded)
    try:
        yield world
    finally:
        world.dismantle()
