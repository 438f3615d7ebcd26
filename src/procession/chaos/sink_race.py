"""Runs a race of two sinks for one output: the second is refused, or it takes over and the first is fenced.

Invariant: whichever sink wins, each record is visible once. The race is run in two ways. `same-directory`: a second
sink is started on the directory of the first, and must exit with an error. Otherwise the detail is a fault point: the
first sink is paused there, as on a machine that swaps. A second sink is started on a copy of its directory and gets
the driver's connections. Then the first sink continues. The winner stays the sink of this output.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from procession.chaos.cluster_view import EXIT_AGAIN, EXIT_CLEAR, Cluster
from procession.chaos.fault_injector import FAULT_EPOCHS_MAX, FAULT_TIMEOUT_S, AllowedExit, FaultInjector
from procession.chaos.monitor import Failed, Monitor
from procession.chaos.scenario import SAME_DIRECTORY, SECOND_SINK

REFUSAL_S = 60.0
"""Maximum time until a refused second sink exits, on a busy machine."""
EPOCHS = 3
"""Number of epochs that are committed through the second sink before the first sink resumes, and again afterwards."""
LOSES = AllowedExit((EXIT_AGAIN, EXIT_CLEAR))
"""A sink that lost the race may end with an error."""
STOPPED = "T"

Until = Callable[[Callable[[], bool], str], None]


class SinkRace:
    def __init__(self, cluster: Cluster, injector: FaultInjector, monitor: Monitor, until: Until) -> None:
        self._cluster = cluster
        self._injector = injector
        self._monitor = monitor
        self._until = until

    def run(self, sink: str, detail: str) -> None:
        injector = self._injector
        is_copy = detail != SAME_DIRECTORY
        if is_copy and not self._is_stopped_at(sink, detail):
            return
        injector.allowed_exits[SECOND_SINK] = LOSES
        self._cluster.supervisor.held.add(SECOND_SINK)  # do not restart it after its death
        self._cluster.start_second_sink(sink, is_copy=is_copy)
        injector.note(SECOND_SINK, f"is started beside {sink}")
        if not is_copy:
            self._refused()
            self._cluster.end_second_sink(sink, is_promoted=False)
            return
        self._after_epochs("the second sink to be refused or to commit", lambda: not self._is_running(SECOND_SINK))
        if is_refused := not self._is_running(SECOND_SINK):
            injector.note(SECOND_SINK, "was refused")
            self._cluster.end_second_sink(sink, is_promoted=False)
        self._go_on(sink, has_lost=not is_refused)

    def _is_stopped_at(self, sink: str, point: str) -> bool:
        """Pause the sink at this fault point. Note it if the sink does not reach the point in time."""
        self._cluster.arm(sink, f"pause:{point}")
        limit, epoch = time.monotonic() + FAULT_TIMEOUT_S, self._monitor.epoch + FAULT_EPOCHS_MAX

        def is_passed() -> bool:
            return time.monotonic() > limit and self._monitor.epoch > epoch

        self._until(lambda: self._cluster.state(sink) == STOPPED or is_passed(), f"{sink} to stop at {point}")
        if self._cluster.state(sink) != STOPPED:
            self._cluster.disarm(sink)
            self._injector.note_missed(f"race at {point} on {sink} did not happen within {FAULT_TIMEOUT_S:g} s")
            return False
        self._injector.note(sink, f"is stopped at {point}")
        return True

    def _refused(self) -> None:
        limit = time.monotonic() + REFUSAL_S
        self._until(
            lambda: not self._is_running(SECOND_SINK) or time.monotonic() > limit, "the second sink to be refused"
        )
        if self._is_running(SECOND_SINK):
            raise Failed("violation", "two sinks run on the same directory, and the second is not refused")
        self._injector.note(SECOND_SINK, "was refused")

    def _go_on(self, sink: str, *, has_lost: bool) -> None:
        """Resume the first sink. If the second sink has taken over, it stays, and the first may end."""
        supervisor = self._cluster.supervisor
        if has_lost:
            self._injector.allowed_exits[sink] = LOSES
            supervisor.held.add(sink)
        self._cluster.signal_all(sink, signal.SIGCONT)
        self._injector.note(sink, "goes on")
        if not has_lost:
            return
        self._after_epochs("the second sink to commit beside the first")
        if not self._is_running(SECOND_SINK):
            raise Failed("stall", f"both sinks of one output have ended: {sink} and the one that had taken over")
        if self._is_running(sink):
            self._injector.hit(sink, is_timed=False)
            supervisor.kill(sink)
            self._until(lambda: not self._is_running(sink), f"the end of {sink}")
        self._cluster.end_second_sink(sink, is_promoted=True)
        self._monitor.renew(sink)
        supervisor.release(sink)
        self._injector.note(sink, "has the directory of the second one now")

    def _after_epochs(self, what: str, is_over: Callable[[], bool] = lambda: False) -> None:
        epoch = self._monitor.epoch + EPOCHS
        self._until(lambda: is_over() or self._monitor.epoch >= epoch, what)

    def _is_running(self, part: str) -> bool:
        return self._cluster.supervisor.pid(part) is not None
