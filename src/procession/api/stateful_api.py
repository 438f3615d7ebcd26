"""Sensitive stages: the words for those whose output depends on the order of their input.

The one rule: as for every stage, each word adds one node and gives the place behind it. Before it `api/stage`, which
has these words among its own; after it `planner/graph`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

from procession.api.joins import Joins
from procession.errors import PlanError
from procession.operators.aggregates import Aggregate
from procession.operators.context import is_asking
from procession.operators.expiry import Expiring, OnEvict
from procession.operators.keyed import reducing, starting_with
from procession.operators.sort import Sorting
from procession.operators.total import Totals
from procession.operators.value_codec import ValueCodec
from procession.operators.window_operator import Windowing
from procession.operators.windows import Late, Length, Windows, span
from procession.planner.graph import Kind, Node
from procession.planner.keyed_spec import Gives, RecordKey, Stateful, Step
from procession.planner.keys import KeyCodec
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
"""Their functions may ask for what a record has beside its value."""

Key = Callable[[Any], Any]
Time = Callable[[Any], float | Decimal | datetime]


class SensitiveStage(Joins):
    """A place to go on from, with the words for stages that keep states."""

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
        """One record in, one out, with something remembered about each key: `function(state, record)` gives the next
        state and what comes out. `initial` is the state of a new key: a value, or a function that makes one. A state of
        None lets the key be forgotten. States are bytes, text, numbers, lists, tuples and dicts of these; they are
        committed with the epoch, and an epoch that is run again begins with the same ones. Without `key`, it is the
        one that `key_by` gave to the records: see there.

        With `ttl_s` a key is forgotten when no record of it has come for so many seconds of event time: that of
        `time(record)` (as in `window`), or the one that it was sent with, by the latest of all records. What
        `on_evict(key, state)` gives then comes out, if it is not None, where the record stands that has shown it."""
        return self._keyed(
            Kind.MAP_STATEFUL, Gives.ONE, function, key, initial, name, parallelism, (ttl_s, time, unit, on_evict)
        )

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
        """Keep a record or not, by what is remembered about its key: as `map_stateful`, with a truth for a result."""
        return self._keyed(
            Kind.FILTER_STATEFUL, Gives.KEPT, function, key, initial, name, parallelism, (ttl_s, time, unit, on_evict)
        )

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
        """One record in, any number out: as `map_stateful`, with records for a result, in their order."""
        return self._keyed(
            Kind.FLAT_MAP_STATEFUL, Gives.MANY, function, key, initial, name, parallelism, (ttl_s, time, unit, on_evict)
        )

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
        """Put the records of a key together, one after the other: the first comes out as it is, every later one as
        `function(what came out before, record)`."""
        checked_function(function, "reduce")
        return self._keyed(
            Kind.REDUCE, Gives.ONE, reducing(function), key, None, name, parallelism, (ttl_s, time, unit, None)
        )

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
        """The aggregate of all records of the key so far, for each record: `rolling(aggregates.count(), key=…)`."""
        if not isinstance(aggregate, Aggregate):
            raise PlanError(
                f".rolling() was given {aggregate!r}, which is no aggregate",
                next_step="give it one of procession.aggregates, or make an Aggregate of your own",
            )
        expiry = (ttl_s, time, unit, None)
        return self._keyed(Kind.ROLLING, Gives.ONE, aggregate.step, key, aggregate.create, name, parallelism, expiry)

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
        """Of the records with one key, the first one in order. Every key is remembered; with `ttl_s`, until no record
        of it has come for so many seconds of event time."""
        return self._keyed(Kind.DISTINCT, Gives.FIRST, None, key, None, name, parallelism, (ttl_s, time, unit, None))

    def window(
        self,
        windows: Windows,
        aggregate: Aggregate,
        *,
        key: Key | None = None,
        time: Time | None = None,
        unit: Unit = "s",
        lateness_s: Length = 0,
        late: Literal["drop", "fire", "oldest", "dead-letter"] = "drop",
        early_records: int = 0,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stage:
        """Put together what falls into a window, for each key or, without `key` and a `key_by` before it, for all
        records. What comes out is a dict: key, start and end, count, value (the aggregate's) and why it fired: "end",
        "early" or "late".

        `time(record)` is a record's event time: a number of `unit` since 1970, exact (a float counts as the decimal
        number that it prints as), or a datetime; without it, the time that it was sent with. Start and end are in
        `unit`, too: "s", "ms", "us" or "ns". A window fires
        when a record has come, of whatever key, that is `lateness_s` behind its end; from each input, if the stage has
        several (docs/windows.md). A record that comes later than that is counted, and dropped ("drop"), set aside
        ("dead-letter"), fires a window of its own ("fire"), or goes into the oldest that is open ("oldest").
        `early_records=n` also lets out every n-th record's result so far."""
        if not isinstance(windows, Windows) or not isinstance(aggregate, Aggregate):
            raise PlanError(
                f".window() was given {windows!r} and {aggregate!r}",
                next_step="give it one of procession.windows and one of procession.aggregates",
            )
        if windows.is_session and aggregate.combine is None:
            raise PlanError(
                "two sessions may turn out to be one, and this aggregate cannot put them together",
                next_step="give the Aggregate a `combine`",
            )
        for function, what in ((key, "key"), (time, "time")):
            if function is not None:
                checked_function(function, "window", what)
        by = self._pipeline.key_at(self._index, "window") if key is None else key
        kind = Kind.WINDOW if by is None else Kind.WINDOW_BY_KEY
        windowing = Windowing(
            windows,
            aggregate,
            by is not None,
            lateness=span(lateness_s, "lateness_s", 0),
            unit=checked_unit(unit),
            late=checked_choice(Late, late, "late"),
            early_records=checked_count(early_records, "early_records", "window", EARLY_MAX) if early_records else 0,
            keys=KeyCodec(self._pipeline.types),
        )
        node = self._node(kind, None, name, parallelism)
        stateful = Stateful(Gives.WINDOWS, windowing=windowing)
        return self._add(replace(node, key=by, time=time, unit=unit, stateful=stateful))

    def aggregate(
        self, aggregate: Aggregate, *, key: Key | None = None, name: str | None = None, parallelism: int | None = None
    ) -> Stage:
        """Put all records together, in their order, or, with `key`, all of each key; when the input has ended, a dict
        comes out for each key, in the order of keys: key, count and value (the aggregate's). Without `key` and a
        `key_by` before it, it is one, without a key. Only for sources that end: `source(…, ends=True)`, or run with
        `--input`."""
        if not isinstance(aggregate, Aggregate):
            raise PlanError(
                f".aggregate() was given {aggregate!r}, which is no aggregate",
                next_step="give it one of procession.aggregates, or make an Aggregate of your own",
            )
        if key is not None:
            checked_function(key, "aggregate", "key")
        by = self._pipeline.key_at(self._index, "aggregate") if key is None else key
        kind = Kind.AGGREGATE if by is None else Kind.AGGREGATE_BY_KEY
        totals = Totals(aggregate, by is not None, KeyCodec(self._pipeline.types))
        node = self._node(kind, None, name, parallelism)
        return self._add(replace(node, key=by, stateful=Stateful(Gives.TOTALS, totals=totals)))

    def sort(self, by: Callable[[Any], Any], *, reverse: bool = False, name: str | None = None) -> Stage:
        """All records by what the function says of each, the least first; those of which it says the same in the order
        in which they came. They come out when the input has ended, and may be more than memory holds. Only for sources
        that end: `source(…, ends=True)`, or run with `--input`."""
        checked_function(by, "sort")
        sorting = Sorting(by, checked_flag(reverse, "reverse", "sort"), ValueCodec(self._pipeline.types))
        node = self._node(Kind.SORT, None, name, None)
        return self._add(replace(node, stateful=Stateful(Gives.SORTED, sorting=sorting)))

    def _keyed(
        self,
        kind: Kind,
        gives: Gives,
        step: Step | None,
        key: Key | None,
        initial: Any,
        name: str | None,
        parallelism: int | None,
        expiry: tuple[Length | None, Time | None, Unit, OnEvict | None],
    ) -> Stage:
        if gives is not Gives.FIRST:
            checked_function(step, kind.value)
        by = self._pipeline.key_at(self._index, kind.value) if key is None else key
        if by is None:
            raise PlanError(
                f".{kind.value}() was given no key, and no key_by stands before it",
                next_step=f"write .{kind.value}(…, key=…), or .key_by(…) before it; windows, joins, totals, transform"
                " and stages with a key of their own need another key_by behind them",
            )
        if not isinstance(by, RecordKey):
            checked_function(by, kind.value, "key")
        try:
            stateful = Stateful(gives, step, starting_with(initial, ValueCodec(self._pipeline.types)))
        except (TypeError, ValueError) as error:
            raise PlanError(
                f"the first state of .{kind.value}() cannot be kept: {error}",
                next_step="make it of such values, or give a function that does",
            ) from error
        ttl_s, time, unit, on_evict = expiry
        for function, what in ((time, "time"), (on_evict, "on_evict")):
            if function is not None:
                checked_function(function, kind.value, what)
                if ttl_s is None:
                    raise PlanError(
                        f".{kind.value}() was given {what}, but its states never expire",
                        next_step=f"give it ttl_s, the seconds that a state lasts, or leave {what} away",
                    )
        if ttl_s is not None:
            ttl, keys = span(ttl_s, "ttl_s"), KeyCodec(self._pipeline.types)
            stateful = replace(stateful, windowing=Expiring(gives, step, stateful.initial, ttl, on_evict, keys))
        node = self._node(kind, None, name, parallelism)
        return self._add(replace(node, key=by, time=time, unit=checked_unit(unit), stateful=stateful))

    def _then(self, kind: Kind, function: Callable[..., Any], name: str | None, parallelism: int | None) -> Stage:
        if kind in ASKED and is_asking(function):
            checked_function(function, kind.value)
            return self._add(replace(self._node(kind, function, name, parallelism), is_asking=True))
        checked_of_one(function, kind.value)
        return self._add(self._node(kind, function, name, parallelism))

    def _node(self, kind: Kind, function: Callable[..., Any] | None, name: str | None, parallelism: int | None) -> Node:
        named = checked_name(name, "a stage") if name is not None else ""
        return Node(kind, named, (self._index,), function, parallelism)
