"""Runs chaos scenarios one after another on one cluster, drains the cluster in between, and monitors it continuously.

Invariant: only a verified run is clean. At the end of every scenario all producers are done, the gateways are empty,
and both sinks have every record of every stream once, in order. The result is a `History`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from traceback import format_exc

from procession.chaos.chaos_workload import FileWorkload, Load, MakeWorkload
from procession.chaos.cluster_view import Cluster
from procession.chaos.fault_injector import (
    FAULT_EPOCHS_MAX,
    FAULT_TIMEOUT_S,
    NEEDS_LIFE,
    SEEKS,
    WAITS_FOR_DEATH,
    FaultInjector,
)
from procession.chaos.history import UNJUDGED, History, RunFailure, ScenarioSpan
from procession.chaos.monitor import Failed, Monitor, Stopped
from procession.chaos.output_monitor import MonitoredOutputs
from procession.chaos.scenario import STANDARD, ClusterParts, FaultAction, FaultStep, ScenarioRun
from procession.chaos.sink_data_loss import SinkDataLoss
from procession.chaos.sink_race import SinkRace
from procession.errors import StorageError
from procession.verify.verdict import Outcome


class Harness:
    """Runs a schedule and returns the history. `outputs` are those of an earlier harness on the same cluster."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        seed: int = 0,
        load: Load | None = None,
        deadline_s: float = 90.0,
        outputs: MonitoredOutputs | None = None,
        show: Callable[[History], None] = lambda history: None,
        parts: ClusterParts = STANDARD,
        make_workload: MakeWorkload = FileWorkload,
    ) -> None:
        self.history = History(seed, cluster=parts)
        self._cluster = cluster
        self._outputs = outputs or MonitoredOutputs(cluster.instances(), cluster.decisions)
        self._injector = FaultInjector(cluster, self.history)
        self._monitor = Monitor(cluster, self.history, self._injector, self._outputs, deadline_s, show, parts)
        self._workload = make_workload(cluster, self._monitor, load or Load())

    def run(self, runs: Iterable[ScenarioRun]) -> History:
        """Run until all runs are over or the first failure, then compare everything."""
        try:
            self._monitor.is_awaiting = False
            for run in runs:
                self._run(run)
            self._compare()
        except Failed as error:
            self.history.failures.append(self._monitor.failure(error))
        except Stopped:
            self.history.was_stopped = True
        except StorageError as error:
            # A part's file is damaged.
            self.history.failures.append(self._monitor.failure(Failed("violation", error.sentence)))
        except Exception as error:  # after any error, report the findings so far
            why = f"the harness itself failed: {type(error).__name__}: {error}"
            self.history.failures.append(RunFailure(UNJUDGED, why, self.history.scenario, format_exc()))
        finally:
            self._injector.undo_all()
        return self.history

    def _run(self, run: ScenarioRun) -> None:
        span = ScenarioSpan(run.scenario, round(time.monotonic() - self._injector.began, 3))
        self.history.spans.append(span)
        self.history.runs.append(run)
        before = self.history.committed
        self._injector.note("", f"scenario {run.scenario}")
        self._workload.feed()
        self._monitor.is_awaiting = True
        self._until(lambda: self._monitor.is_settled, "the first records of the scenario")
        for step in run.steps:
            self._take(step)
        self._until(lambda: self._monitor.is_settled, "the last recovery")
        self._injector.allowed_exits.clear()
        self._drain()
        span.end_s = round(time.monotonic() - self._injector.began, 3)
        span.records = self.history.committed - before

    # Steps

    def _take(self, step: FaultStep) -> None:
        if step.is_settled:
            self._until(lambda: self._monitor.is_settled, f"all parts to recover before: {step}")
            self._injector.allowed_exits.clear()
        begin = time.monotonic() + step.delay_s
        self._until(lambda: time.monotonic() >= begin, "the time to pass")
        if step.do in NEEDS_LIFE:
            supervisor = self._cluster.supervisor
            self._until(lambda: self._is_gone(step.on) or supervisor.pid(step.on) is not None, f"{step.on} to be there")
            if self._is_gone(step.on):
                self.history.notes.append(f"{step} found it gone")
                return
        if step.do in SEEKS:
            limit = time.monotonic() + FAULT_TIMEOUT_S
            self._until(
                lambda: bool(self._injector.processes_of(step)) or time.monotonic() > limit, f"a process for: {step}"
            )
        match step.do:
            case FaultAction.FAULTY_PRODUCER:
                self._injector.note(self._workload.start_faulty_producer(step.detail), str(step))
            case FaultAction.JOIN:
                self._join(step)
            case FaultAction.MOVE:
                self._move(step)
            case FaultAction.FORGET:
                self._injector.note(step.on, str(step))
                SinkDataLoss(self._cluster, self._injector, self._monitor).run(step.detail)
            case FaultAction.LOSE:
                self._lose_machine(step)
            case FaultAction.RACE:
                self._injector.note(step.on, str(step))
                SinkRace(self._cluster, self._injector, self._monitor, self._until).run(step.on, step.detail)
            case _:
                self._injector.do(step)
        if step.do in WAITS_FOR_DEATH:
            self._until_happened(step)

    def _is_gone(self, part: str) -> bool:
        """Return whether the part is held back or has left, so that it cannot get a fault."""
        return not self._cluster.supervisor.has(part) or part in self._cluster.supervisor.held

    def _join(self, step: FaultStep) -> None:
        self._injector.note(step.on, str(step))
        if not self._cluster.supervisor.has(step.on):
            self._cluster.start_gateway(step.on)
        self._until(lambda: self._cluster.has_joined(step.on), f"{step.on} to join")

    def _move(self, step: FaultStep) -> None:
        """Make a producer send to another gateway. It sends its next file to its own gateway again."""
        self._injector.note(step.on, str(step))
        self._workload.move(step.on, step.detail)
        self._injector.hit(step.on, is_timed=False)
        self._cluster.supervisor.kill(step.on)

    def _lose_machine(self, step: FaultStep) -> None:
        """Kill the part, and delete its files before it is started again. Nothing of the part runs while they are
        deleted. `chaos/machine_cluster` restores them from the object services."""
        self._injector.note(step.on, str(step))
        self._injector.hit(step.on)
        self.history.losses[step.on] += 1
        self._cluster.supervisor.hold(step.on)
        self._monitor.until(lambda: self._cluster.supervisor.pid(step.on) is None, f"the end of {step.on}")
        self._cluster.delete_files(step.on)
        self._cluster.supervisor.release(step.on)

    def _until_happened(self, step: FaultStep) -> None:
        """Wait for the expected death. A disk fails for a while; a fault point acts once."""
        events = len(self.history.events)
        limit, epoch = time.monotonic() + FAULT_TIMEOUT_S, self._monitor.epoch + FAULT_EPOCHS_MAX

        def has_died() -> bool:
            return any(event.on == step.on and "ended with" in event.what for event in self.history.events[events:])

        def is_passed() -> bool:
            return time.monotonic() > limit and self._monitor.epoch > epoch

        self._until(lambda: has_died() or is_passed(), f"{step} to happen")
        if not has_died() and step.do is not FaultAction.ARM:
            raise Failed("violation", f"{step}: it had no effect during {FAULT_EPOCHS_MAX} epochs")
        if not has_died():
            self.history.notes.append(f"{step} did not happen within {FAULT_TIMEOUT_S:g} s")
        elif step.do is not FaultAction.ARM:
            again = time.monotonic() + step.seconds
            self._until(lambda: time.monotonic() >= again, "the disk to be repaired")
        self._cluster.disarm(step.on)
        self._injector.note(step.on, "disarmed")
        if step.do is FaultAction.ARM:
            self._injector.allowed_exits.pop(step.on, None)
        # A process that hit the failing disk may still be exiting: it is excused until all parts have recovered.
        self._until(lambda: self._monitor.is_settled, f"{step.on} to be back")
        self._injector.allowed_exits.clear()

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        def holds_while_fed() -> bool:
            self._workload.feed()
            return holds()

        self._monitor.until(holds_while_fed, what)

    def _drain(self) -> None:
        """Let all producers send their remaining records, and wait until everything is committed."""
        self._injector.note("", "drain")
        self._workload.drain()
        self._monitor.until(lambda: self._workload.is_over, "the producers to end")
        self._monitor.until(lambda: self._monitor.is_empty, "the gateways to be empty")
        self._monitor.is_awaiting = False
        if not self._monitor.holds_within(lambda: not self._outputs.missing(), self._monitor.deadline_s):
            self._compare()  # every producer got its acknowledgements, but a sink does not show the records
            self.history.verdicts = {}  # the records arrived after all, and later records were not compared
        self._workload.forget()

    # The end

    def _compare(self) -> None:
        """Compare everything. A difference is a violation; an unknown verdict makes the run unknown."""
        self._monitor.poll()
        self._monitor.check()
        self.history.verdicts = self._outputs.compare_all()
        if missing := self._outputs.missing():
            sentences = (f"{name}: {verdict.sentence()}" for name, verdict in self.history.verdicts.items())
            raise Failed("violation", f"lost: {missing[0]}. {'; '.join(sentences)}")
        for name, verdict in self.history.verdicts.items():
            if verdict.outcome is Outcome.VIOLATED:
                raise Failed("violation", f"{name}: {verdict.sentence()}")
