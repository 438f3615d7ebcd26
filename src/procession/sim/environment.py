"""The environment: machines, and what all processes share: clock, randomness, network, oracle, fault schedule.

The one rule: a fault strikes when its part has taken its number of steps, and only then. Before it: `world`, which
makes it and says what each fault does. After it: every process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from procession.sim.clock import Clock
from procession.sim.disk import Disk
from procession.sim.fault_plan import Fault
from procession.sim.network import Network
from procession.sim.randomness import Chance

if TYPE_CHECKING:
    from procession.sim.oracle import Oracle
    from procession.sim.simulated_gateway import Gateway
    from procession.sim.simulated_process import Process

STORY_LINES_MAX = 20_000


class Machine:
    """A disk, and the processes that a power cut takes at once."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.disk = Disk()
        self.processes: list[Process] = []
        self.is_up = True
        self.lock: Process | None = None
        """Who holds the lock of the checkpoint."""


class Pace:
    """How many steps a part has taken, over all its incarnations, and at which of them faults strike it."""

    __slots__ = ("_edges", "_faults", "edges_taken", "next_edge", "next_fault", "taken")

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.taken = 0
        self.edges_taken = 0
        self._faults = _last_first(fault for fault in faults if not fault.is_at_edge)
        self._edges = _last_first(fault for fault in faults if fault.is_at_edge)
        self.next_fault = self._faults[-1].step if self._faults else 0
        """The step of the next one; 0, which is none, if there is none."""
        self.next_edge = self._edges[-1].step if self._edges else 0

    def due(self) -> list[Fault]:
        """The faults of the step that was just taken."""
        due = _pop(self._faults, self.taken)
        self.next_fault = self._faults[-1].step if self._faults else 0
        return due

    def due_at_edge(self) -> list[Fault]:
        due = _pop(self._edges, self.edges_taken)
        self.next_edge = self._edges[-1].step if self._edges else 0
        return due


def _last_first(faults: Iterable[Fault]) -> list[Fault]:
    return sorted(faults, key=lambda fault: fault.step)[::-1]


def _pop(faults: list[Fault], taken: int) -> list[Fault]:
    due = []
    while faults and faults[-1].step == taken:
        due.append(faults.pop())
    return due


class Site:
    def __init__(self, chance: Chance, faults: Sequence[Fault], *, is_told: bool = False) -> None:
        self.chance = chance
        self.clock = Clock()
        self.network = Network(self)
        self.oracle: Oracle
        self.strike: Callable[[Fault, Process], None]
        self.gone: Callable[[Process], None]
        """Told of every process that dies."""
        self.gateways: dict[str, Gateway] = {}
        """The last incarnation of each."""
        self.disks: dict[str, Disk] = {}
        """Of each gateway."""
        self.set_back: set[str] = set()
        """The gateways whose directories are older copies at the moment, or new ones."""
        self.refused: Callable[[str], None]
        """Told of every gateway that refuses a driver because of its log."""
        self.is_claimed: Callable[[], bool]
        """Whether a driver has ever claimed the checkpoint."""
        self.everyone: list[Process] = []
        """All processes that ever were."""
        self.struck: list[Fault] = []
        self.story: list[str] | None = [] if is_told else None
        """What happened, in words; only kept where somebody will read it."""
        self.runs = 0
        """How many times a task has run."""
        self._faults = faults
        self._paces: dict[str, Pace] = {}

    def pace(self, part: str) -> Pace:
        pace = self._paces.get(part)
        if pace is None:
            pace = self._paces[part] = Pace([fault for fault in self._faults if fault.part == part])
        return pace

    def strike_due(self, process: Process, due: Sequence[Fault]) -> None:
        """The process has taken a step at which these faults strike."""
        for fault in due:
            if fault.delay_s:
                self.clock.after(fault.delay_s, self._strike_later, fault, process.machine)
            else:
                self._strike(fault, process)

    def _strike_later(self, fault: Fault, machine: Machine) -> None:
        """Whoever plays the part by now."""
        for process in machine.processes:
            if process.part == fault.part:
                self._strike(fault, process)
                return

    def _strike(self, fault: Fault, process: Process) -> None:
        self.struck.append(fault)
        self.tell(fault.part, "! %s for %.2f s at step %s", fault.kind, fault.seconds, self.pace(fault.part).taken)
        self.strike(fault, process)

    def tell(self, part: str, words: str, *things: object) -> None:
        """A line of the story; `things` stand where `words` has %s, and cost nothing if nobody listens."""
        if self.story is not None and len(self.story) < STORY_LINES_MAX:
            self.story.append(f"{self.clock.now:9.4f} {part:<10} {words % things if things else words}")
