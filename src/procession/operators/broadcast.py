"""The broadcast operator: each record is processed with the latest record of a second stream.

Invariant: the records of the second stream reach every task, at the same positions of the order. So every task has the
same latest record at the same position. A record is processed with the last one before it in the sequence, in any task.
Implements `operators/operator`. Pure.

State: under `b`, the latest record of the second stream, in a list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from procession.operators.keyed import is_open
from procession.operators.operator import OperatorRows, Refuse, Result, StateAccess, StateSpec, UntimedOperator
from procession.operators.stage_rows import Numbers, StageRows
from procession.operators.stream_join import RIGHT
from procession.planner.ownership import own

LATEST = b"b"

ONE_KEY = "all"
"""The key of the stage that combines the records of the second stream. The stage has one state."""


@dataclass(frozen=True)
class Updating:
    """The step of the stage that combines the records of the second stream. Its result is the state."""

    update: Callable[[Any, Any], Any]

    def __call__(self, state: Any, record: Any) -> tuple[Any, Any]:
        state = self.update(state, record)
        return state, state


def single_key(record: Any) -> str:
    return ONE_KEY


def sides_of(rows: StageRows) -> Numbers:
    """Return the side of each row: LEFT for records, RIGHT for rows of the second stream."""
    return np.fromiter((side for side, _ in rows.as_list()), np.int64, len(rows))


@dataclass(frozen=True)
class BroadcastOperator(UntimedOperator):
    """Processes records with the latest record of a second stream. Before its first record, `initial()` is used."""

    apply: Callable[[Any, Any], Any]
    initial: Callable[[], Any]
    is_harmless: bool = False
    """Whether `apply` is known to change no argument. Otherwise it gets a copy of the latest record."""

    @property
    def state(self) -> StateSpec:
        return StateSpec(function=self.apply, outputs=(self.apply,))

    def add(self, states: StateAccess, rows: OperatorRows, refuse: Refuse) -> StageRows:
        known = states.take([LATEST])
        latest = known[LATEST][0] if LATEST in known else self.initial()
        results: list[Any] = []
        picked: list[int] = []
        for row, (side, value) in enumerate(rows.records.as_list()):
            if side == RIGHT:
                latest = value
                known[LATEST] = [value]
                states.touch([LATEST])
                continue
            try:
                results.append(self._applied(latest, value))
            except Exception as error:  # user code may raise any exception
                refuse(row, error)
            else:
                picked.append(row)
        return rows.records.pick(picked, results)

    def _applied(self, latest: Any, value: Any) -> Any:
        """Return the result for a record. Neither the function nor a later stage can change the latest record."""
        if not is_open(latest):
            return self.apply(latest, value)
        return own(self.apply(latest, value)) if self.is_harmless else self.apply(own(latest), value)

    def end(self, states: StateAccess) -> Iterator[list[Result]]:
        return iter(())
