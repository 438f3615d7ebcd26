"""Stateful stages: the methods of a stage whose output depends on earlier records.

Invariant: as in `api/stage`, each method adds one node to the graph and returns the stage for it. `api/stage`
inherits these methods; `planner/graph` holds the nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from procession.api.joins import Joins
from procession.errors import PlanError
from procession.operators.aggregates import Aggregate
from procession.operators.context import is_asking
from procession.operators.expiry import ExpiringState, OnEvict
from procession.operators.keyed import KeyedOperator, Step, StepResult, reducing, starting_with
from procession.operators.operator import Operator
from procession.operators.sort import SortOperator
from procession.operators.total import TotalOperator
from procession.operators.value_codec import ValueCodec
from procession.operators.window_operator import window_operator
from procession.operators.windows import LateWindowRule, Length, Windows, check_updates, span
from procession.planner.graph import Kind, Node
from procession.planner.keys import KeyCodec, RecordKey
from procession.planner.validation import (
    checked_choice,
    checked_count,
    checked_flag,
    checked_function,
    checked_name,
    checked_of_one,
    checked_unit,
)
from procession.times import Unit

if TYPE_CHECKING:
    from procession.api.pipeline import Pipeline
    from procession.api.stage import Stage

EARLY_MAX = 1_000_000_000

ASKED = frozenset({Kind.MAP, Kind.FILTER, Kind.FLAT_MAP})
"""Stages whose functions may take a `Context` as a second argument."""

Key = Callable[[Any], Any]
Time = Callable[[Any], float | Decimal | datetime]

STEP_RESULTS = {
    Kind.FILTER_STATEFUL: StepResult.KEEP,
    Kind.FLAT_MAP_STATEFUL: StepResult.MANY,
    Kind.DISTINCT: StepResult.FIRST,
}
"""The results that the step of a stage returns with the state, if it does not return exactly one record."""


class Expiry(NamedTuple):
    """When the states of a keyed stage expire, as the user declared it."""

    ttl_s: Length | None
    time: Time | None
    unit: Unit
    on_evict: OnEvict | None = None


class StatefulStage(Joins):
    """The `Stage` methods that add stages with state."""

    def __init__(self, pipeline: Pipeline, index: int, add: Callable[[Node], Stage]) -> None:
        self._pipeline = pipeline
        self._index = index
        self._add = add

    def __repr__(self) -> str:
        return f"<stage {self._pipeline.stage_name(self._index)!r} of pipeline {self._pipeline.name!r}>"

    def map_stateful(
        self,
        function: Callable[[Any, Any], tuple[Any, Any]],
        *,
        key: Key | None = None,
        initial: Any = None,
        ttl_s: Length | None = None,
        time: Time | None = None,
        unit: Unit = "s",
        on_evict: OnEvict | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stage:
        """Replace each record, using a state per key: `function(state, record)` returns the next state and the result.

        States are committed with their epoch. An epoch that is run again starts with the same states.

        Args:
            function: Takes the state of the record's key and the record. Returns `(state, result)`. A state of None
                removes the key. A state consists of the values that docs/reference/values.md lists.
            key: Returns a record's key. Without it, the key is that of `key_by`.
            initial: The state of a new key: a value, or a function that makes one.
            ttl_s: Remove a key that got no record for this many seconds of event time. The latest record of any key
                defines the current time.
            time: With `ttl_s`: returns a record's event time, as in `window`. Without it, records have the event time
                that they were sent with.
            unit: Unit of `time`: "s", "ms", "us" or "ns".
            on_evict: With `ttl_s`: `on_evict(key, state)` is called when a key is removed. Its result, if not None,
            has the position of the record that moved time past the limit.

        Raises:
            PlanError: There is no key, `initial` cannot be stored, or `time` or `on_evict` is given without `ttl_s`.

        Example:
            >>> from procession import Pipeline
            >>> orders = Pipeline("running-sums").source(codec="json")
            >>> sums = orders.map_stateful(
            ...     lambda total, order: (total + order["amount"], total + order["amount"]),
            ...     key=lambda order: order["customer"],
            ...     initial=0,
            ... )
        """
        expiry = Expiry(ttl_s, time, unit, on_evict)
        return self._keyed(Kind.MAP_STATEFUL, function, key, initial, name, parallelism, expiry)

    def filter_stateful(
        self,
        function: Callable[[Any, Any], tuple[Any, bool]],
        *,
        key: Key | None = None,
        initial: Any = None,
        ttl_s: Length | None = None,
        time: Time | None = None,
        unit: Unit = "s",
        on_evict: OnEvict | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stage:
        """Keep or drop each record. Works like `map_stateful`, but the function returns whether to keep the record."""
        expiry = Expiry(ttl_s, time, unit, on_evict)
        return self._keyed(Kind.FILTER_STATEFUL, function, key, initial, name, parallelism, expiry)

    def flat_map_stateful(
        self,
        function: Callable[[Any, Any], tuple[Any, Iterable[Any]]],
        *,
        key: Key | None = None,
        initial: Any = None,
        ttl_s: Length | None = None,
        time: Time | None = None,
        unit: Unit = "s",
        on_evict: OnEvict | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stage:
        """Replace each record by any number of records. Works like `map_stateful`, but the function returns an iterable
        of results."""
        expiry = Expiry(ttl_s, time, unit, on_evict)
        return self._keyed(Kind.FLAT_MAP_STATEFUL, function, key, initial, name, parallelism, expiry)

    def reduce(
        self,
        function: Callable[[Any, Any], Any],
        *,
        key: Key | None = None,
        ttl_s: Length | None = None,
        time: Time | None = None,
        unit: Unit = "s",
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stage:
        """Combine the records of each key, one after the other, and emit each intermediate result.

        The first record of a key is emitted unchanged. For each later record, `function(previous result, record)` is
        emitted. `key`, `ttl_s`, `time` and `unit` are those of `map_stateful`.
        """
        checked_function(function, "reduce")
        expiry = Expiry(ttl_s, time, unit)
        return self._keyed(Kind.REDUCE, reducing(function), key, None, name, parallelism, expiry)

    def rolling(
        self,
        aggregate: Aggregate,
        *,
        key: Key | None = None,
        ttl_s: Length | None = None,
        time: Time | None = None,
        unit: Unit = "s",
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stage:
        """For each record, emit the aggregate of all records of its key so far: `rolling(aggregates.count(), key=…)`.

        `key`, `ttl_s`, `time` and `unit` are those of `map_stateful`.
        """
        if not isinstance(aggregate, Aggregate):
            raise PlanError(
                f".rolling() has {aggregate!r}, which is not an aggregate",
                next_step="pass one of procession.aggregates, or your own Aggregate",
            )
        expiry = Expiry(ttl_s, time, unit)
        return self._keyed(Kind.ROLLING, aggregate.step, key, aggregate.create, name, parallelism, expiry)

    def distinct(
        self,
        key: Key | None = None,
        *,
        ttl_s: Length | None = None,
        time: Time | None = None,
        unit: Unit = "s",
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stage:
        """Keep the first record of each key.

        All keys are stored. With `ttl_s`, a key that got no record for this many seconds of event time is removed.
        `time` and `unit` are those of `map_stateful`.
        """
        return self._keyed(Kind.DISTINCT, None, key, None, name, parallelism, Expiry(ttl_s, time, unit))

    def window(
        self,
        windows: Windows,
        aggregate: Aggregate,
        *,
        key: Key | None = None,
        time: Time | None = None,
        unit: Unit = "s",
        lateness_s: Length = 0,
        late: Literal["drop", "fire", "oldest", "dead-letter", "update"] = "drop",
        updates_s: Length | None = None,
        early_records: int = 0,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stage:
        """Aggregate the records of each window: per key, or over all records if there is neither `key` nor a `key_by`.

        Each result is a dict with key, start, end, count, value and fired. `value` is the aggregate; `fired` is the
        reason: "end", "early", "late" or "update". A window fires when a record of any key arrives that is `lateness_s`
        past the end of the window. If the stage has several inputs, such a record must arrive from each of them
        (docs/how-to/windows.md).

        Args:
            windows: One of `procession.windows`.
            aggregate: One of `procession.aggregates`, or your own `Aggregate`.
            key: Returns a record's key. Without it, the key is that of `key_by`, if there is one.
            time: Returns a record's event time: an exact number in `unit` since 1970, or a datetime. A float means the
                decimal number that Python prints for it. Without `time`, records have the event time that they were
                sent with.
            unit: Unit of `time`, start and end: "s", "ms", "us" or "ns".
            lateness_s: How long a window waits for late records.
            late: What happens to a record that is later than that. It is counted. Then it is dropped ("drop"), fires a
                window of its own ("fire"), goes into the oldest open window ("oldest"), becomes a dead letter
                ("dead-letter"), or corrects its window ("update"). A correction is emitted together with the result
                that it replaces.
            updates_s: With `late="update"`: how long after its end a window can be corrected, in seconds of event time.
            early_records: Also emit the current result each time that this many further records have arrived.

        Raises:
            PlanError: An argument is not valid, or session windows have an aggregate without `combine`.

        Example:
            >>> from procession import Pipeline, aggregates, windows
            >>> clicks = Pipeline("clicks-per-minute").source(codec="json")
            >>> counts = clicks.window(
            ...     windows.tumbling(60),
            ...     aggregates.count(),
            ...     key=lambda click: click["page"],
            ...     time=lambda click: click["at"],
            ... )
        """
        if not isinstance(windows, Windows) or not isinstance(aggregate, Aggregate):
            raise PlanError(
                f".window() has {windows!r} and {aggregate!r}, which are not windows and an aggregate",
                next_step="pass one of procession.windows and one of procession.aggregates",
            )
        if windows.is_session and aggregate.combine is None:
            raise PlanError(
                "session windows may merge, and this aggregate cannot merge their states",
                next_step="give the Aggregate a `combine`",
            )
        check_updates(windows, late, updates_s)
        for function, what in ((key, "key"), (time, "time")):
            if function is not None:
                checked_function(function, "window", what)
        by = self._pipeline.key_at(self._index, "window") if key is None else key
        kind = Kind.WINDOW if by is None else Kind.WINDOW_BY_KEY
        operator = window_operator(
            windows,
            aggregate,
            by is not None,
            lateness=span(lateness_s, "lateness_s", 0),
            unit=checked_unit(unit),
            late=checked_choice(LateWindowRule, late, "late"),
            early_records=checked_count(early_records, "early_records", "window", EARLY_MAX) if early_records else 0,
            keys=KeyCodec(self._pipeline.types),
            updates=0 if updates_s is None else span(updates_s, "updates_s"),
        )
        node = self._node(kind, None, name, parallelism)
        return self._add(replace(node, key=by, time=time, unit=unit, operator=operator))

    def aggregate(
        self, aggregate: Aggregate, *, key: Key | None = None, name: str | None = None, parallelism: int | None = None
    ) -> Stage:
        """Aggregate all records, or all records of each key, and emit the results when the input has ended.

        The source must end: `source(…, ends=True)`, or run with `--input`. Each result is a dict with key, count and
        value, in the order of keys. Without `key` and without a `key_by` before it, there is one result without a key.
        """
        if not isinstance(aggregate, Aggregate):
            raise PlanError(
                f".aggregate() has {aggregate!r}, which is not an aggregate",
                next_step="pass one of procession.aggregates, or your own Aggregate",
            )
        if key is not None:
            checked_function(key, "aggregate", "key")
        by = self._pipeline.key_at(self._index, "aggregate") if key is None else key
        kind = Kind.AGGREGATE if by is None else Kind.AGGREGATE_BY_KEY
        operator = TotalOperator(aggregate, by is not None, KeyCodec(self._pipeline.types))
        node = self._node(kind, None, name, parallelism)
        return self._add(replace(node, key=by, operator=operator))

    def sort(self, by: Callable[[Any], Any], *, reverse: bool = False, name: str | None = None) -> Stage:
        """Emit all records in ascending order of `by(record)` when the input has ended. Equal records keep their order.

        The records need not fit in memory. The source must end: `source(…, ends=True)`, or run with `--input`.
        """
        checked_function(by, "sort")
        operator = SortOperator(by, checked_flag(reverse, "reverse", "sort"), ValueCodec(self._pipeline.types))
        node = self._node(Kind.SORT, None, name, None)
        return self._add(replace(node, operator=operator))

    def _keyed(
        self,
        kind: Kind,
        step: Step | None,
        key: Key | None,
        initial: Any,
        name: str | None,
        parallelism: int | None,
        expiry: Expiry,
    ) -> Stage:
        returns = STEP_RESULTS.get(kind, StepResult.ONE)
        if returns is not StepResult.FIRST:
            checked_function(step, kind.value)
        by, first = self._key(kind, key), self._initial(kind, initial)
        ttl_s, time, unit, on_evict = expiry
        for function, what in ((time, "time"), (on_evict, "on_evict")):
            if function is not None:
                checked_function(function, kind.value, what)
                if ttl_s is None:
                    raise PlanError(
                        f".{kind.value}() has {what}, but its states never expire",
                        next_step=f"add ttl_s, the seconds that a state lasts, or remove {what}",
                    )
        operator: Operator = KeyedOperator(returns, step, first)
        if ttl_s is not None:
            ttl, keys = span(ttl_s, "ttl_s"), KeyCodec(self._pipeline.types)
            operator = ExpiringState(returns, step, first, ttl, on_evict, keys)
        node = self._node(kind, None, name, parallelism)
        return self._add(replace(node, key=by, time=time, unit=checked_unit(unit), operator=operator))

    def _key(self, kind: Kind, key: Key | None) -> Key | RecordKey:
        """Return the key of a keyed stage: its own, or that of `key_by`. Raises PlanError if there is none."""
        by = self._pipeline.key_at(self._index, kind.value) if key is None else key
        if by is None:
            raise PlanError(
                f".{kind.value}() has no key, and there is no key_by before it",
                next_step=f"write .{kind.value}(…, key=…), or .key_by(…) before it; after a window, a join, an"
                " aggregate, a transform or a stage with its own key, another key_by is needed",
            )
        if not isinstance(by, RecordKey):
            checked_function(by, kind.value, "key")
        return by

    def _initial(self, kind: Kind, initial: Any) -> Callable[[], Any]:
        """Return a function that makes the state of a new key."""
        try:
            return starting_with(initial, ValueCodec(self._pipeline.types))
        except (TypeError, ValueError) as error:
            raise PlanError(
                f"the initial state of .{kind.value}() cannot be stored: {error}",
                next_step="build the state from these types, or pass a function that builds it",
            ) from error

    def _then(self, kind: Kind, function: Callable[..., Any], name: str | None, parallelism: int | None) -> Stage:
        if kind in ASKED and is_asking(function):
            checked_function(function, kind.value)
            return self._add(replace(self._node(kind, function, name, parallelism), is_asking=True))
        checked_of_one(function, kind.value)
        return self._add(self._node(kind, function, name, parallelism))

    def _node(self, kind: Kind, function: Callable[..., Any] | None, name: str | None, parallelism: int | None) -> Node:
        named = checked_name(name, "a stage") if name is not None else ""
        return Node(kind, named, (self._index,), function, parallelism)
