"""Expiry: the state of a key is dropped when no record of the key has come for a while, in event time.

The one rule: a state lives for its time to live after the latest record of its key, by the watermark. The watermark is
a function of the sequence, and every task learns it, so states of quiet keys expire too. A result of an expired state
has the place of the record that advanced the watermark, then the time of expiry, then its key. Used by
`operators/chain`; uses `operators/watermark_timers`. Pure.

State: under `k` and the key, the time of expiry and the state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from procession.errors import PlanError
from procession.operators.keyed import Refuse, States, is_open
from procession.operators.stage_rows import Numbers
from procession.operators.timed import Timed
from procession.operators.watermark_timers import Alarms
from procession.planner.keyed_spec import Gives, Step
from procession.planner.keys import PLAIN_KEYS, KeyCodec
from procession.planner.order_key import AFTER, Result, rank_of
from procession.planner.ownership import own, separate
from procession.times import in_unit

STEPS = 8
"""The watermark moves in steps of the time to live divided by this: so much longer a state may last."""

OnEvict = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Expiring(Timed):
    """What a keyed stage does whose states expire."""

    gives: Gives
    step: Step | None
    initial: Callable[[], Any]
    ttl: int
    on_evict: OnEvict | None = None
    keys: KeyCodec = PLAIN_KEYS

    @property
    def shape(self) -> str:
        """What its states are made for: they are of no use where states last for another time."""
        return f"states that last {in_unit(self.ttl)} s"

    @property
    def step_ns(self) -> int:
        return max(1, self.ttl // STEPS)

    def steps(self, times: Numbers) -> Numbers:
        """The step of the watermark that each time alone would lead to."""
        return np.floor_divide(times, self.step_ns)

    @property
    def sets_late_aside(self) -> bool:
        """No record comes too late for a state."""
        return False

    def begin(self, states: States) -> _Run:
        return _Run(self, states)


class _Run:
    """Rows on their way through the stage."""

    def __init__(self, stage: Expiring, states: States) -> None:
        self.stage = stage
        self.states = states
        self.alarms = Alarms(states)
        self.results: list[Result] = []

    def add(
        self,
        rows: Sequence[int],
        keys: Sequence[bytes],
        values: Sequence[Any],
        times: Numbers,
        step: int,
        refuse: Refuse,
    ) -> None:
        watermark = step * self.stage.step_ns
        names = {row: b"k" + keys[row] for row in rows}
        known = self.states.take(list(names.values()))
        for row, name in names.items():
            held = known.get(name)
            try:
                state, results = self._stepped(held, values[row])
            except Exception as error:  # the user's code may raise anything; the record decides who acts
                refuse(row, error)
                continue
            if state is None:
                known.pop(name, None)
            else:
                expires = max(int(times[row]), watermark) + self.stage.ttl
                known[name] = [expires if held is None else max(expires, held[0]), state]
                if held is None:
                    self.alarms.set(self._due(expires), keys[row])
            for number, result in enumerate(results):
                self.results.append((row, (AFTER, b"", number), keys[row], result))
        self.states.touch(names.values())
        self.alarms.keep()

    def _stepped(self, held: list[Any] | None, value: Any) -> tuple[Any, list[Any]]:
        """The next state, and what comes out."""
        stage = self.stage
        if stage.gives is Gives.FIRST:
            return True, [value] if held is None else []
        assert stage.step is not None
        state, result = stage.step(stage.initial() if held is None else held[1], value)
        if stage.gives is Gives.MANY:
            return state, separate(result, is_held=is_open(state))
        if stage.gives is Gives.KEPT and not result:
            return state, []
        given = value if stage.gives is Gives.KEPT else result
        return state, [own(given) if is_open(state) else given]

    def fire(self, row: int, step: int, keys: Sequence[bytes]) -> None:
        """The watermark has come to this step, at this row: of these keys, the states whose time is over go."""
        if not keys:
            return
        names = [b"k" + key for key in keys]
        known = self.states.take(names)
        gone = []
        for key, name in zip(keys, names, strict=True):
            held = known.get(name)
            if held is None:
                continue  # it was forgotten before
            if (due := self._due(held[0])) > step:
                self.alarms.set(due, key)  # there were records since
            else:
                gone.append((held[0], key, known.pop(name)[1]))
        self.states.touch(names)
        self.alarms.keep()
        if self.stage.on_evict is None:
            return
        for expired, key, state in sorted(gone, key=lambda one: (one[0], rank_of(one[1]))):
            result = self._evicted(self.stage.on_evict, key, state)
            if result is not None:
                self.results.append((row, (expired, key, 0), key, result))

    def _evicted(self, on_evict: OnEvict, encoded: bytes, state: Any) -> Any:
        key = self.stage.keys.decode(encoded)
        try:
            return on_evict(key, state)
        except Exception as error:
            raise PlanError(
                f"the `on_evict` of key {key!r} raised {type(error).__name__}: {error}",
                next_step="mend it; nothing of this epoch was committed, and it is run again when you start again",
            ) from error

    def _due(self, expires: int) -> int:
        return -(-expires // self.stage.step_ns)
