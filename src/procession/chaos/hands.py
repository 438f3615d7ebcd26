"""The hands: do one step to the cluster, and undo in time what lasts.

The one rule: everything that is done is also expected: a death that belongs to a step is excused when it comes, and no
other. Before it the harness, which says which step is next; after it the cluster.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from procession.chaos.chronicle import Chronicle
from procession.chaos.cluster import Cluster, Death
from procession.chaos.scenario import DRIVER, EXECUTOR, GATEWAY, WORKER, Do, Step

EXECUTORS_S = 90.0
"""Executors are JVMs of their own, which have to start: so much more patience it takes until there are new ones."""
EXIT_CLEAR = 3
"""The status of a part that says: somebody must act on my last words."""


@dataclass(frozen=True, slots=True)
class Undo:
    due: float
    name: str
    call: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Excuse:
    """A death that must come: of which status, and what it must say."""

    statuses: tuple[int, ...]
    words: str = ""

    def covers(self, death: Death) -> bool:
        is_clear = death.status == -signal.SIGKILL or "Traceback" not in death.words
        return death.status in self.statuses and self.words.lower() in death.words.lower() and is_clear


class Hands:
    def __init__(self, cluster: Cluster, chronicle: Chronicle, chance: random.Random) -> None:
        self._cluster = cluster
        self._chronicle = chronicle
        self._chance = chance
        self.began = time.monotonic()
        self._undos: list[Undo] = []
        self.excuses: dict[str, Excuse] = {}
        """Deaths that a step is to bring about by other means than our signal."""
        self.leaving: dict[str, float] = {}
        """Gateways that are to leave, since when."""
        self.last_done = self.last_stir = self.began

    @property
    def is_active(self) -> bool:
        """Whether something that was done still lasts."""
        return bool(self._undos)

    def undo_due(self, now: float) -> None:
        for undo in [undo for undo in self._undos if undo.due <= now]:
            self._undos.remove(undo)
            undo.call()
            self.note(undo.name, "over")

    def undo_all(self) -> None:
        self.undo_due(float("inf"))
        self._cluster.proxies.lift_all()
        self._cluster.set_clocks_right()
        self._cluster.use_master("")
        self.leaving.clear()
        self.excuses.clear()

    def note(self, on: str, what: str) -> None:
        self.last_done = time.monotonic()
        self._chronicle.event(self.last_done - self.began, on, what)

    def is_excused(self, death: Death) -> bool:
        excuse = self.excuses.get(death.part)
        return death.is_ours or (excuse is not None and excuse.covers(death))

    # Each kind of step. A part that is to be hit is there: the harness has waited for it.

    def do(self, step: Step) -> None:
        self.note(step.on, str(step))
        getattr(self, f"_{step.do.name.lower()}")(step)

    def hit(self, part: str, *, is_timed: bool = True) -> None:
        self._chronicle.recoveries.hit(part, time.monotonic(), is_timed=is_timed)

    def _nothing(self, step: Step) -> None:
        pass

    def _kill(self, step: Step) -> None:
        self.hit(step.on)
        self._cluster.stage.kill(step.on)

    def _gone(self, step: Step) -> None:
        self.hit(step.on, is_timed=False)
        self._cluster.stage.hold(step.on)
        self._later(step, lambda: self._cluster.stage.release(step.on))

    def _stop(self, step: Step) -> None:
        self.hit(step.on, is_timed=False)
        self._cluster.stage.end(step.on)

    def _pause(self, step: Step) -> None:
        self._chronicle.pauses += 1
        self._cluster.signal_all(step.on, signal.SIGSTOP)
        self._later(step, lambda: self._cluster.signal_all(step.on, signal.SIGCONT))

    def _leave(self, step: Step) -> None:
        self.leaving[step.on] = time.monotonic()  # the vigil tells the leader, until it is gone

    def _worker(self, step: Step) -> None:
        workers = self._cluster.workers()
        if workers:
            self.hit(WORKER)
            self._cluster.signal_one(self._chance.choice(workers), signal.SIGKILL)

    def _executor(self, step: Step) -> None:
        executors = self._cluster.executors()
        for executor in executors if step.detail == "all" else executors and [self._chance.choice(executors)]:
            self.last_stir = time.monotonic() + EXECUTORS_S
            self.hit(EXECUTOR)
            self._cluster.signal_one(executor, signal.SIGKILL)
        if not executors:
            self._chronicle.notes.append(f"{step} found no executor")

    def _master(self, step: Step) -> None:
        self._cluster.use_master(step.detail)
        self.last_stir = time.monotonic() + (EXECUTORS_S if step.detail else 0.0)
        self.hit(step.on, is_timed=False)
        self._cluster.stage.kill(step.on)

    def _arm(self, step: Step) -> None:
        self.excuses[step.on] = Excuse((-signal.SIGKILL,))
        self._cluster.arm(step.on, step.detail)

    def _full(self, step: Step) -> None:
        self._bad_disk(step, "disk:full")

    def _bad_sync(self, step: Step) -> None:
        self._bad_disk(step, "disk:sync")

    def _bad_disk(self, step: Step, fault: str) -> None:
        self.excuses[step.on] = Excuse((1, EXIT_CLEAR))
        if step.on == GATEWAY:
            # Its word comes to the driver too, which may end with it: both need the operator to act on the same disk.
            self.excuses[DRIVER] = Excuse((1, EXIT_CLEAR), "/gateway/")
        self._cluster.arm(step.on, fault)

    def _network(self, step: Step) -> None:
        self._chronicle.faults_put[step.detail.partition(":")[0]] += 1
        before = self._cluster.proxies.fired()[step.on]
        self._cluster.proxies.put(step.on, step.detail, step.seconds)
        self._later(step, lambda: self._has_struck(step, before))

    def _has_struck(self, step: Step, before: int) -> None:
        if self._cluster.proxies.fired()[step.on] == before:
            self._chronicle.notes.append(f"{step} met nobody")

    def _clock(self, step: Step) -> None:
        if why_not := self._cluster.set_clock(step.on, int(step.detail)):
            self._chronicle.notes.append(f"{step} was left out: {why_not}")
        else:
            self._chronicle.faults_put["clock"] += 1

    def _behave(self, step: Step) -> None:
        self._chronicle.faults_put[step.detail.partition("=")[0]] += 1
        self._cluster.behaviour.write_text(step.detail)
        self._later(step, lambda: self._cluster.behaviour.unlink(missing_ok=True))

    def _later(self, step: Step, call: Callable[[], object]) -> None:
        self._undos.append(Undo(time.monotonic() + step.seconds, step.on, call))


NEEDS_LIFE = frozenset({Do.KILL, Do.MASTER, Do.MOVE, Do.GONE, Do.STOP, Do.PAUSE, Do.ARM, Do.FULL, Do.BAD_SYNC})
WAITS_FOR_DEATH = frozenset({Do.ARM, Do.FULL, Do.BAD_SYNC})
DRIVER_WORDS = "sink 'right'"
"""What a driver says of a sink that has forgotten: it names it."""
