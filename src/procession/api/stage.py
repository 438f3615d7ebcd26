"""The stage: a place in a pipeline to go on from.

The one rule: each word adds one node and gives the place behind it. Going on twice from one place makes two branches;
`merge` puts branches together again. Before it `api/pipeline`; after it `planner/graph`.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Any, Literal

from procession.api.stateful_api import Key, SensitiveStage, Time
from procession.errors import PlanError
from procession.planner.graph import Codec, Framing, Kind, Node, Order
from procession.planner.validation import (
    checked_choice,
    checked_count,
    checked_name,
    checked_of_one,
    checked_target,
    checked_unit,
)
from procession.times import Unit

CONCURRENCY = 64
CONCURRENCY_MAX = 10_000
TIMEOUT_S = 60.0
"""How long one call of an asynchronous function may take, unless it is said."""

CONNECTIONS_MAX = 64
"""As many outputs a sink may be written in."""

# Their bytes may hold a newline, so that lines could not be told apart.
BINARY = frozenset({Codec.MSGPACK, Codec.ARROW})


class Stage(SensitiveStage):
    """A place to go on from. `name` is the stage's id: give one, and it stays the same when others are put in."""

    def map(self, function: Callable[..., Any], *, name: str | None = None, parallelism: int | None = None) -> Stage:
        """One record in, one record out. The functions of `map`, `filter` and `flat_map` are given the value; one with
        a second parameter that is annotated with `procession.Context` is also given the record's key, event time and
        stream: `def told(value, context: Context)`."""
        return self._then(Kind.MAP, function, name, parallelism)

    def filter(
        self, predicate: Callable[..., bool], *, name: str | None = None, parallelism: int | None = None
    ) -> Stage:
        """Keep the records for which the predicate is true."""
        return self._then(Kind.FILTER, predicate, name, parallelism)

    def flat_map(
        self, function: Callable[..., Iterable[Any]], *, name: str | None = None, parallelism: int | None = None
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

    def key_by(self, key: Key, *, name: str | None = None, parallelism: int | None = None) -> Stage:
        """Give each record the key that the function says. Records stay where they are: this is the key that
        `order="key"` is about, and that later stages see.

        Keyed stages behind it that have no `key=` go by this key: `map_stateful`, `reduce`, `rolling`, `distinct` and
        the like, `window`, `aggregate` and `join`. A record keeps its key when `map` or another stage changes its
        value, and records that are made of it have it, too; until another `key_by`, a stage with a key of its own, or
        one that makes records of its own: a window, an aggregate, a join, a sort, a transform."""
        return self._then(Kind.KEY_BY, key, name, parallelism)

    def add_timestamps(
        self, time: Time, *, unit: Unit = "s", name: str | None = None, parallelism: int | None = None
    ) -> Stage:
        """Give each record the event time that the function says, instead of the one that it was sent with: a number of
        `unit` ("s", "ms", "us" or "ns") since 1970, or a datetime. Records stay where they are: this is the time that
        later windows go by, and that later stages see."""
        checked_of_one(time, "add_timestamps")
        node = self._node(Kind.ADD_TIMESTAMPS, time, name, parallelism)
        return self._add(replace(node, unit=checked_unit(unit)))

    def rebalance(
        self,
        key: Key | None = None,
        *,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stage:
        """Deal the records out to tasks anew: evenly, or, with `key`, so that all records of a key are in one task;
        they have that key from here on. What comes behind sees them in order, and so does the sink."""
        if key is not None:
            return self._then(Kind.REBALANCE, key, name, parallelism)
        return self._add(self._node(Kind.REBALANCE, None, name, parallelism))

    def merge(self, *others: Stage, name: str | None = None, parallelism: int | None = None) -> Stage:
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
        node = self._node(Kind.MERGE, None, name, parallelism)
        return self._add(replace(node, parents=tuple(places)))

    def peek(
        self, function: Callable[[Any], object], *, name: str | None = None, parallelism: int | None = None
    ) -> Stage:
        """Call the function with each record, for what it does; the record goes on as it is."""
        return self._then(Kind.PEEK, function, name, parallelism)

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
        codec: Literal["bytes", "text", "json", "msgpack", "arrow"] | None = None,
        framing: Literal["lines", "raw"] | None = None,
        order: Literal["total", "key", "stream", "none"] | None = None,
        connections: int = 1,
        idempotent: bool = False,
        knows_workers_left: bool = False,
    ) -> Stage:
        """Where records go: `to="file:DIR"` (a file sink that is started with the pipeline), or the `HOST:PORT` of a
        sink that runs already. `codec` is what records are made into; "bytes" and "text" take `str` and `bytes`.
        Without it, a sink has the codec of the source that its records come from; behind `map_batches` and
        `transform`, whose functions give payloads, "bytes".
        `framing="lines"` puts a newline after each record, `"raw"` nothing; the latter is what msgpack and Arrow need.
        `order` may ask for less, or more, than the pipeline does.

        `connections=n`: n outputs, written in parallel and committed together; each takes its share of the keys or
        streams, whichever the order is promised for, and a key or stream is always in the same one. The number stays
        as it was when the pipeline was first run.

        `idempotent=True`: no two-phase commit; the sink shows what it gets, and after a crash gets the same positions
        again with the same bytes. Only for a pipeline that is declared deterministic.

        `knows_workers_left=True`: a sink given by its address is told of gateways that leave, as file sinks are. Some
        sinks of others die of that word, so it must be asked for."""
        if idempotent:
            self._pipeline.check_idempotent(name)
        chosen: Codec = (
            self._pipeline.codec_at(self._index, name) if codec is None else checked_choice(Codec, codec, "codec")
        )
        if framing is None:
            framing = "raw" if chosen in BINARY else "lines"
        elif framing == "lines" and chosen in BINARY:
            raise PlanError(
                f'sink {name!r} has codec="{chosen.value}" and framing="lines", but such records may hold newlines',
                next_step='leave framing="lines" away: such records tell their own end'
                + (', or say what is written: sink(…, codec="text")' if codec is None else ""),
            )
        level: Order = self._pipeline.order if order is None else checked_choice(Order, order, "order")
        if checked_count(connections, "connections", f"sink {name!r}", CONNECTIONS_MAX) > 1 and level is Order.TOTAL:
            raise PlanError(
                f'sink {name!r} has {connections} connections and order="total", but one sequence cannot be written'
                " over several: nobody could tell which of two records in two outputs came first",
                next_step='ask for less, as sink(…, order="key") or "stream", and each key or stream is in order in one'
                " of the outputs; or leave connections away, and one output has all records in order",
                stage=name,
            )
        self._add(
            Node(
                Kind.SINK,
                checked_name(name, "a sink"),
                (self._index,),
                codec=chosen,
                is_codec_inherited=codec is None,
                framing=checked_choice(Framing, framing, "framing"),
                target=checked_target(to, name),
                order=None if order is None else level,
                connections=connections,
                is_idempotent=idempotent,
                knows_workers_left=knows_workers_left,
            )
        )
        return self
