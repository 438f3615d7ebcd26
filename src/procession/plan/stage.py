"""The stage: a place in a pipeline to go on from.

The one rule: each word adds one node and gives the place behind it. Going on twice from one place makes two branches;
`merge` puts branches together again. Before it `plan/pipeline`; after it `plan/graph`.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from procession.errors import PlanError
from procession.plan.aggregates import Aggregate
from procession.plan.graph import Codec, Framing, Kind, Node, Order
from procession.plan.keyed import reducing, starting_with
from procession.plan.sides import Joining, Side
from procession.plan.stateful import Gives, Stateful, Step
from procession.plan.timed import Windowing
from procession.plan.windows import Late, Windows, nanoseconds
from procession.plan.words import (
    checked_choice,
    checked_count,
    checked_function,
    checked_name,
    checked_seconds,
    checked_target,
)

if TYPE_CHECKING:
    from procession.plan.pipeline import Pipeline

CONCURRENCY = 64
CONCURRENCY_MAX = 10_000
TIMEOUT_S = 60.0
"""How long one call of an asynchronous function may take, unless it is said."""

EARLY_MAX = 1_000_000_000

# Their bytes may hold a newline, so that lines could not be told apart.
BINARY = frozenset({Codec.MSGPACK, Codec.ARROW})


Key = Callable[[Any], str | bytes | int]


class Stage:
    """A place to go on from. `name` is the stage's id: give one, and it stays the same when others are put in."""

    def __init__(self, pipeline: Pipeline, index: int, add: Callable[[Node], Stage]) -> None:
        self._pipeline = pipeline
        self._index = index
        self._add = add

    def map(self, function: Callable[[Any], Any], *, name: str | None = None, parallelism: int | None = None) -> Stage:
        """One record in, one record out."""
        return self._then(Kind.MAP, function, name, parallelism)

    def filter(
        self, predicate: Callable[[Any], bool], *, name: str | None = None, parallelism: int | None = None
    ) -> Stage:
        """Keep the records for which the predicate is true."""
        return self._then(Kind.FILTER, predicate, name, parallelism)

    def flat_map(
        self, function: Callable[[Any], Iterable[Any]], *, name: str | None = None, parallelism: int | None = None
    ) -> Stage:
        """One record in, any number out, in the order in which they are given."""
        return self._then(Kind.FLAT_MAP, function, name, parallelism)

    def map_batches(
        self, function: Callable[[Any], Any], *, name: str | None = None, parallelism: int | None = None
    ) -> Stage:
        """Arrow in, Arrow out: a `RecordBatch` with payload, key, event_time, stream_id, message_id and row comes; what
        goes back is the new payloads, as an Arrow array or as a `RecordBatch` with a column `payload`. How records are
        cut into batches is not part of the promise, so the function must treat each row on its own. `row` numbers the
        batch's rows; a function that drops or adds rows gives it back with them, so that they keep their place."""
        return self._then(Kind.MAP_BATCHES, function, name, parallelism)

    def map_async(
        self,
        function: Callable[[Any], Awaitable[Any]],
        *,
        concurrency: int = CONCURRENCY,
        timeout_s: float = TIMEOUT_S,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stage:
        """One record in, one out, by a coroutine function: for services that answer slowly. At most `concurrency` calls
        are under way in a task, and results come out in the order of the records. A call that raises, or takes longer
        than `timeout_s`, fails the epoch, which is run again: it is never a dead letter."""
        is_asynchronous = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004  (whether it can be called is not what is asked)
        )
        if not is_asynchronous:
            raise PlanError(
                f".map_async() was given {function!r}, which is no coroutine function",
                next_step="write it with `async def`, or use map",
            )
        if not isinstance(timeout_s, int | float) or not timeout_s > 0:
            raise PlanError(f"timeout_s={timeout_s!r} of map_async is no time", next_step="give seconds above 0")
        node = self._node(Kind.MAP_ASYNC, function, name, parallelism)
        limit = checked_count(concurrency, "concurrency", "map_async", CONCURRENCY_MAX)
        return self._add(replace(node, concurrency=limit, timeout_s=float(timeout_s)))

    def key_by(self, key: Callable[[Any], str | bytes | int], *, name: str | None = None) -> Stage:
        """Give each record the key that the function says. Records stay where they are: this is the key that
        `order="key"` is about, and that later stages see."""
        return self._then(Kind.KEY_BY, key, name, None)

    def rebalance(
        self,
        key: Callable[[Any], str | bytes | int] | None = None,
        *,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stage:
        """Deal the records out to tasks anew: evenly, or, with `key`, so that all records of a key are in one task;
        they have that key from here on. What comes behind sees them in order, and so does the sink."""
        if key is not None:
            return self._then(Kind.REBALANCE, key, name, parallelism)
        return self._add(self._node(Kind.REBALANCE, None, name, parallelism))

    def map_stateful(
        self,
        function: Callable[[Any, Any], tuple[Any, Any]],
        *,
        key: Key,
        initial: Any = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stage:
        """One record in, one out, with something remembered about each key: `function(state, record)` gives the next
        state and what comes out. `initial` is the state of a new key: a value, or a function that makes one. A state of
        None lets the key be forgotten. States are bytes, text, numbers, lists, tuples and dicts of these; they are
        committed with the epoch, and an epoch that is run again begins with the same ones."""
        return self._keyed(Kind.MAP_STATEFUL, Gives.ONE, function, key, initial, name, parallelism)

    def filter_stateful(
        self,
        function: Callable[[Any, Any], tuple[Any, bool]],
        *,
        key: Key,
        initial: Any = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stage:
        """Keep a record or not, by what is remembered about its key: as `map_stateful`, with a truth for a result."""
        return self._keyed(Kind.FILTER_STATEFUL, Gives.KEPT, function, key, initial, name, parallelism)

    def flat_map_stateful(
        self,
        function: Callable[[Any, Any], tuple[Any, Iterable[Any]]],
        *,
        key: Key,
        initial: Any = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stage:
        """One record in, any number out: as `map_stateful`, with records for a result, in their order."""
        return self._keyed(Kind.FLAT_MAP_STATEFUL, Gives.MANY, function, key, initial, name, parallelism)

    def reduce(
        self,
        function: Callable[[Any, Any], Any],
        *,
        key: Key,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stage:
        """Put the records of a key together, one after the other: the first comes out as it is, every later one as
        `function(what came out before, record)`."""
        checked_function(function, "reduce")
        return self._keyed(Kind.REDUCE, Gives.ONE, reducing(function), key, None, name, parallelism)

    def rolling(
        self, aggregate: Aggregate, *, key: Key, name: str | None = None, parallelism: int | None = None
    ) -> Stage:
        """The aggregate of all records of the key so far, for each record: `rolling(aggregates.count(), key=…)`."""
        if not isinstance(aggregate, Aggregate):
            raise PlanError(
                f".rolling() was given {aggregate!r}, which is no aggregate",
                next_step="give it one of procession.aggregates, or make an Aggregate of your own",
            )
        return self._keyed(Kind.ROLLING, Gives.ONE, aggregate.step, key, aggregate.create, name, parallelism)

    def distinct(self, key: Key, *, name: str | None = None, parallelism: int | None = None) -> Stage:
        """Of the records with one key, the first one in order. Every key is remembered."""
        return self._keyed(Kind.DISTINCT, Gives.FIRST, None, key, None, name, parallelism)

    def window(
        self,
        windows: Windows,
        aggregate: Aggregate,
        *,
        key: Key | None = None,
        time: Callable[[Any], float] | None = None,
        lateness_s: float = 0.0,
        late: Literal["drop", "fire", "oldest"] = "drop",
        early_records: int = 0,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stage:
        """Put together what falls into a window, for each key or, without `key`, for all records. What comes out is a
        dict: key, start and end (seconds), count, value (the aggregate's) and why it fired: "end", "early" or "late".

        `time(record)` is a record's event time in seconds; without it, the time that it was sent with. A window fires
        when a record has come, of whatever key, that is `lateness_s` behind its end. A record that comes later than
        that is dropped, fires a window of its own ("fire"), or goes into the oldest that is open ("oldest").
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
        kind = Kind.WINDOW if key is None else Kind.WINDOW_BY_KEY
        windowing = Windowing(
            windows,
            aggregate,
            key is not None,
            lateness=nanoseconds(checked_seconds(lateness_s, "lateness_s", "window")),
            late=checked_choice(Late, late, "late"),
            early_records=checked_count(early_records, "early_records", "window", EARLY_MAX) if early_records else 0,
        )
        node = self._node(kind, None, name, parallelism)
        return self._add(replace(node, key=key, time=time, stateful=Stateful(Gives.WINDOWS, windowing=windowing)))

    def hash_join(
        self,
        side: Side,
        *,
        key: Key,
        join: Callable[..., Any],
        and_side: Side | None = None,
        and_key: Key | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stage:
        """Look each record up in a table (`procession.sides`): `join(record, row)` comes out, where the record stood,
        for each row that is known by `key(record)`, in the order of the table; `join(record, None)` if there is none.
        With a second side, by `and_side` and `and_key`, it is `join(record, row, other row)`. `join` must not change a
        row."""
        return self._joined(False, side, key, join, and_side, and_key, name, parallelism)

    def inner_hash_join(
        self,
        side: Side,
        *,
        key: Key,
        join: Callable[..., Any],
        and_side: Side | None = None,
        and_key: Key | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stage:
        """As `hash_join`; but a record that has no row in each of the sides is left out."""
        return self._joined(True, side, key, join, and_side, and_key, name, parallelism)

    def merge(self, *others: Stage, name: str | None = None) -> Stage:
        """Put branches or sources together, each in its own order: records of different ingress records in the order of
        those, records of one in the order in which the branches were written."""
        places = [self._index]
        for other in others:
            if not isinstance(other, Stage) or other._pipeline is not self._pipeline:
                raise PlanError(
                    f".merge() was given {other!r}, which is no stage of pipeline {self._pipeline.name!r}",
                    next_step="merge stages of one pipeline",
                )
            if other._index in places:
                raise PlanError(
                    ".merge() was given the same stage twice: each of its records would come out twice",
                    next_step="write flat_map(lambda record: [record, record]) if that is what is meant",
                )
            places.append(other._index)
        if len(places) < 2:
            raise PlanError(".merge() was given nothing to merge with", next_step="give it another stage")
        node = self._node(Kind.MERGE, None, name, None)
        return self._add(replace(node, parents=tuple(places)))

    def peek(self, function: Callable[[Any], object], *, name: str | None = None) -> Stage:
        """Call the function with each record, for what it does; the record goes on as it is."""
        return self._then(Kind.PEEK, function, name, None)

    def transform(
        self, function: Callable[[Any], Any], *, name: str | None = None, parallelism: int | None = None
    ) -> Stage:
        """Spark SQL: a DataFrame of an epoch's records comes (payload, key, event_time, stream_id, message_id), and a
        DataFrame with a `payload` of text or bytes goes back, in any order. The columns that begin with `order_` are
        the records' order key: carry them along, and each row is put in its place. Rows that were made of one record
        come in the order of a column `child`, if there is one, else in that of their payloads. What an epoch holds is
        not part of the promise, so treat each row on its own: no aggregates. It costs two more jobs in each epoch."""
        return self._then(Kind.TRANSFORM, function, name, parallelism)

    def sink(
        self,
        name: str,
        *,
        to: str,
        codec: Literal["bytes", "text", "json", "msgpack", "arrow"] = "bytes",
        framing: Literal["lines", "raw"] | None = None,
        order: Literal["total", "key", "stream", "none"] | None = None,
        idempotent: bool = False,
    ) -> Stage:
        """Where records go: `to="file:DIR"` (a file sink that is started with the pipeline), or the `HOST:PORT` of a
        sink that runs already. `codec` is what records are made into; "bytes" and "text" take `str` and `bytes`.
        `framing="lines"` puts a newline after each record, `"raw"` nothing; the latter is what msgpack and Arrow need.
        `order` may ask for less, or more, than the pipeline does.

        `idempotent=True`: no two-phase commit; the sink shows what it gets, and after a crash gets the same positions
        again with the same bytes. Only for a pipeline that is declared deterministic."""
        if idempotent:
            self._pipeline.check_idempotent(name)
        chosen: Codec = checked_choice(Codec, codec, "codec")
        if framing is None:
            framing = "raw" if chosen in BINARY else "lines"
        elif framing == "lines" and chosen in BINARY:
            raise PlanError(
                f'sink {name!r} has codec={codec!r} and framing="lines", but such records may hold newlines',
                next_step='leave framing="lines" away: such records tell their own end',
            )
        self._add(
            Node(
                Kind.SINK,
                checked_name(name, "a sink"),
                (self._index,),
                codec=chosen,
                framing=checked_choice(Framing, framing, "framing"),
                target=checked_target(to, name),
                order=None if order is None else checked_choice(Order, order, "order"),
                is_idempotent=idempotent,
            )
        )
        return self

    def _keyed(
        self,
        kind: Kind,
        gives: Gives,
        step: Step | None,
        key: Key,
        initial: Any,
        name: str | None,
        parallelism: int | None,
    ) -> Stage:
        if gives is not Gives.FIRST:
            checked_function(step, kind.value)
        checked_function(key, kind.value, "key")
        try:
            stateful = Stateful(gives, step, starting_with(initial))
        except TypeError as error:
            raise PlanError(
                f"the first state of .{kind.value}() cannot be kept: {error}",
                next_step="make it of such values, or give a function that does",
            ) from error
        return self._add(replace(self._node(kind, None, name, parallelism), key=key, stateful=stateful))

    def _joined(
        self,
        is_inner: bool,
        side: Side,
        key: Key,
        join: Callable[..., Any],
        and_side: Side | None,
        and_key: Key | None,
        name: str | None,
        parallelism: int | None,
    ) -> Stage:
        pairs: list[tuple[Any, Any]] = [(side, key), *([] if and_side is None else [(and_side, and_key)])]
        for one, of_record in pairs:
            if not isinstance(one, Side):
                raise PlanError(f"a stream cannot be joined with {one!r}", next_step="give it one of procession.sides")
            checked_function(of_record, "hash_join", "key")
        checked_function(join, "hash_join", "join")
        joining: Any = Joining(tuple(pairs), join, is_inner)
        return self._then(Kind.HASH_JOIN, joining, name, parallelism)

    def _then(self, kind: Kind, function: Callable[..., Any], name: str | None, parallelism: int | None) -> Stage:
        checked_function(function, kind.value)
        return self._add(self._node(kind, function, name, parallelism))

    def _node(self, kind: Kind, function: Callable[..., Any] | None, name: str | None, parallelism: int | None) -> Node:
        named = checked_name(name, "a stage") if name is not None else ""
        return Node(kind, named, (self._index,), function, parallelism)
