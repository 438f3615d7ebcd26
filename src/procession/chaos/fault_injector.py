"""The fault injector: does one step to the cluster, and undoes lasting faults in time.

The one rule: everything that is done is also expected: a death that belongs to a step is excused when it comes, and no
other. Before it the harness, which says which step is next; after it the cluster.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from procession.chaos.cluster_view import EXIT_AGAIN, EXIT_CLEAR, Cluster, Death
from procession.chaos.faulty_sink import misdeeds_file
from procession.chaos.history import History
from procession.chaos.scenario import ALL, EXECUTOR, WORKER, Do, Step

EXECUTORS_S = 90.0
"""Executors are JVMs of their own, which have to start: so much more patience it takes until there are new ones."""
STRIKE_S = 20.0
"""How long a fault waits for its occasion; one that never comes is noted, not failed."""


@dataclass(slots=True)
class Undo:
    """Due so many seconds after it has struck; but at `limit`, if it never does."""

    seconds: float
    name: str
    call: Callable[[], object]
    limit: float
    has_struck: Callable[[], bool] = lambda: True
    struck_at: float | None = None

    def is_due(self, now: float) -> bool:
        if self.struck_at is None and self.has_struck():
            self.struck_at = now
        return now >= (self.limit if self.struck_at is None else self.struck_at + self.seconds)


@dataclass(frozen=True, slots=True)
class Excuse:
    """A death that must come: of which status, and what it must say."""

    statuses: tuple[int, ...]
    words: str = ""

    def covers(self, death: Death) -> bool:
        is_clear = death.status == -signal.SIGKILL or "Traceback" not in death.words
        return death.status in self.statuses and self.words.lower() in death.words.lower() and is_clear


class FaultInjector:
    def __init__(self, cluster: Cluster, chronicle: History) -> None:
        self._cluster = cluster
        self._chronicle = chronicle
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
        for undo in [undo for undo in self._undos if undo.is_due(now)]:
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
        for worker in self._chosen(step):
            self.hit(WORKER)
            self._cluster.signal_one(worker, signal.SIGKILL)

    def _executor(self, step: Step) -> None:
        for executor in self._chosen(step):
            self.last_stir = time.monotonic() + EXECUTORS_S
            self.hit(EXECUTOR)
            self._cluster.signal_one(executor, signal.SIGKILL)

    def found(self, step: Step) -> list[int]:
        """The processes that the step chooses from."""
        return sorted(self._cluster.workers() if step.do is Do.WORKER else self._cluster.executors())

    def _chosen(self, step: Step) -> list[int]:
        """All of them, or the one that the step names by its number, counted round."""
        pids = self.found(step)
        if not pids:
            self._chronicle.notes.append(f"{step} found none")
            return []
        return pids if step.detail == ALL else [pids[int(step.detail or 0) % len(pids)]]

    def _master(self, step: Step) -> None:
        self._cluster.use_master(step.detail)
        self.last_stir = time.monotonic() + (EXECUTORS_S if step.detail else 0.0)
        self.hit(step.on, is_timed=False)
        self._cluster.stage.kill(step.on)

    def _arm(self, step: Step) -> None:
        self.excuses[step.on] = Excuse((-signal.SIGKILL,))
        self._cluster.arm(step.on, step.detail)

    def _full(self, step: Step) -> None:
        self._bad_disk(step, "disk:full", Excuse((EXIT_CLEAR,), os.strerror(errno.ENOSPC)))

    def _bad_sync(self, step: Step) -> None:
        self._bad_disk(step, f"disk:sync@{step.detail or 1}", Excuse((EXIT_AGAIN,), os.strerror(errno.EIO)))

    def _bad_disk(self, step: Step, fault: str, excuse: Excuse) -> None:
        """Only the part that has the disk may end of it: the others wait for it."""
        self._chronicle.faults_put[step.do.value] += 1
        self.excuses[step.on] = excuse
        self._cluster.arm(step.on, fault)

    def _network(self, step: Step) -> None:
        self._chronicle.faults_put[step.detail.partition(":")[0]] += 1
        before = self._cluster.proxies.fired()[step.on]
        self._cluster.proxies.put(step.on, step.detail, step.seconds, STRIKE_S)
        self._until_struck(step, lambda: self._cluster.proxies.fired()[step.on] > before)

    def _until_struck(
        self, step: Step, has_struck: Callable[[], bool], call: Callable[[], object] = lambda: None
    ) -> None:
        """It lasts for its time from when it first meets somebody; that nobody came is worth a note."""

        def end() -> None:
            if not has_struck():
                self._chronicle.notes.append(f"{step} met nobody")
            call()

        self._undos.append(Undo(step.seconds, step.on, end, time.monotonic() + STRIKE_S, has_struck))

    def _clock(self, step: Step) -> None:
        if why_not := self._cluster.set_clock(step.on, int(step.detail)):
            self._chronicle.notes.append(f"{step} was left out: {why_not}")
        else:
            self._chronicle.faults_put["clock"] += 1

    def _behave(self, step: Step) -> None:
        self._chronicle.faults_put[step.detail.partition("=")[0]] += 1
        before = self._misdeeds()
        self._cluster.behaviour.write_text(step.detail)
        self._until_struck(
            step, lambda: self._misdeeds() > before, lambda: self._cluster.behaviour.unlink(missing_ok=True)
        )

    def _misdeeds(self) -> int:
        """How often the wayward sink has done as it was told: it writes that down."""
        path = misdeeds_file(self._cluster.behaviour)
        return path.stat().st_size if path.exists() else 0

    def _later(self, step: Step, call: Callable[[], object]) -> None:
        now = time.monotonic()
        self._undos.append(Undo(step.seconds, step.on, call, now + step.seconds, struck_at=now))


NEEDS_LIFE = frozenset({Do.KILL, Do.MASTER, Do.MOVE, Do.GONE, Do.STOP, Do.PAUSE, Do.ARM, Do.FULL, Do.BAD_SYNC})
SEEKS = frozenset({Do.WORKER, Do.EXECUTOR})
WAITS_FOR_DEATH = frozenset({Do.ARM, Do.FULL, Do.BAD_SYNC})
DRIVER_WORDS = "sink 'right'"
"""What a driver says of a sink that has forgotten: it names it."""
