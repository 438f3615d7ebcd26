"""Timers: the method of a stage whose functions set timers.

Invariant: as in `api/stage`, the method adds one node to the graph and returns the stage for it. `api/stage` inherits
it; at run time, `operators/process` runs them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from procession.api.stateful_api import Key, StatefulStage, Time
from procession.errors import PlanError
from procession.operators.clock_process import TICK_STEP_NS, ClockProcess, before_clock, tick_key, tick_time
from procession.operators.process import OnRecord, OnTimer, ProcessOperator
from procession.operators.stream_join import Sided
from procession.operators.windows import Length, span
from procession.planner.graph import Kind
from procession.planner.keys import KeyCodec
from procession.planner.validation import checked_call, checked_function, checked_unit
from procession.times import Unit

if TYPE_CHECKING:
    from procession.api.stage import Stage


class Timers(StatefulStage):
    """The `Stage` method that sets timers."""

    def process(
        self,
        function: OnRecord,
        *,
        on_timer: OnTimer,
        key: Key | None = None,
        initial: Any = None,
        time: Time | None = None,
        unit: Unit = "s",
        lateness_s: Length = 0,
        step_s: Length = 1,
        clock: Stage | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stage:
        """Process the records of each key with a state and with timers in event time.

        `function(state, record, context)` and `on_timer(state, context)` return the next state and an iterable of
        results. `context.timer_at(time)` sets a timer of the key, `context.cancel_timer(time)` cancels it. A timer
        fires when a record of any key arrives whose time has reached the timer. The timer's results come before the
        results of that record. When the input has ended, all timers fire once, and new timers are ignored.

        Args:
            function: Takes the state of the record's key, the record and a `procession.ProcessContext`. Returns
                `(state, results)`. A state of None removes the state; timers of the key stay.
            on_timer: Takes the state and a `procession.ProcessContext` with the timer's time. Returns `(state,
                results)`.
            key: Returns a record's key. Without it, the key is that of `key_by`.
            initial: The state of a new key: a value, or a function that makes one.
            time: Returns a record's event time, as in `window`. Without it, records have the event time that they were
                sent with.
            unit: Unit of `time` and of the timers: "s", "ms", "us" or "ns".
            lateness_s: Additional seconds for which timers wait for late records.
            clock: `pipeline.clock()`, for timers by the clock: `context.timer_after_s(5)`. The ticks of the clock then
                fire the timers; event time does not. Needs `key`; omit `time`, `unit`, `lateness_s` and `step_s`.
            step_s: Event time moves in steps of this many seconds, and a timer may fire one step late. A smaller step
                is more exact and costs more.

        Raises:
            PlanError: There is no key, a function has other arguments, or `initial` cannot be stored.

        Example:
            >>> from procession import Pipeline
            >>> def ordered(state, order, context):
            ...     context.timer_at(context.time + 60)
            ...     return order["id"], []
            >>> def overdue(order_id, context):
            ...     return None, [f"order {order_id} of {context.key} was not paid within a minute"]
            >>> orders = Pipeline("overdue").source(codec="json")
            >>> late = orders.process(
            ...     ordered, on_timer=overdue, key=lambda order: order["customer"], time=lambda order: order["at"]
            ... )
        """
        kind = Kind.PROCESS
        checked_call(function, kind.value, "", ("state", "record", "context"))
        checked_call(on_timer, kind.value, "on_timer", ("state", "context"))
        if clock is not None:
            given: dict[str, tuple[Any, Any]] = {"time": (time, None), "unit": (unit, "s"), "step_s": (step_s, 1)}
            for word, (value, default) in (given | {"lateness_s": (lateness_s, 0)}).items():
                if value != default:
                    raise PlanError(
                        f".{kind.value}() has clock= and {word}=, but the clock alone fires its timers",
                        next_step=f"omit {word}; or omit clock, for timers in event time",
                    )
            return self._by_clock(clock, function, on_timer, key, initial, name, parallelism)
        if time is not None:
            checked_function(time, kind.value, "time")
        by = self._key(kind, key)
        operator = ProcessOperator(
            function,
            on_timer,
            self._initial(kind, initial),
            span(step_s, "step_s"),
            span(lateness_s, "lateness_s", 0),
            checked_unit(unit),
            KeyCodec(self._pipeline.types),
        )
        node = self._node(kind, None, name, parallelism)
        return self._add(replace(node, key=by, time=time, unit=unit, operator=operator))

    def _by_clock(
        self,
        clock: Stage,
        function: OnRecord,
        on_timer: OnTimer,
        key: Key | None,
        initial: Any,
        name: str | None,
        parallelism: int | None,
    ) -> Stage:
        kind = Kind.PROCESS
        self._check_side(clock, kind.value, "clock")
        if key is None:
            raise PlanError(f".{kind.value}() with a clock has no key", next_step="pass key=, a function of a record")
        checked_function(key, kind.value, "key")
        keys = Sided(key, tick_key)
        operator = ClockProcess(
            function, on_timer, self._initial(kind, initial), TICK_STEP_NS, keys=KeyCodec(self._pipeline.types)
        )
        named = self._named(kind.value, name, 4)
        node = self._both(clock, named)._node(kind, None, named, parallelism)
        node = replace(node, is_named=name is not None, key=keys, time=Sided(before_clock, tick_time))
        return self._add(replace(node, operator=operator))
