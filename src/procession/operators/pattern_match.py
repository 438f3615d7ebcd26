"""The pattern operator: finds sequences of records of a key that match a pattern.

Invariant: each record for which the first condition holds begins a partial match. A record can change a partial match
in only one way, so matches depend only on the sequence of the key's records. A match has the position of the record
that completed it. If time completed it, it has the position of the record that advanced the watermark. A partial match
ends when the watermark is past its first record by more than the bound. A timed operator (`operators/timed`). Pure.

State: under `k` and the key, its partial matches in the order of their first records, each as [time of the first
record, time of the last, number of the step, records of each step].
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import starmap
from typing import Any, ClassVar

import numpy as np

from procession.errors import PlanError
from procession.operators.operator import Place, StateSpec
from procession.operators.patterns import Matched, Pattern, SkipRule
from procession.operators.stage_rows import Numbers
from procession.operators.timed import KeyState, Progress, TimedOperator
from procession.operators.windows import late_record
from procession.planner.keys import PLAIN_KEYS, KeyCodec
from procession.planner.ownership import own
from procession.times import Unit, in_unit

STEPS = 8
"""Number of steps of the watermark per bound. A partial match may last one step longer than the bound."""

HELD_MAX = 100_000
"""Maximum number of records in the partial matches of one key. The pipeline stops if a key has more."""


@dataclass(slots=True)
class PartialMatch:
    """A match that has begun. Times are in nanoseconds."""

    start: int
    last: int
    step: int
    """The number of the step that was reached."""
    records: list[list[Any]]
    """The records of each step so far."""

    def as_list(self) -> list[Any]:
        """Return the form in which it is stored."""
        return [self.start, self.last, self.step, self.records]

    def taking(self, step: int, record: Any, time: int) -> PartialMatch:
        """Return this match with one more record."""
        records = [list(own_records) for own_records in self.records]
        if step == len(records):
            records.append([])
        records[step].append(record)
        return PartialMatch(self.start, time, step, records)


@dataclass(slots=True)
class PartialMatches(KeyState):
    """The partial matches of one key."""

    matches: list[PartialMatch]

    @property
    def is_empty(self) -> bool:
        return not self.matches

    def stored(self) -> list[Any]:
        return [partial.as_list() for partial in self.matches]


@dataclass(frozen=True)
class PatternOperator(TimedOperator[PartialMatches]):
    """Finds a pattern in the records of each key."""

    pattern: Pattern
    within: int
    skip: SkipRule = SkipRule.PAST_LAST
    lateness: int = 0
    late_to_dead_letters: bool = False
    unit: Unit = "s"
    keys: KeyCodec = PLAIN_KEYS

    stops_on: ClassVar[tuple[type[Exception], ...]] = (PlanError,)

    @property
    def state(self) -> StateSpec:
        return StateSpec(
            layout=f" of {self.pattern.shape} within {in_unit(self.within)} s",
            function=self.pattern,
            steps=self.steps,
            fires_at_end=True,
            late_to_dead_letters=self.late_to_dead_letters,
            held="the matches that have begun in",
        )

    @property
    def step_ns(self) -> int:
        return max(1, self.within // STEPS)

    def steps(self, times: Numbers) -> Numbers:
        return np.floor_divide(times - self.lateness, self.step_ns)

    def _due(self, start: int) -> int:
        """Return the step at which a partial match ends: the first step past its first record by more than the
        bound."""
        return (start + self.within) // self.step_ns + 1

    def load(self, stored: list[Any] | None) -> PartialMatches:
        return PartialMatches([] if stored is None else list(starmap(PartialMatch, stored)))

    def add_record(self, progress: Progress, value: Any, time: int, held: PartialMatches) -> None:
        """Extend all partial matches of the key, and begin another. If a predicate raises, nothing changes."""
        if progress.step >= self._due(time):
            raise late_record(time, progress.watermark)
        going: list[PartialMatch] = []
        complete: list[PartialMatch] = []
        for partial in held.matches:
            # A record that is too late for a partial match neither extends nor ends it: time ends the match.
            moved = partial if time - partial.start > self.within else self._moved(partial, value, time)
            if moved is not None:
                is_complete = moved is not partial and self._is_full(moved) and not self.pattern.without_after
                (complete if is_complete else going).append(moved)
        is_skipping = self.skip is SkipRule.PAST_LAST and bool(complete)
        if not is_skipping and self.pattern.steps[0].condition.holds(value, {}):
            begun = PartialMatch(time, time, 0, [[value]])
            is_complete = self._is_full(begun) and not self.pattern.without_after
            (complete if is_complete else going).append(begun)
            if not is_complete:
                progress.timers.set_once(self._due(time), progress.key)
        if self.skip is SkipRule.PAST_LAST and complete:
            going, complete = [], complete[:1]
        held.matches = going
        self._check_limit(progress.key, held)
        for number, partial in enumerate(complete):
            progress.emit(self._match(progress.key, partial), number)

    def _moved(self, partial: PartialMatch, value: Any, time: int) -> PartialMatch | None:
        """Return the partial match after a record: with the record, unchanged, or None if the record ends it."""
        steps, number = self.pattern.steps, partial.step
        step, matched = steps[number], self._matched(partial)
        is_strict = step.is_next
        if len(partial.records[number]) >= step.at_least:
            following = steps[number + 1] if number + 1 < len(steps) else None
            without = self.pattern.without_after if following is None else following.without
            if any(condition.holds(value, matched) for condition in without):
                return None
            if following is None:
                return partial
            if following.condition.holds(value, matched):
                return partial.taking(number + 1, own(value), time)
            is_strict = following.is_next
        if len(partial.records[number]) < step.at_most and step.condition.holds(value, matched):
            return partial.taking(number, own(value), time)
        return None if is_strict else partial

    def _is_full(self, partial: PartialMatch) -> bool:
        """Whether a partial match has all records that the pattern needs."""
        last = len(self.pattern.steps) - 1
        return partial.step == last and len(partial.records[last]) >= self.pattern.steps[last].at_least

    def _matched(self, partial: PartialMatch) -> Matched:
        return {step.name: records for step, records in zip(self.pattern.steps, partial.records, strict=False)}

    def _match(self, key: bytes, partial: PartialMatch) -> dict[str, Any]:
        """Return the result of a match."""
        times = {"start": in_unit(partial.start, self.unit), "end": in_unit(partial.last, self.unit)}
        return {"key": self.keys.decode(key), **times, "matched": self._matched(partial)}

    def take_due(self, progress: Progress, held: PartialMatches) -> Iterable[tuple[Place, Any]]:
        over = [partial for partial in held.matches if self._due(partial.start) <= progress.step]
        held.matches = [partial for partial in held.matches if self._due(partial.start) > progress.step]
        # A match that is left when its time is over is complete only if the pattern excludes records after the last
        # step.
        complete = [partial for partial in over if self.pattern.without_after and self._is_full(partial)]
        complete.sort(key=lambda partial: partial.start)
        if self.skip is SkipRule.PAST_LAST and complete:
            held.matches, complete = [], complete[:1]
        return [
            ((partial.start + self.within, progress.key, number), self._match(progress.key, partial))
            for number, partial in enumerate(complete)
        ]

    def result_of(self, key: bytes, due: Any) -> Any:
        return due

    def _check_limit(self, key: bytes, held: PartialMatches) -> None:
        if sum(len(records) for partial in held.matches for records in partial.records) > HELD_MAX:
            raise PlanError(
                f"the matches that have begun of key {self.keys.decode(key)!r} hold more than {HELD_MAX:,} records",
                next_step="give the pattern a smaller within_s or a first step that holds for fewer records; nothing of"
                " this epoch is committed",
            )
