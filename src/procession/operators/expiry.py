"""Expiry: the state of a key is removed when no record of the key has arrived for a while, in event time.

Invariant: a state lasts for its time to live after the latest record of its key, measured by the watermark. Every task
learns the watermark, so states of quiet keys expire, too. A result of an expired state has the position of the record
that advanced the watermark, then the time of expiry, then its key. A timed operator (`operators/timed`). Pure.

State: under `k` and the key, the time of expiry and the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from procession.errors import PlanError
from procession.operators.keyed import Step, StepResult, is_open, output_functions
from procession.operators.operator import Place, StateSpec
from procession.operators.stage_rows import Numbers
from procession.operators.timed import NOTHING, KeyState, Progress, TimedOperator
from procession.planner.keys import PLAIN_KEYS, KeyCodec
from procession.planner.ownership import own, separate
from procession.times import in_unit

STEPS = 8
"""Number of steps of the watermark per time to live. A state may last one step longer than its time to live."""

OnEvict = Callable[[Any, Any], Any]


@dataclass(slots=True)
class LiveState(KeyState):
    """The time at which the state of a key expires, and the state. A state of None means that the key has no state."""

    expires: int
    state: Any

    @property
    def is_empty(self) -> bool:
        return self.state is None

    def stored(self) -> list[Any]:
        return [self.expires, self.state]


@dataclass(frozen=True)
class ExpiringState(TimedOperator[LiveState]):
    """A keyed stage whose states expire."""

    returns: StepResult
    step: Step | None
    initial: Callable[[], Any]
    ttl: int
    on_evict: OnEvict | None = None
    keys: KeyCodec = PLAIN_KEYS

    @property
    def state(self) -> StateSpec:
        on_evict = () if self.on_evict is None else (self.on_evict,)
        return StateSpec(
            layout=f" of states that last {in_unit(self.ttl)} s",
            function=self.step,
            outputs=(*output_functions(self.step), *on_evict),
            steps=self.steps,
            fires_at_end=True,
            is_made_by_user=True,
        )

    @property
    def step_ns(self) -> int:
        return max(1, self.ttl // STEPS)

    def steps(self, times: Numbers) -> Numbers:
        return np.floor_divide(times, self.step_ns)

    def load(self, stored: list[Any] | None) -> LiveState:
        return LiveState(0, None) if stored is None else LiveState(*stored)

    def add_record(self, progress: Progress, value: Any, time: int, held: LiveState) -> None:
        state, results = self._stepped(held.state, value)
        if state is not None:
            expires = max(time, progress.watermark) + self.ttl
            if held.state is None:
                progress.timers.set(self._due(expires), progress.key)
                held.expires = expires
            elif expires > held.expires:
                held.expires = expires
        held.state = state
        for number, result in enumerate(results):
            progress.emit(result, number)

    def _stepped(self, state: Any, value: Any) -> tuple[Any, list[Any]]:
        """Return the next state, and the results to emit."""
        if self.returns is StepResult.FIRST:
            return True, [value] if state is None else []
        assert self.step is not None
        state, result = self.step(self.initial() if state is None else state, value)
        if self.returns is StepResult.MANY:
            return state, separate(result, is_held=is_open(state))
        if self.returns is StepResult.KEEP and not result:
            return state, []
        emitted = value if self.returns is StepResult.KEEP else result
        return state, [own(emitted) if is_open(state) else emitted]

    def take_due(self, progress: Progress, held: LiveState) -> Iterable[tuple[Place, Any]]:
        if (due := self._due(held.expires)) > progress.step:
            progress.timers.set(due, progress.key)  # records have arrived since the timer was set
            return []
        state, held.state = held.state, None
        return [((held.expires, progress.key, 0), state)]

    def result_of(self, key: bytes, due: Any) -> Any:
        if self.on_evict is None:
            return NOTHING
        decoded = self.keys.decode(key)
        try:
            result = self.on_evict(decoded, due)
        except Exception as error:
            raise PlanError(
                f"the `on_evict` of key {decoded!r} raised {type(error).__name__}: {error}",
                next_step="correct the function and start again: nothing of this epoch is committed, and it runs again",
            ) from error
        return NOTHING if result is None else result

    def _due(self, expires: int) -> int:
        """Return the first step at which a state that expires at this time is removed."""
        return -(-expires // self.step_ns)
