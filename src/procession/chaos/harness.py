"""The harness: one living cluster, scenarios one after another, drained in between, watched all the time.

The one rule: it can only say clean of what it has seen through: every scenario ends with all producers done, nothing
left in the gateway, and every record of every stream at both sinks, once, in order. Before it the command line, with a
schedule; after it the chronicle.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from traceback import format_exc

from procession.chaos.chaos_records import records, tag
from procession.chaos.cluster_view import Cluster
from procession.chaos.fault_injector import NEEDS_LIFE, SEEKS, STRIKE_S, WAITS_FOR_DEATH, FaultInjector
from procession.chaos.history import UNJUDGED, Failure, History, Span
from procession.chaos.monitor import Failed, Monitor, Stopped
from procession.chaos.output_monitor import MonitoredStream, Outputs
from procession.chaos.scenario import GATEWAYS, HOMES, SOURCES, Do, Run, Step
from procession.chaos.sink_data_loss import SinkDataLoss
from procession.errors import StorageError
from procession.verify.verdict import Outcome

STRIKE_EPOCHS = 5
"""So many epochs bring every occasion that an armed fault or a bad disk can wait for."""


@dataclass(frozen=True, slots=True)
class Load:
    """How much is sent. A source sends its file at `rate`, and another one when it has ended; what is left of it when
    the scenario is over is sent at once."""

    rate: float = 250.0
    seconds: float = 30.0
    rogue_records: int = 2_000

    @property
    def records(self) -> int:
        return int(self.rate * self.seconds)


class Harness:
    """`run` the schedule, then read the chronicle. `outputs`: those of an earlier harness on the same cluster."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        seed: int = 0,
        load: Load | None = None,
        deadline_s: float = 90.0,
        outputs: Outputs | None = None,
        show: Callable[[History], None] = lambda chronicle: None,
    ) -> None:
        self.chronicle = History(seed)
        self._cluster = cluster
        self._load = load or Load()
        self._outputs = outputs or Outputs(cluster.instances(), cluster.decisions)
        self._hands = FaultInjector(cluster, self.chronicle)
        self._vigil = Monitor(cluster, self.chronicle, self._hands, self._outputs, deadline_s, show)
        self._rogues: list[str] = []

    def run(self, runs: Iterable[Run]) -> History:
        """Until the runs are over or the first thing is wrong; then the complete comparison."""
        try:
            self._vigil.is_awaiting = False
            for run in runs:
                self._run(run)
            self._compare()
        except Failed as error:
            self.chronicle.failures.append(self._vigil.failure(error))
        except Stopped:
            self.chronicle.was_stopped = True
        except StorageError as error:
            # A file of theirs that a look found damaged.
            self.chronicle.failures.append(self._vigil.failure(Failed("violation", error.sentence)))
        except Exception as error:  # whatever it is, what was seen so far is reported
            why = f"the harness itself failed: {type(error).__name__}: {error}"
            self.chronicle.failures.append(Failure(UNJUDGED, why, self.chronicle.scenario, format_exc()))
        finally:
            self._hands.undo_all()
        return self.chronicle

    def _run(self, run: Run) -> None:
        span = Span(run.scenario, round(time.monotonic() - self._hands.began, 3))
        self.chronicle.spans.append(span)
        self.chronicle.runs.append(run)
        before = self.chronicle.committed
        self._hands.note("", f"scenario {run.scenario}")
        self._feed()
        self._vigil.is_awaiting = True
        self._until(lambda: self._vigil.is_settled, "the first records of the scenario")
        for step in run.steps:
            self._take(step)
        self._until(lambda: self._vigil.is_settled, "the last recovery")
        self._drain()
        span.end_s = round(time.monotonic() - self._hands.began, 3)
        span.records = self.chronicle.committed - before

    # Steps

    def _take(self, step: Step) -> None:
        if step.is_settled:
            self._until(lambda: self._vigil.is_settled, f"everybody to recover before: {step}")
        begin = time.monotonic() + step.delay_s
        self._until(lambda: time.monotonic() >= begin, "the time to pass")
        if step.do in NEEDS_LIFE:
            stage = self._cluster.stage
            self._until(lambda: self._is_gone(step.on) or stage.pid(step.on) is not None, f"{step.on} to be there")
            if self._is_gone(step.on):
                self.chronicle.notes.append(f"{step} found it gone")
                return
        if step.do in SEEKS:
            limit = time.monotonic() + STRIKE_S
            self._until(lambda: bool(self._hands.found(step)) or time.monotonic() > limit, f"somebody for: {step}")
        match step.do:
            case Do.ROGUE:
                self._start_rogue(step)
            case Do.JOIN:
                self._join(step)
            case Do.MOVE:
                self._move(step)
            case Do.FORGET:
                self._hands.note(step.on, str(step))
                SinkDataLoss(self._cluster, self._hands, self._vigil).run(step.detail)
            case _:
                self._hands.do(step)
        if step.do in WAITS_FOR_DEATH:
            self._until_struck(step)

    def _is_gone(self, part: str) -> bool:
        """Kept away for the moment, or left for good: nothing can be done to it."""
        return not self._cluster.stage.has(part) or part in self._cluster.stage.held

    def _join(self, step: Step) -> None:
        self._hands.note(step.on, str(step))
        if not self._cluster.stage.has(step.on):
            self._cluster.start_gateway(step.on)
        self._until(lambda: self._cluster.has_joined(step.on), f"{step.on} to join")

    def _move(self, step: Step) -> None:
        """If the producer's file is done meanwhile, it begins another one at home, as always."""
        self._hands.note(step.on, str(step))
        path = self._cluster.directory / self._vigil.streams[step.on]
        self._cluster.move_source(step.on, path, self._load.rate, (step.detail, HOMES[step.on]))
        self._hands.hit(step.on, is_timed=False)
        self._cluster.stage.kill(step.on)

    def _until_struck(self, step: Step) -> None:
        """Wait for the death that was prepared. A disk stays bad for a while; a fault point strikes once."""
        events = len(self.chronicle.events)
        limit, epoch = time.monotonic() + STRIKE_S, self._vigil.epoch + STRIKE_EPOCHS

        def has_died() -> bool:
            return any(one.on == step.on and "ended with" in one.what for one in self.chronicle.events[events:])

        def is_passed() -> bool:
            return time.monotonic() > limit and self._vigil.epoch > epoch

        self._until(lambda: has_died() or is_passed(), f"{step} to strike")
        if not has_died() and step.do is not Do.ARM:
            raise Failed("violation", f"{step}: it went on for {STRIKE_EPOCHS} epochs as if nothing had been")
        if not has_died():
            self.chronicle.notes.append(f"{step} did not strike within {STRIKE_S:g} s")
        elif step.do is not Do.ARM:
            again = time.monotonic() + step.seconds
            self._until(lambda: time.monotonic() >= again, "the disk to be repaired")
        self._cluster.disarm(step.on)
        self._hands.note(step.on, "disarmed")
        if step.do is Do.ARM:
            self._hands.excuses.pop(step.on, None)
        # A process that met the bad disk may still be on its way out: excused until everybody is back at work.
        self._until(lambda: self._vigil.is_settled, f"{step.on} to be back")
        self._hands.excuses.clear()

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        def holds_while_fed() -> bool:
            self._feed()
            return holds()

        self._vigil.until(holds_while_fed, what)

    # Producers

    def _feed(self) -> None:
        """Every source has something to send: a new file when the last one is done."""
        stage = self._cluster.stage
        for name in SOURCES:
            if not stage.has(name) or (stage.is_done(name) and name not in stage.held):
                path = self._write(self._load.records)
                self._vigil.streams[name] = path.name
                self._cluster.start_source(name, path, self._load.rate, (HOMES[name],))

    def _write(self, count: int) -> Path:
        name = tag(len(self._outputs.streams))
        path = self._cluster.directory / f"{name}.txt"
        path.write_bytes(b"".join(line + b"\n" for line in records(name, count)))
        self._outputs.expect(MonitoredStream(name, path, count))
        return path

    def _start_rogue(self, step: Step) -> None:
        path = self._write(self._load.rogue_records)
        name = f"rogue-{path.stem}"
        self._hands.note(name, str(step))
        self._vigil.streams[name] = path.name
        self._cluster.start_rogue(name, path, step.detail)
        self._rogues.append(name)

    def _drain(self) -> None:
        """Everything that was begun is sent, at once and to the other gateway, and everything that was sent is
        committed."""
        stage = self._cluster.stage
        for name in SOURCES:
            if not stage.is_done(name):
                path = self._cluster.directory / self._vigil.streams[name]
                others = [gateway for gateway in GATEWAYS if gateway != HOMES[name]]
                self._cluster.start_source(name, path, None, (*others, HOMES[name]))
        everybody = [*SOURCES, *self._rogues]
        self._hands.note("", "drain")
        self._vigil.until(lambda: all(stage.is_done(name) for name in everybody), "the producers to end")
        self._vigil.until(lambda: self._vigil.is_empty, "the gateways to be empty")
        self._vigil.is_awaiting = False
        if not self._vigil.comes(lambda: not self._outputs.missing(), self._vigil.deadline_s):
            self._compare()  # every producer was told that it is safe, and a sink does not show it
            self.chronicle.verdicts = {}  # it came after all, and what is to come was not compared
        for name in everybody:
            stage.forget(name)
        self._rogues.clear()

    # The end

    def _compare(self) -> None:
        """What is wrong is a violation; what cannot be told stays in the verdicts, and makes the run unknown."""
        self._vigil.look()
        self._vigil.check()
        self.chronicle.verdicts = self._outputs.compare_all()
        if missing := self._outputs.missing():
            sentences = (f"{name}: {verdict.sentence()}" for name, verdict in self.chronicle.verdicts.items())
            raise Failed("violation", f"lost: {missing[0]}. {'; '.join(sentences)}")
        for name, verdict in self.chronicle.verdicts.items():
            if verdict.outcome is Outcome.VIOLATED:
                raise Failed("violation", f"{name}: {verdict.sentence()}")
