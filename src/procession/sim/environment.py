"""Defines the environment of a run: the machines, and the clock, randomness, network, oracle and fault schedule that
all processes share.

Invariant: time passes only in the clock, and two events at the same time happen in the order in which they were
scheduled. A fault happens exactly when its part has taken the given number of steps. `world` creates the environment
and implements the faults; all processes use it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from procession.sim.blocking_calls import CallThreads
from procession.sim.disk import Disk
from procession.sim.fault_plan import PlannedFault
from procession.sim.network import Network
from procession.sim.randomness import Randomness

if TYPE_CHECKING:
    from procession.sim.oracle import Oracle
    from procession.sim.simulated_gateway import SimulatedGateway
    from procession.sim.simulated_process import SimulatedProcess


Call = Callable[..., Any]


class VirtualClock:
    """A queue of events in the order of virtual time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._count = 0
        self._due: list[tuple[float, int, Call, tuple[Any, ...]]] = []

    def after(self, delay_s: float, call: Call, *args: Any) -> None:
        self._count = count = self._count + 1
        heappush(self._due, (self.now + delay_s, count, call, args))

    def stop(self) -> None:
        """Remove all events."""
        self._due.clear()

    def advance(self) -> bool:
        """Run the next event. Return False if there is none."""
        if not self._due:
            return False
        self.now, _, call, args = heappop(self._due)
        call(*args)
        return True


EVENT_LOG_LINES_MAX = 20_000


class Machine:
    """A machine: a disk, and the processes that a power cut kills at once."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.disk = Disk()
        self.processes: list[SimulatedProcess] = []
        self.is_up = True

    def cut_power(self, chance: Randomness, *, is_scattered: bool = False) -> bool:
        """Kill all processes, and lose unsynced data. Return whether the machine was up."""
        if not self.is_up:
            return False
        self.is_up = False
        for process in list(self.processes):
            process.kill(is_power_cut=True)
        self.disk.cut_power(chance, is_scattered=is_scattered)
        self.disk.is_lying = False
        return True


class StepCounter:
    """Counts the steps of a part across restarts, and has the steps at which faults happen."""

    __slots__ = ("_edges", "_faults", "edges_taken", "next_edge", "next_fault", "taken")

    def __init__(self, faults: Sequence[PlannedFault]) -> None:
        self.taken = 0
        self.edges_taken = 0
        self._faults = _last_first(fault for fault in faults if not fault.is_at_edge)
        self._edges = _last_first(fault for fault in faults if fault.is_at_edge)
        self.next_fault = self._faults[-1].step if self._faults else 0
        """The step of the next fault; 0 if there is none."""
        self.next_edge = self._edges[-1].step if self._edges else 0

    def due(self) -> list[PlannedFault]:
        """Return the faults of the current step."""
        due = _pop(self._faults, self.taken)
        self.next_fault = self._faults[-1].step if self._faults else 0
        return due

    def due_at_edge(self) -> list[PlannedFault]:
        due = _pop(self._edges, self.edges_taken)
        self.next_edge = self._edges[-1].step if self._edges else 0
        return due


def _last_first(faults: Iterable[PlannedFault]) -> list[PlannedFault]:
    return sorted(faults, key=lambda fault: fault.step)[::-1]


def _pop(faults: list[PlannedFault], taken: int) -> list[PlannedFault]:
    due = []
    while faults and faults[-1].step == taken:
        due.append(faults.pop())
    return due


class Environment:
    def __init__(self, chance: Randomness, faults: Sequence[PlannedFault], *, is_recorded: bool = False) -> None:
        self.chance = chance
        self.clock = VirtualClock()
        self.network = Network(self)
        self.threads = CallThreads()
        self.oracle: Oracle
        self.inject: Callable[[PlannedFault, SimulatedProcess], None]
        self.gone: Callable[[SimulatedProcess], None]
        """Called for every process that dies."""
        self.gateways: dict[str, SimulatedGateway] = {}
        """The last process of each gateway."""
        self.disks: dict[str, Disk] = {}
        """The disk of each gateway."""
        self.set_back: set[str] = set()
        """Gateways whose directories are currently set back or lost."""
        self.was_set_back: set[str] = set()
        """Gateways whose directories were ever set back or lost."""
        self.gone_for_good: set[str] = set()
        """Gateways that never start again: their directory is lost, or they were told that they are abandoned."""
        self.offered: Callable[[Collection[str]], None]
        """Called for each new epoch of Spark, with the names of the gateways that have records in it."""
        self.abandoned: set[str] = set()
        """Gateways that the operator has abandoned."""
        self.refused: Callable[[str], None]
        """Called for every gateway that refuses a driver because of its log."""
        self.confirmed: Callable[[str, int], None]
        """Called for every gateway that a driver confirms."""
        self.everyone: list[SimulatedProcess] = []
        """All processes, including dead ones."""
        self.injected: list[PlannedFault] = []
        self.event_log: list[str] | None = [] if is_recorded else None
        """The event log of the run, kept only if it is printed."""
        self.runs = 0
        """Number of task runs."""
        self._faults = faults
        self._paces: dict[str, StepCounter] = {}

    def dismantle(self) -> None:
        """End the run. Breaks the reference cycles, so that the memory is freed without a garbage collection."""
        self.clock.stop()
        self.network.dismantle()
        for process in self.everyone:
            process.is_alive = False
            process.abandon()
            process.dismantle()
            vars(process).clear()
        self.threads.end()

    def pace(self, part: str) -> StepCounter:
        pace = self._paces.get(part)
        if pace is None:
            pace = self._paces[part] = StepCounter([fault for fault in self._faults if fault.part == part])
        return pace

    def inject_due(self, process: SimulatedProcess, due: Sequence[PlannedFault]) -> None:
        """Apply these faults at the current step of the process."""
        for fault in due:
            if fault.delay_s:
                self.clock.after(fault.delay_s, self._inject_later, fault, process.machine)
            else:
                self._inject(fault, process)

    def _inject_later(self, fault: PlannedFault, machine: Machine) -> None:
        """Inject a delayed fault into the current process of the part."""
        for process in machine.processes:
            if process.part == fault.part:
                self._inject(fault, process)
                return

    def _inject(self, fault: PlannedFault, process: SimulatedProcess) -> None:
        self.injected.append(fault)
        self.log_event(fault.part, "! %s for %.2f s at step %s", fault.kind, fault.seconds, self.pace(fault.part).taken)
        self.inject(fault, process)

    def log_event(self, part: str, text: str, *values: object) -> None:
        """Log an event. `values` replace %s in `text`; formatting is skipped if the log is off."""
        if self.event_log is not None and len(self.event_log) < EVENT_LOG_LINES_MAX:
            self.event_log.append(f"{self.clock.now:9.4f} {part:<10} {text % values if values else text}")
