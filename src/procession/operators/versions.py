"""Versions: each record is joined with the version of its key that was valid at the record's time.

Invariant: only versions before the record in the sequence count. Of these, the version with the greatest start at or
before the record's time is used, regardless of their order. The result has the position of the record. Implements
`operators/operator`. Pure.

State: under the key itself, the greatest time of a record, whether versions were dropped, and the versions, each as
[start, version], earliest first.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from operator import itemgetter
from typing import Any

from procession.operators.operator import OperatorRows, Refuse, Result, StateAccess, StateSpec, UntimedOperator
from procession.operators.stage_rows import StageRows
from procession.operators.stream_join import RIGHT
from procession.operators.watermark_timers import LOWEST
from procession.planner.event_order import LateRecord
from procession.planner.ownership import own
from procession.times import Unit, in_unit, nanoseconds

VERSIONS_MAX = 1_000
"""Default of the maximum number of versions per key."""

ABSENT = object()
_start = itemgetter(0)


class LateVersionRule(Enum):
    """The rules for a version that comes after records for which it was valid, and for a record whose version is no
    longer kept."""

    KEEP = "keep"
    """The version is used for later records. The record gets the oldest kept version."""
    DROP = "drop"
    DEAD_LETTER = "dead-letter"


@dataclass(slots=True)
class KeyVersions:
    """The state of one key. Times are in nanoseconds."""

    greatest: int
    """The greatest time of a record."""
    is_cut: bool
    """Whether versions were dropped because there were too many."""
    versions: list[list[Any]]

    def as_list(self) -> list[Any]:
        """Return the form in which it is stored."""
        return [self.greatest, self.is_cut, self.versions]


@dataclass(frozen=True)
class VersionJoin(UntimedOperator):
    """A join with the valid version. Its rows are those of both sides: records, and versions."""

    join: Callable[[Any, Any], Any]
    time: Callable[[Any], Any]
    valid_from: Callable[[Any], Any]
    unit: Unit = "s"
    late: LateVersionRule = LateVersionRule.KEEP
    versions_max: int = VERSIONS_MAX

    @property
    def state(self) -> StateSpec:
        return StateSpec(
            layout=" of versions",
            function=self.join,
            outputs=(self.join,),
            late_to_dead_letters=self.late is LateVersionRule.DEAD_LETTER,
            counts_late=True,
        )

    def add(self, states: StateAccess, rows: OperatorRows, refuse: Refuse) -> StageRows:
        records = rows.records
        assert records.keys is not None
        encoded = records.keys.dictionary_encode()
        names, slots = encoded.dictionary.to_pylist(), encoded.indices.to_pylist()
        known = states.take(names)
        held = [KeyVersions(*known[name]) if name in known else KeyVersions(LOWEST, False, []) for name in names]
        results: list[Any] = []
        picked: list[int] = []
        for row, (slot, (side, value)) in enumerate(zip(slots, records.as_list(), strict=True)):
            try:
                if side == RIGHT:
                    self._add_version(held[slot], value)
                    continue
                result, late = self._joined(held[slot], value)
                if result is not ABSENT:
                    results.append(result)
                    picked.append(row)
                if late is not None:
                    raise late
            except Exception as error:  # user code may raise any exception
                refuse(row, error)
        known |= {name: of_key.as_list() for name, of_key in zip(names, held, strict=True)}
        states.touch(names)
        return records.pick(picked, results)

    def _add_version(self, held: KeyVersions, version: Any) -> None:
        """Add a version. It replaces a version with the same start. Raises LateRecord for a late version, which is
        added before if the rule says so."""
        start = nanoseconds(self.valid_from(version), self.unit)
        is_late = start <= held.greatest
        if not is_late or self.late is LateVersionRule.KEEP:
            place = bisect_left(held.versions, start, key=_start)
            is_known = place < len(held.versions) and held.versions[place][0] == start
            held.versions[place : place + is_known] = [[start, version]]
            if len(held.versions) > self.versions_max:
                del held.versions[0]
                held.is_cut = True
        if is_late:
            raise LateRecord(
                f"it is valid from {in_unit(start)} s, and records of its key up to {in_unit(held.greatest)} s have"
                " been joined already"
            )

    def _joined(self, held: KeyVersions, record: Any) -> tuple[Any, LateRecord | None]:
        """Return the result for a record, and the reason why the record is late, if it is. `join` gets a copy of the
        version, because the version may be used again."""
        time = nanoseconds(self.time(record), self.unit)
        place = bisect_right(held.versions, time, key=_start) - 1
        late = None
        if place < 0 and held.is_cut:
            oldest = in_unit(held.versions[0][0])
            late = LateRecord(f"its time {in_unit(time)} s is before that of the oldest version kept, {oldest} s")
            if self.late is not LateVersionRule.KEEP:
                return ABSENT, late
            place = 0
        result = self.join(record, own(held.versions[place][1]) if place >= 0 else None)
        held.greatest = max(held.greatest, time)
        return result, late

    def end(self, states: StateAccess) -> Iterator[list[Result]]:
        return iter(())
