"""The monitor: checks outputs, deaths and progress all the time, and reports the first violation.

The one rule: three things are wrong: an output that is not a prefix of what must come out; a death that nobody brought
about; and no progress within the deadline while nothing is being done to anybody. Deadlines go by the fair clock: time
that a busy machine did not give to the parts is not held against them. Before it the cluster; after it the harness,
which it stops.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from procession.chaos.cluster_view import Cluster, Death
from procession.chaos.fair_clock import FairClock
from procession.chaos.fault_injector import FaultInjector
from procession.chaos.history import Failure, History
from procession.chaos.output_monitor import Outputs
from procession.chaos.scenario import DRIVER, EXECUTOR, GATEWAYS, THIRD, WORKER

LOOK_S = 0.02
PROBE_S = 0.05
SAMPLE_S = 1.0
ASLEEP_S = 10.0
PATIENCE = 10
"""So many deadlines anything else may take, while there is progress."""
LEAVE_AGAIN_S = 1.0
"""A gateway that is to leave and is killed meanwhile may come back as if it had never been told: it is told again."""


class Failed(Exception):
    """The run ends here."""

    def __init__(self, kind: str, sentence: str) -> None:
        super().__init__(sentence)
        self.kind = kind
        self.sentence = sentence


class Stopped(Exception):
    """Somebody asked us to stop."""


@dataclass
class Before:
    """How far things were when a part died: it is at work again when they have moved since."""

    fence: int
    epoch: int
    end: int
    stream: str
    seen: int
    is_started: bool = False
    """Its next process is there: only what comes from now on is its work, not what was still under way."""


@dataclass
class Monitor:
    cluster: Cluster
    chronicle: History
    hands: FaultInjector
    outputs: Outputs
    deadline_s: float
    show: Callable[[History], None]
    streams: dict[str, str] = field(default_factory=dict)
    """The path of the file that each source sends at the moment."""
    is_awaiting: bool = True
    """Whether there is anything that should move."""
    statuses: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What each gateway says that answers."""
    epoch: int = -1
    fence: int = 0
    _before: dict[str, Before] = field(default_factory=dict)
    _next_probe: float = 0.0
    _next_sample: float = 0.0
    _next_leave: float = 0.0
    _acknowledged: dict[int, int] = field(default_factory=dict)
    """The furthest that any gateway has told of each stream."""
    _progress: tuple[int, int] = (0, 0)
    progress_at: float = field(default_factory=time.monotonic)
    _acknowledged_at: float = field(default_factory=time.monotonic)
    _looked_at: float = field(default_factory=time.monotonic)
    _clock: FairClock = field(default_factory=lambda: FairClock(time.monotonic()))

    def look(self) -> None:
        """Look after the parts for a moment, then at everything that is due to be looked at."""
        if not self.cluster.stage.watch(LOOK_S):
            raise Stopped
        now = time.monotonic()
        if now - self._looked_at > ASLEEP_S:
            # We were stopped, or the machine was: what did not happen meanwhile nobody has failed to do.
            self.chronicle.notes.append(f"the harness itself stood still for {now - self._looked_at:.0f} s")
            self.hands.last_stir = now
        self._looked_at = now
        self.hands.undo_due(now)
        self._take_deaths()
        if now >= self._next_probe:
            self._next_probe = now + PROBE_S
            self._probe(now)

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Look until it holds; the deadline for progress is there all the time."""
        if not self.comes(holds, PATIENCE * self.deadline_s):
            raise Failed("stall", f"waited in vain for {what}")

    def comes(self, holds: Callable[[], bool], patience_s: float) -> bool:
        """Look until it holds; False if it does not within so many seconds that the parts really had."""
        began = time.monotonic()
        self.look()
        while not holds():
            if self._clock.between(began, time.monotonic()) > patience_s:
                return False
            self.look()
        return True

    def is_back(self, part: str) -> bool:
        return part not in self.chronicle.recoveries.down

    @property
    def is_settled(self) -> bool:
        """Everything that was done is over, everybody is back, and something was committed since."""
        is_quiet = not self.hands.is_active and not self.hands.leaving and not self.chronicle.recoveries.down
        return is_quiet and self.progress_at > self.hands.last_done

    # Deaths

    def _take_deaths(self) -> None:
        deaths, self.cluster.stage.deaths = self.cluster.stage.deaths, []
        for death in deaths:
            if not self.hands.is_excused(death):
                why = "and nothing was done to it that explains this"
                raise Failed("death", f"{death}, {why}. Its last words: {death.words or 'none'}")
            self._note(death)

    def _note(self, death: Death) -> None:
        self.chronicle.event(death.at - self.hands.began, death.part, str(death))
        if death.is_spare:
            return  # the part itself lives
        if death.is_late:
            self.chronicle.notes.append(f"{death.part} {death.words}, and was started again")
        recoveries = self.chronicle.recoveries
        if not death.is_ours:
            recoveries.hit(death.part, death.at)
        self._before.pop(death.part, None)
        if death.part not in recoveries.down:
            return  # it was ended to make room for another
        self._check_outputs()  # what was under way when it died is not its recovery
        self._before[death.part] = self._now(death.part)

    def _now(self, part: str) -> Before:
        return Before(
            fence=self.cluster.fence(),
            epoch=self.epoch,
            end=self.outputs.ends.get(part.removeprefix("sink-"), 0),
            stream=self.streams.get(part, ""),
            seen=self._seen(part),
        )

    # Progress

    def _probe(self, now: float) -> None:
        self.check()
        self._see_off(now)
        for line in self.cluster.new_epochs():
            self.epoch, self.fence = max(self.epoch, line["epoch"]), line["fence"]
        self.chronicle.epochs = self.epoch + 1
        for part in list(self.chronicle.recoveries.down):
            if self._is_at_work(part):
                since = self.chronicle.recoveries.down[part].since - self.hands.began
                self.chronicle.recoveries.back(part, now)
                del self._before[part]
                self.chronicle.absences.append((part, round(since, 3), round(now - self.hands.began, 3)))
                self.chronicle.event(now - self.hands.began, part, "is back at work")
        self._check_progress(now)
        if now >= self._next_sample:
            self._next_sample = now + SAMPLE_S
            self._clock.tick(now, self.cluster.toil())
            self.chronicle.samples.append((round(now - self.hands.began, 1), self.chronicle.committed))
        self.chronicle.seconds = now - self.hands.began
        self.show(self.chronicle)

    def check(self) -> None:
        """Everything that can be right or wrong at any time."""
        self._check_outputs()
        self.statuses = self.cluster.statuses()
        self._check_acknowledged()
        self.chronicle.decided, self.chronicle.acknowledged = self.outputs.named, len(self.outputs.acknowledged)

    def _check_outputs(self) -> None:
        wrong = self.outputs.look()
        self.chronicle.committed = self.outputs.committed
        if wrong:
            raise Failed("violation", "; ".join(wrong[:3]))

    def _check_acknowledged(self) -> None:
        """I4: what producers were told is committed, by their own word and by their gateway's. Decisions are read last,
        so they can only be further."""
        heard = self.outputs.acknowledged = self.cluster.acknowledged()
        positions = self.cluster.decided_positions()
        if positions is None:
            return
        for stream_id, told in heard.items():
            decided = positions.get(stream_id)
            if decided is None or told > decided:
                raise Failed(
                    "violation",
                    f"the producer of {self.outputs.name_of(stream_id)} was told that it is committed up to {told},"
                    f" but it is up to {decided}",
                )
        for stream in self._streams():
            told, decided = stream["committed"], positions.get(int(stream["id"]))
            if told is not None and (decided is None or int(told) > decided):
                raise Failed(
                    "violation", f"{stream['name']} is acknowledged up to {told}, but committed up to {decided}"
                )

    def _streams(self) -> Iterator[dict[str, Any]]:
        for status in self.statuses.values():
            yield from status["streams"]

    @property
    def is_empty(self) -> bool:
        """Whether all that any gateway ever took is committed."""
        return all(
            name in self.statuses and self.statuses[name]["committed_end"] == self.statuses[name]["next_sequence"]
            for name in self.cluster.gateways()
        )

    def _see_off(self, now: float) -> None:
        """Gateways that are to leave: note who is gone."""
        stage = self.cluster.stage
        for name in [name for name in self.hands.leaving if stage.is_done(name)]:
            stage.forget(name)
            del self.hands.leaving[name]
            self.chronicle.recoveries.back(name, now, is_timed=False)
            self._before.pop(name, None)
            self.hands.note(name, "has left")
        if self.hands.leaving and now >= self._next_leave:
            self._next_leave = now + LEAVE_AGAIN_S
            for name in self.hands.leaving:
                self.cluster.let_go(name)

    def _is_at_work(self, part: str) -> bool:
        before = self._before.get(part)
        if before is None:
            if part in (WORKER, EXECUTOR):
                self._before[part] = self._now(part)
            return False  # it has not died yet
        stage = self.cluster.stage
        if part.startswith(("source", "rogue")) and (not stage.has(part) or stage.is_done(part)):
            return part not in stage.held
        if part in (WORKER, EXECUTOR):
            return self.epoch > before.epoch + 1  # the one that was open may not have needed it
        if stage.pid(part) is None:
            return False
        if part == THIRD:
            return part in self.statuses  # nobody has to send to it
        if part in GATEWAYS:
            is_idle = not self.is_awaiting
            return part in self.statuses and (is_idle or int(self.statuses[part]["records_in"]) > 0)
        if part == DRIVER:
            return self.fence > before.fence
        if part.startswith("sink-"):
            return self.outputs.ends[part.removeprefix("sink-")] > before.end
        if not before.is_started:
            before.seen, before.is_started = self._seen(part), True
            return False
        return self.streams[part] != before.stream or self._seen(part) > before.seen

    def _seen(self, part: str) -> int:
        path = self.streams.get(part)
        if not path:
            return -1
        return max((int(one["seen"] or 0) for one in self._streams() if one["name"].endswith(path)), default=-1)

    def _check_progress(self, now: float) -> None:
        for one in self._streams():
            self._acknowledged[one["id"]] = max(self._acknowledged.get(one["id"], 0), int(one["committed"] or 0))
        progress = (sum(self.outputs.ends.values()), sum(self._acknowledged.values()))
        is_disturbed = self.hands.is_active or not self.is_awaiting
        if progress[0] != self._progress[0]:
            self.progress_at = now
        if progress[1] != self._progress[1]:
            self._acknowledged_at = now
        self._progress = progress
        if is_disturbed:
            self.hands.last_stir = now
            return
        for what, at in (("committed", self.progress_at), ("acknowledged", self._acknowledged_at)):
            self._check_deadline(now, at, f"nothing was {what}, and nothing was being done")
        for name, since in self.hands.leaving.items():
            self._check_deadline(now, since, f"{name} was let go, and has not left")
        for part, down in self.chronicle.recoveries.down.items():
            self._check_deadline(now, down.since, f"{part} is not back at work")

    def _check_deadline(self, now: float, since: float, what: str) -> None:
        since = max(since, self.hands.last_done, self.hands.last_stir)
        waited_s = self._clock.between(since, now)
        if waited_s > self.deadline_s:
            busy = "" if waited_s > 0.9 * (now - since) else f" ({now - since:.0f} s on a machine that was busy)"
            raise Failed("stall", f"{what}, for {waited_s:.0f} s{busy}")

    def failure(self, error: Failed) -> Failure:
        return Failure(error.kind, error.sentence, self.chronicle.scenario, self.cluster.story())
