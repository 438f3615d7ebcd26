"""Joins: the methods of a stage that combine its records with those of a table or of another stream.

Invariant: as in `api/stage`, each method adds nodes to the graph and returns the last one as a stage.
`api/stateful_api` inherits these methods. At run time, `operators/tables` and `operators/stream_join` perform the
joins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

from procession.errors import PlanError
from procession.operators.stream_join import HELD_MAX, LatePairRule, Sided, StreamJoin, as_left, as_right
from procession.operators.tables import SideTable, TableJoin
from procession.operators.windows import Length, span
from procession.planner.graph import Kind, Node
from procession.planner.keys import KeyCodec, RecordKey
from procession.planner.validation import (
    checked_call,
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
    from procession.api.stateful_api import Key

HELD_LARGEST = 100_000_000

Time = Callable[[Any], Any]


class Joins:
    """The join methods of `Stage`."""

    _pipeline: Pipeline
    _index: int
    _add: Callable[[Node], Stage]

    def join(
        self,
        other: Stage,
        *,
        within_s: Length,
        join: Callable[[Any, Any], Any],
        key: Key | None = None,
        left_key: Key | None = None,
        right_key: Key | None = None,
        time: Time | None = None,
        left_time: Time | None = None,
        right_time: Time | None = None,
        unit: Unit = "s",
        lateness_s: Length = 0,
        outer: bool = False,
        held_max: int = HELD_MAX,
        late: Literal["meet", "drop", "dead-letter"] = "meet",
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stage:
        """Join with another stage or source of the same pipeline: emit `join(left, right)` for each pair.

        The records of a pair have the same key, and event times at most `within_s` apart. A result has the position of
        the later record. Several pairs of one record are emitted in the order of the partners. A record is held until
        each input that has not ended has sent a record, of any key, that is `within_s` plus `lateness_s` later
        (docs/how-to/joins.md).

        Args:
            other: The right side.
            within_s: Maximum distance in event time, in seconds.
            join: Takes a left and a right record, and returns the result. It receives copies and may change them.
            key: Returns the key, for both sides. Without keys, the key is that of `key_by` on both sides.
            left_key: Returns the key of the left side only. Needs `right_key`.
            right_key: Returns the key of the right side only.
            time: Returns the event time, for both sides, as in `window`. Without it, records have the event time that
                they were sent with.
            left_time: Returns the event time of the left side only. Needs `right_time`.
            right_time: Returns the event time of the right side only.
            unit: Unit of the times: "s", "ms", "us" or "ns".
            lateness_s: Additional seconds for which records are held, so that late partners can still arrive.
            outer: Emit `join(left, None)` for a left record without a partner, once its time has passed.
            held_max: Maximum number of records held per key. The pipeline stops if a key has more.
            late: What happens to a record that arrives even later. It is counted. Then it is paired with records that
                are still held ("meet"), dropped ("drop"), or becomes a dead letter ("dead-letter").

        Raises:
            PlanError: The other stage belongs to another pipeline, or there is no key.
        """
        self._check_side(other, "join", "other")
        checked_function(join, "join", "join")
        keys = sided_key(self, other, "join", of_both("join", key, left_key, right_key, "key"))
        operator = StreamJoin(
            span(within_s, "within_s"),
            join,
            is_outer=checked_flag(outer, "outer", "join"),
            lateness=span(lateness_s, "lateness_s", 0),
            held_max=checked_count(held_max, "held_max", "join", HELD_LARGEST),
            late=checked_choice(LatePairRule, late, "late"),
            keys=KeyCodec(self._pipeline.types),
        )
        named = self._named("join", name, 4)
        both = self._both(other, named)
        return self._add(
            Node(
                Kind.JOIN,
                named,
                (both._index,),
                parallelism=parallelism,
                key=keys,
                time=of_both("join", time, left_time, right_time, "time"),
                unit=checked_unit(unit),
                operator=operator,
                is_named=name is not None,
            )
        )

    def join_all(
        self,
        *others: Stage,
        within_s: Length,
        join: Callable[..., Any],
        key: Key,
        time: Time,
        unit: Unit = "s",
        lateness_s: Length = 0,
        held_max: int = HELD_MAX,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stage:
        """Join several stages: emit `join(first, second, third, …)` for each combination with the same key.

        In a combination, the event time of each record is at most `within_s` from that of the first record. A
        combination has the position of its last record. The plan has one `join` after the other. Each join allows more
        lateness than the previous join, because combinations come later than their first record (docs/how-to/joins.md).

        Args:
            others: The other stages or sources of the same pipeline, in the order of the arguments of `join`.
            within_s: Maximum distance in event time from the first record, in seconds.
            join: Takes a record of each stage, and returns the result. It receives copies and may change them.
            key: Returns the key of a record of any of the stages.
            time: Returns the event time of a record of any of the stages, as in `window`.
            unit: Unit of the times: "s", "ms", "us" or "ns".
            lateness_s: Additional seconds for which records are held, so that late partners can still arrive.
            held_max: Maximum number of records or combinations held per key. The pipeline stops if a key has more.

        Raises:
            PlanError: There is no other stage, a stage belongs to another pipeline, or a function has other arguments.
        """
        if not others:
            raise PlanError(".join_all() has no other stage", next_step="pass the stages to join with")
        checked_call(join, "join_all", "join", ("record",) * (1 + len(others)))
        for function, what in ((key, "key"), (time, "time")):
            checked_of_one(function, "join_all", what)
        within, lateness = span(within_s, "within_s"), span(lateness_s, "lateness_s", 0)
        named = f"join-all-{self._pipeline.size}" if name is None else checked_name(name, "a stage")
        first = self._add(Node(Kind.MAP, f"{named}-first", (self._index,), _alone))
        for number, other in enumerate(others):
            first._check_side(other, "join_all", "others")
            # A record is paired at most `within` after the watermark has passed it. Its partner may be up to `within`
            # ahead of the watermark. So combinations may be out of order by the sum of both.
            first = first.join(
                other,
                within_s=_seconds(within),
                join=_with_next,
                left_key=OfFirst(key),
                right_key=key,
                left_time=OfFirst(time),
                right_time=time,
                unit=unit,
                lateness_s=_seconds(lateness + 2 * number * within),
                held_max=held_max,
                name=f"{named}-{number + 1}",
                parallelism=parallelism,
            )
        return self._add(Node(Kind.MAP, named, (first._index,), OfAll(join), is_named=name is not None))

    def _check_side(self, other: Any, word: str, what: str) -> None:
        """Raise PlanError unless the second stream is a stage of the same pipeline."""
        if not isinstance(other, Joins) or other._pipeline is not self._pipeline:
            table = ", or a table of procession.tables" if word == "as_of" else "; for a table use hash_join"
            step = "pass pipeline.clock()" if what == "clock" else f"pass a stage or source of the same pipeline{table}"
            raise PlanError(
                f".{word}() has {what}={other!r}, which is not a stage of pipeline {self._pipeline.name!r}",
                next_step=step,
            )

    def _named(self, word: str, name: str | None, stages: int) -> str:
        """Return the name of the last stage that a method adds, if it adds this many stages."""
        if name is not None:
            return checked_name(name, "a stage")
        return f"{word.replace('_', '-')}-{self._pipeline.size + stages - 1}"

    def _both(self, other: Joins, named: str) -> Stage:
        """Merge the records of both sides into one order, each marked with its side. Adds three stages."""
        left = self._add(Node(Kind.MAP, f"{named}-left", (self._index,), as_left))
        right = self._add(Node(Kind.MAP, f"{named}-right", (other._index,), as_right))
        return self._add(Node(Kind.MERGE, f"{named}-both", (left._index, right._index)))

    def hash_join(
        self,
        side: SideTable,
        *,
        key: Key,
        join: Callable[..., Any],
        and_side: SideTable | None = None,
        and_key: Key | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stage:
        """Look up each record in a table (`procession.tables`): emit `join(record, row)` for each matching row.

        Rows match if their key equals `key(record)`. The results have the order of the table's rows. If no row matches,
        `join(record, None)` is emitted. With a second table, `and_side` and `and_key`, the call is `join(record, row,
        other_row)`. `join` receives copies of rows and may change them.

        Raises:
            PlanError: A side is not a table.

        Example:
            >>> from procession import Pipeline, tables
            >>> customers = tables.of_rows([{"id": 7, "name": "Anna"}], by="id")
            >>> orders = Pipeline("named-orders").source(codec="json")
            >>> named = orders.hash_join(
            ...     customers, key=lambda order: order["customer"], join=lambda order, row: {**order, **(row or {})}
            ... )
        """
        return self._joined(False, side, key, join, and_side, and_key, name, parallelism)

    def inner_hash_join(
        self,
        side: SideTable,
        *,
        key: Key,
        join: Callable[..., Any],
        and_side: SideTable | None = None,
        and_key: Key | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stage:
        """Look up each record in a table like `hash_join`, but drop a record without a match."""
        return self._joined(True, side, key, join, and_side, and_key, name, parallelism)

    def _joined(
        self,
        is_inner: bool,
        side: SideTable,
        key: Key,
        join: Callable[..., Any],
        and_side: SideTable | None,
        and_key: Key | None,
        name: str | None,
        parallelism: int | None,
    ) -> Stage:
        pairs: list[tuple[Any, Any]] = [(side, key), *([] if and_side is None else [(and_side, and_key)])]
        for table, of_record in pairs:
            if not isinstance(table, SideTable):
                raise PlanError(
                    f"a stream cannot be joined with {table!r}, which is not a table",
                    next_step="pass one of procession.tables; for another stream use join",
                )
            checked_function(of_record, "hash_join", "key")
        checked_function(join, "hash_join", "join")
        function: Any = TableJoin(tuple(pairs), join, is_inner)
        named = checked_name(name, "a stage") if name is not None else ""
        return self._add(Node(Kind.HASH_JOIN, named, (self._index,), function, parallelism))


@dataclass(frozen=True)
class OfFirst:
    """Calls a function of one record with the first record of a combination."""

    function: Callable[[Any], Any]

    def __call__(self, records: tuple[Any, ...]) -> Any:
        return self.function(records[0])


@dataclass(frozen=True)
class OfAll:
    """Calls a function of several records with a combination."""

    function: Callable[..., Any]

    def __call__(self, records: tuple[Any, ...]) -> Any:
        return self.function(*records)


def _alone(value: Any) -> tuple[Any, ...]:
    return (value,)


def _with_next(records: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    return (*records, value)


def _seconds(ns: int) -> Decimal:
    return Decimal(ns).scaleb(-9)


def sided_key(left: Joins, right: Joins, word: str, keys: Sided | None) -> Sided | RecordKey:
    """Return the key of both sides: the given key, or the keys set by `key_by`. Raises PlanError if there is none."""
    if keys is not None:
        return keys
    sides = [stage._pipeline.key_at(stage._index, word) for stage in (left, right)]
    if None in sides:
        raise PlanError(
            f".{word}() has no key",
            next_step="pass key= for both sides, or left_key= and right_key=; or write key_by before both",
        )
    return RecordKey(tuple(function for side in sides if side is not None for function in side.given_by))


def of_both(word: str, both: Any, left: Any, right: Any, what: str) -> Sided | None:
    """Combine the functions of the two sides. Returns None if there are no functions."""
    given = {what: both, f"left_{what}": left, f"right_{what}": right}
    for name, function in given.items():
        if function is not None:
            checked_function(function, word, name)
    named = [name for name, function in given.items() if function is not None]
    if not named:
        return None
    if both is not None and len(named) == 1:
        return Sided(both, both)
    if both is None and len(named) == 2:
        return Sided(left, right)
    raise PlanError(
        f".{word}() has only {' and '.join(f'{name}=' for name in named)}",
        next_step=f"pass {what}= for both sides, or left_{what}= and right_{what}=",
    )
