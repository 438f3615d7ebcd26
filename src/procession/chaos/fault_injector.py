"""Injects faults: applies one step to the cluster, and ends lasting faults in time.

Invariant: every injected fault is also expected: only deaths that belong to a step are excused. The harness chooses
the next step.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from procession.chaos.cluster_view import EXIT_AGAIN, EXIT_CLEAR, Cluster, Death
from procession.chaos.faulty_sink import injected_faults_file
from procession.chaos.history import History
from procession.chaos.scenario import ALL, EXECUTOR, WORKER, FaultAction, FaultStep

EXECUTORS_S = 90.0
"""Additional time for new executors, which are JVMs that have to start."""
FAULT_TIMEOUT_S = 20.0
"""How long a fault waits for its occasion. A fault without an occasion is noted and is not a failure."""
FAULT_EPOCHS_MAX = 5
"""Number of epochs within which every armed fault has its occasion."""


@dataclass(slots=True)
class Undo:
    """Ends a fault `seconds` after it took effect, or at `limit` if it has no effect."""

    seconds: float
    name: str
    call: Callable[[], object]
    limit: float
    has_happened: Callable[[], bool] = lambda: True
    happened_at: float | None = None

    def is_due(self, now: float) -> bool:
        if self.happened_at is None and self.has_happened():
            self.happened_at = now
        return now >= (self.limit if self.happened_at is None else self.happened_at + self.seconds)


@dataclass(frozen=True, slots=True)
class AllowedExit:
    """An expected death: its statuses, and a text that its log must contain."""

    statuses: tuple[int, ...]
    text: str = ""

    def covers(self, death: Death) -> bool:
        is_clear = death.status == -signal.SIGKILL or "Traceback" not in death.last_lines
        return death.status in self.statuses and self.text.lower() in death.last_lines.lower() and is_clear


class FaultInjector:
    def __init__(self, cluster: Cluster, history: History) -> None:
        self._cluster = cluster
        self._history = history
        self.began = time.monotonic()
        self._undos: list[Undo] = []
        self.allowed_exits: dict[str, AllowedExit] = {}
        """Deaths that a step causes without a signal, until all parts have recovered."""
        self._late_allowed_exits: dict[str, AllowedExit] = {}
        """One allowed death for each part that depends on a part with a fault. An idle sink notices the outage of its
        database only at its next transaction, when all other parts have recovered."""
        self.leaving: dict[str, float] = {}
        """Gateways that were asked to leave, with the time of the request."""
        self.last_done = self.last_change = self.began

    @property
    def is_active(self) -> bool:
        """Whether an injected fault still lasts."""
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
        self.allowed_exits.clear()
        self._late_allowed_exits.clear()

    def note(self, on: str, what: str) -> None:
        self.last_done = time.monotonic()
        self._history.event(self.last_done - self.began, on, what)

    def note_missed(self, sentence: str) -> None:
        """Note a fault that had no effect."""
        self._history.notes.append(sentence)

    def is_allowed_exit(self, death: Death) -> bool:
        allowed = self.allowed_exits.get(death.part)
        if death.is_ours or (allowed is not None and allowed.covers(death)):
            return True
        late = self._late_allowed_exits.pop(death.part, None)
        return late is not None and late.covers(death)

    # Each kind of step. The harness has waited until the part runs.

    def do(self, step: FaultStep) -> None:
        self.note(step.on, str(step))
        for part in self._history.cluster.dependants.get(step.on, ()):
            self.allowed_exits[part] = self._late_allowed_exits[part] = AllowedExit((EXIT_AGAIN,))
        getattr(self, f"_{step.do.name.lower()}")(step)

    def hit(self, part: str, *, is_timed: bool = True) -> None:
        self._history.recoveries.hit(part, time.monotonic(), is_timed=is_timed)

    def _nothing(self, step: FaultStep) -> None:
        pass

    def _kill(self, step: FaultStep) -> None:
        self.hit(step.on)
        self._cluster.supervisor.kill(step.on)

    def _gone(self, step: FaultStep) -> None:
        self.hit(step.on, is_timed=False)
        self._cluster.supervisor.hold(step.on)
        self._later(step, lambda: self._cluster.supervisor.release(step.on))

    def _stop(self, step: FaultStep) -> None:
        self.hit(step.on, is_timed=False)
        self._cluster.supervisor.end(step.on)

    def _pause(self, step: FaultStep) -> None:
        self._history.pauses += 1
        self._cluster.signal_all(step.on, signal.SIGSTOP)
        self._later(step, lambda: self._cluster.signal_all(step.on, signal.SIGCONT))

    def _leave(self, step: FaultStep) -> None:
        self.leaving[step.on] = (
            time.monotonic()
        )  # the monitor repeats the request to the leader until the gateway has left

    def _worker(self, step: FaultStep) -> None:
        for worker in self._chosen(step):
            self.hit(WORKER)
            self._cluster.signal_process(worker, signal.SIGKILL)

    def _executor(self, step: FaultStep) -> None:
        for executor in self._chosen(step):
            self.last_change = time.monotonic() + EXECUTORS_S
            self.hit(EXECUTOR)
            self._cluster.signal_process(executor, signal.SIGKILL)

    def processes_of(self, step: FaultStep) -> list[int]:
        """Return the processes that the step chooses from."""
        return sorted(self._cluster.workers() if step.do is FaultAction.WORKER else self._cluster.executors())

    def _chosen(self, step: FaultStep) -> list[int]:
        """Return all found processes, or the one with the step's number, modulo their count."""
        pids = self.processes_of(step)
        if not pids:
            self._history.notes.append(f"{step} found none")
            return []
        return pids if step.detail == ALL else [pids[int(step.detail or 0) % len(pids)]]

    def _master(self, step: FaultStep) -> None:
        self._cluster.use_master(step.detail)
        self.last_change = time.monotonic() + (EXECUTORS_S if step.detail else 0.0)
        self.hit(step.on, is_timed=False)
        self._cluster.supervisor.kill(step.on)

    def _arm(self, step: FaultStep) -> None:
        self.allowed_exits[step.on] = AllowedExit((-signal.SIGKILL,))
        self._cluster.arm(step.on, step.detail)

    def _full(self, step: FaultStep) -> None:
        self._bad_disk(step, "disk:full", AllowedExit((EXIT_CLEAR,), os.strerror(errno.ENOSPC)))

    def _bad_sync(self, step: FaultStep) -> None:
        self._bad_disk(step, f"disk:sync@{step.detail or 1}", AllowedExit((EXIT_AGAIN,), os.strerror(errno.EIO)))

    def _bad_disk(self, step: FaultStep, fault: str, allowed: AllowedExit) -> None:
        """Make the part's disk fail. Only this part may end; the others wait for it."""
        self._history.faults_put[step.do.value] += 1
        self.allowed_exits[step.on] = allowed
        self._cluster.arm(step.on, fault)

    def _network(self, step: FaultStep) -> None:
        self._history.faults_put[step.detail.partition(":")[0]] += 1
        before = self._cluster.proxies.fired()[step.on]
        self._cluster.proxies.put(step.on, step.detail, step.seconds, FAULT_TIMEOUT_S)
        self._until_happened(step, lambda: self._cluster.proxies.fired()[step.on] > before)

    def _until_happened(
        self, step: FaultStep, has_happened: Callable[[], bool], call: Callable[[], object] = lambda: None
    ) -> None:
        """End the fault `seconds` after it first takes effect. Note a fault without effect."""

        def end() -> None:
            if not has_happened():
                self._history.notes.append(f"{step} had no effect")
            call()

        self._undos.append(Undo(step.seconds, step.on, end, time.monotonic() + FAULT_TIMEOUT_S, has_happened))

    def _clock(self, step: FaultStep) -> None:
        if why_not := self._cluster.set_clock(step.on, int(step.detail)):
            self._history.notes.append(f"{step} was left out: {why_not}")
        else:
            self._history.faults_put["clock"] += 1

    def _behave(self, step: FaultStep) -> None:
        self._history.faults_put[step.detail.partition("=")[0]] += 1
        before = self._injected_faults()
        self._cluster.behaviour.write_text(step.detail)
        self._until_happened(
            step, lambda: self._injected_faults() > before, lambda: self._cluster.behaviour.unlink(missing_ok=True)
        )

    def _injected_faults(self) -> int:
        """Return how often the faulty sink has misbehaved, from its log."""
        path = injected_faults_file(self._cluster.behaviour)
        return path.stat().st_size if path.exists() else 0

    def _later(self, step: FaultStep, call: Callable[[], object]) -> None:
        now = time.monotonic()
        self._undos.append(Undo(step.seconds, step.on, call, now + step.seconds, happened_at=now))


NEEDS_LIFE = frozenset(
    {
        FaultAction.KILL,
        FaultAction.MASTER,
        FaultAction.MOVE,
        FaultAction.GONE,
        FaultAction.LOSE,
        FaultAction.STOP,
        FaultAction.PAUSE,
        FaultAction.ARM,
        FaultAction.FULL,
        FaultAction.BAD_SYNC,
        FaultAction.RACE,
    }
)
SEEKS = frozenset({FaultAction.WORKER, FaultAction.EXECUTOR})
WAITS_FOR_DEATH = frozenset({FaultAction.ARM, FaultAction.FULL, FaultAction.BAD_SYNC})
DRIVER_TEXT = "sink 'right'"
"""The driver's error about a sink with lost data contains this name."""
