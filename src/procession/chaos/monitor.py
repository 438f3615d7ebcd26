"""Checks outputs, deaths and progress of a chaos run continuously, and reports the first violation.

Three things are failures: an output that is not a prefix of the expected output, a death that was not injected, and no
progress within the deadline while no fault is active. Deadlines use the fair clock: time in which a busy machine gave
the parts no CPU does not count. A failure stops the harness.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from procession.chaos.cluster_view import Cluster, Death
from procession.chaos.fair_clock import FairClock
from procession.chaos.fault_injector import FaultInjector
from procession.chaos.history import History, RunFailure
from procession.chaos.output_monitor import MonitoredOutputs
from procession.chaos.scenario import DRIVER, EXECUTOR, GATEWAYS, SECOND_SINK, STANDARD, THIRD, WORKER, ClusterParts

POLL_INTERVAL_S = 0.02
PROBE_S = 0.05
SAMPLE_S = 1.0
ASLEEP_S = 10.0
PATIENCE = 10
"""Maximum length of any other wait while there is progress, in deadlines."""
LEAVE_AGAIN_S = 1.0
"""Interval at which the request to leave is repeated, because a killed gateway may have lost it."""


class Failed(Exception):
    """The run has failed and ends."""

    def __init__(self, kind: str, sentence: str) -> None:
        super().__init__(sentence)
        self.kind = kind
        self.sentence = sentence


class Stopped(Exception):
    """The user interrupted the run."""


@dataclass
class Before:
    """The progress when a part died. The part has recovered when there is further progress."""

    fence: int
    epoch: int
    ends: tuple[int, ...]
    """The ends of the outputs that the part writes."""
    stream: str
    seen: int
    is_started: bool = False
    """Whether the next process of the part runs. Only progress after its start counts as its work."""


@dataclass
class Monitor:
    cluster: Cluster
    history: History
    injector: FaultInjector
    outputs: MonitoredOutputs
    deadline_s: float
    show: Callable[[History], None]
    parts: ClusterParts = STANDARD
    streams: dict[str, str] = field(default_factory=dict)
    """The file that each source currently sends."""
    is_awaiting: bool = True
    """Whether progress is expected."""
    statuses: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The status of each gateway that answers."""
    epoch: int = -1
    fence: int = 0
    _before: dict[str, Before] = field(default_factory=dict)
    _next_probe: float = 0.0
    _next_sample: float = 0.0
    _next_leave: float = 0.0
    _acknowledged: dict[int, int] = field(default_factory=dict)
    """The highest position of each stream at any gateway."""
    _progress: tuple[int, int] = (0, 0)
    progress_at: float = field(default_factory=time.monotonic)
    _acknowledged_at: float = field(default_factory=time.monotonic)
    _polled_at: float = field(default_factory=time.monotonic)
    _clock: FairClock = field(default_factory=lambda: FairClock(time.monotonic()))

    def poll(self) -> None:
        """Supervise the parts for a moment, then run the checks that are due."""
        if not self.cluster.supervisor.watch(POLL_INTERVAL_S):
            raise Stopped
        now = time.monotonic()
        if now - self._polled_at > ASLEEP_S:
            # This process or the machine was stopped: missing progress in that time is not a failure.
            self.history.notes.append(f"the harness itself was stopped for {now - self._polled_at:.0f} s")
            self.injector.last_change = now
        self._polled_at = now
        self.injector.undo_due(now)
        self._take_deaths()
        if now >= self._next_probe:
            self._next_probe = now + PROBE_S
            self._probe(now)

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Poll until the condition holds. The deadline for progress applies meanwhile."""
        if not self.holds_within(holds, PATIENCE * self.deadline_s):
            raise Failed("stall", f"timed out waiting for {what}")

    def holds_within(self, holds: Callable[[], bool], patience_s: float) -> bool:
        """Poll until the condition holds. Return False if it does not hold within `patience_s` on the fair clock."""
        began = time.monotonic()
        self.poll()
        while not holds():
            if self._clock.between(began, time.monotonic()) > patience_s:
                return False
            self.poll()
        return True

    def is_back(self, part: str) -> bool:
        return part not in self.history.recoveries.down

    @property
    def is_settled(self) -> bool:
        """Whether all faults are over, all parts have recovered, and something was committed since."""
        is_quiet = not self.injector.is_active and not self.injector.leaving and not self.history.recoveries.down
        return is_quiet and self.progress_at > self.injector.last_done

    # Deaths

    def _take_deaths(self) -> None:
        deaths = list(self.cluster.supervisor.deaths)
        self.cluster.supervisor.deaths.clear()
        for death in deaths:
            if not self.injector.is_allowed_exit(death):
                why = "and no injected fault explains this"
                raise Failed("death", f"{death}, {why}. Its last lines: {death.last_lines or 'none'}")
            self._note(death)

    def _note(self, death: Death) -> None:
        self.history.event(death.at - self.injector.began, death.part, str(death))
        if death.is_spare or death.part == SECOND_SINK:
            return  # the part itself runs, or continues without it
        if death.is_late:
            self.history.notes.append(f"{death.part} {death.last_lines}, and was started again")
        recoveries = self.history.recoveries
        if not death.is_ours:
            recoveries.hit(death.part, death.at)
        self._before.pop(death.part, None)
        if death.part not in recoveries.down:
            return  # it was stopped on purpose
        self._check_outputs()  # work that was in flight when it died does not count as recovery
        self.renew(death.part)

    def renew(self, part: str) -> None:
        """Count only work from now on as the part's recovery, because another process did the work since its
        death."""
        self._before[part] = self._now(part)

    def _now(self, part: str) -> Before:
        return Before(
            fence=self.cluster.fence(),
            epoch=self.epoch,
            ends=self._ends(part),
            stream=self.streams.get(part, ""),
            seen=self._seen(part),
        )

    # Progress

    def _probe(self, now: float) -> None:
        self.check()
        self._record_left(now)
        for line in self.cluster.new_epochs():
            self.epoch, self.fence = max(self.epoch, line["epoch"]), line["fence"]
        self.history.epochs = self.epoch + 1
        for part in list(self.history.recoveries.down):
            if self._is_at_work(part):
                since = self.history.recoveries.down[part].since - self.injector.began
                self.history.recoveries.back(part, now)
                del self._before[part]
                self.history.absences.append((part, round(since, 3), round(now - self.injector.began, 3)))
                self.history.event(now - self.injector.began, part, "is back at work")
        self._check_progress(now)
        if now >= self._next_sample:
            self._next_sample = now + SAMPLE_S
            self._clock.tick(now, self.cluster.cpu_time())
            self.history.samples.append((round(now - self.injector.began, 1), self.history.committed))
        self.history.seconds = now - self.injector.began
        self.show(self.history)

    def check(self) -> None:
        """Run the checks that must hold at any time."""
        self._check_outputs()
        self.statuses = self.cluster.statuses()
        self._check_acknowledged()
        self.history.decided, self.history.acknowledged = self.outputs.named, len(self.outputs.acknowledged)

    def _check_outputs(self) -> None:
        if self.cluster.is_incomplete:
            return  # some files for the comparison are missing
        wrong = self.outputs.poll()
        self.history.committed = self.outputs.committed
        if wrong:
            raise Failed("violation", "; ".join(wrong[:3]))

    def _check_acknowledged(self) -> None:
        """Check invariant I4: records that producers' logs and gateways show as acknowledged are committed. Decisions
        are read last, so they are at the same positions or later."""
        acknowledged = self.outputs.acknowledged = self.cluster.acknowledged()
        positions = None if self.cluster.is_incomplete else self.cluster.decided_positions()
        if positions is None:
            return
        for stream_id, position in acknowledged.items():
            decided = positions.get(stream_id)
            if decided is None or position > decided:
                raise Failed(
                    "violation",
                    f"the producer of {self.outputs.name_of(stream_id)} was told that it is committed up to {position},"
                    f" but it is up to {decided}",
                )
        for stream in self._streams():
            position, decided = stream["committed"], positions.get(int(stream["id"]))
            if position is not None and (decided is None or int(position) > decided):
                raise Failed(
                    "violation", f"{stream['name']} is acknowledged up to {position}, but committed up to {decided}"
                )

    def _streams(self) -> Iterator[dict[str, Any]]:
        for status in self.statuses.values():
            yield from status["streams"]

    @property
    def is_empty(self) -> bool:
        """Whether everything that any gateway ever received is committed."""
        return all(
            name in self.statuses and self.statuses[name]["committed_end"] == self.statuses[name]["next_sequence"]
            for name in self.cluster.gateways()
        )

    def _record_left(self, now: float) -> None:
        """Record which of the leaving gateways have left."""
        supervisor = self.cluster.supervisor
        for name in [name for name in self.injector.leaving if supervisor.is_done(name)]:
            supervisor.forget(name)
            del self.injector.leaving[name]
            self.history.recoveries.back(name, now, is_timed=False)
            self._before.pop(name, None)
            self.injector.note(name, "has left")
        if self.injector.leaving and now >= self._next_leave:
            self._next_leave = now + LEAVE_AGAIN_S
            for name in self.injector.leaving:
                self.cluster.let_go(name)

    def _is_at_work(self, part: str) -> bool:
        before = self._before.get(part)
        if before is None:
            if part in (WORKER, EXECUTOR):
                self._before[part] = self._now(part)
            return False  # it has not exited yet
        supervisor = self.cluster.supervisor
        if part.startswith(("source", "rogue")) and (not supervisor.has(part) or supervisor.is_done(part)):
            return part not in supervisor.held
        if part in (WORKER, EXECUTOR):
            return self.epoch > before.epoch + 1  # the open epoch may not need the part
        if supervisor.pid(part) is None:
            return False
        if part in self.parts.services:
            return self.cluster.is_filled(part)
        if part == THIRD:
            return part in self.statuses  # maybe no producer sends to it
        if part in GATEWAYS:
            is_idle = not self.is_awaiting
            return part in self.statuses and (is_idle or int(self.statuses[part]["records_in"]) > 0)
        if part == DRIVER:
            return self.fence > before.fence
        if part in self.parts.outputs:
            return any(end > old for end, old in zip(self._ends(part), before.ends, strict=True))
        if not before.is_started:
            before.seen, before.is_started = self._seen(part), True
            return False
        return self.streams[part] != before.stream or self._seen(part) > before.seen

    def _ends(self, part: str) -> tuple[int, ...]:
        return tuple(self.outputs.ends[name] for name in self.parts.outputs.get(part, ()))

    def _seen(self, part: str) -> int:
        path = self.streams.get(part)
        if not path:
            return -1
        return max(
            (int(stream["seen"] or 0) for stream in self._streams() if stream["name"].endswith(path)), default=-1
        )

    def _check_progress(self, now: float) -> None:
        for stream in self._streams():
            self._acknowledged[stream["id"]] = max(
                self._acknowledged.get(stream["id"], 0), int(stream["committed"] or 0)
            )
        progress = (sum(self.outputs.ends.values()), sum(self._acknowledged.values()))
        is_disturbed = self.injector.is_active or not self.is_awaiting
        if progress[0] != self._progress[0]:
            self.progress_at = now
        if progress[1] != self._progress[1]:
            self._acknowledged_at = now
        self._progress = progress
        if is_disturbed:
            self.injector.last_change = now
            return
        for what, at in (("committed", self.progress_at), ("acknowledged", self._acknowledged_at)):
            self._check_deadline(now, at, f"nothing was {what}, although no fault was active")
        for name, since in self.injector.leaving.items():
            self._check_deadline(now, since, f"{name} was asked to leave, and has not left")
        for part, down in self.history.recoveries.down.items():
            self._check_deadline(now, down.since, f"{part} is not back at work")

    def _check_deadline(self, now: float, since: float, what: str) -> None:
        since = max(since, self.injector.last_done, self.injector.last_change)
        waited_s = self._clock.between(since, now)
        if waited_s > self.deadline_s:
            busy = "" if waited_s > 0.9 * (now - since) else f" ({now - since:.0f} s on a machine that was busy)"
            raise Failed("stall", f"{what}, for {waited_s:.0f} s{busy}")

    def failure(self, error: Failed) -> RunFailure:
        return RunFailure(error.kind, error.sentence, self.history.scenario, self.cluster.log_tails())
