"""The stage: a point in a pipeline, from which the pipeline continues.

Invariant: each method adds one node to `planner/graph` and returns the stage for it. Two calls on one stage make two
branches; `merge` joins branches.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Any, Literal

from procession.api.matches import Matches
from procession.api.pieces import Pieces
from procession.api.side_streams import SideStreams
from procession.api.splits import Splits
from procession.api.stateful_api import Key, Time
from procession.api.timers_api import Timers
from procession.errors import PlanError
from procession.planner.connector import Connector, Packing
from procession.planner.connector_registry import sink_of
from procession.planner.graph import BINARY, Kind, Node, Order, PayloadCodec, SinkFraming
from procession.planner.validation import (
    checked_choice,
    checked_count,
    checked_function,
    checked_name,
    checked_of_one,
    checked_unit,
)
from procession.times import Unit

CONCURRENCY = 64
CONCURRENCY_MAX = 10_000
TIMEOUT_S = 60.0
"""Default time limit of one call of an asynchronous function."""

CONNECTIONS_MAX = 64
"""Maximum number of connections of a sink, which is also the maximum number of its outputs."""
LANES_MAX = 1024
"""Maximum number of lanes of a sink."""


class Stage(Timers, SideStreams, Matches, Splits, Pieces):
    """A point in a pipeline. Its methods add a stage and return it, so calls can be chained.

    `Pipeline.source` returns the first stage. Two calls on the same stage make two branches. Each method that adds a
    stage has two further arguments:

    - `name`: the name of the stage. A stateful stage with a name keeps its state when other stages are added. It is
      unique among stages, sources included. A sink may be named like a stage.
    - `parallelism`: the number of its tasks. None: that of the pipeline.

    Example:
        >>> from procession import Pipeline
        >>> lines = Pipeline("words").source(codec="text")
        >>> words = lines.flat_map(str.split)
        >>> long = words.filter(lambda word: len(word) > 4)
        >>> _ = words.sink("all", to="file:output"), long.sink("long", to="file:output")
    """

    def map(self, function: Callable[..., Any], *, name: str | None = None, parallelism: int | None = None) -> Stage:
        """Replace each record by the function's result.

        Args:
            function: Takes a record's value and returns the new value. The functions of `map`, `filter` and `flat_map`
                may have a second parameter that is annotated with `procession.Context`. They then also receive the
                record's key, event time and stream: `def tag(value, context: Context)`.

        Raises:
            PlanError: The function cannot be called with one argument.
        """
        return self._then(Kind.MAP, function, name, parallelism)

    def filter(
        self, predicate: Callable[..., bool], *, name: str | None = None, parallelism: int | None = None
    ) -> Stage:
        """Keep the records for which the predicate returns true."""
        return self._then(Kind.FILTER, predicate, name, parallelism)

    def flat_map(
        self, function: Callable[..., Iterable[Any]], *, name: str | None = None, parallelism: int | None = None
    ) -> Stage:
        """Replace each record by any number of records, in the order in which the function returns them."""
        return self._then(Kind.FLAT_MAP, function, name, parallelism)

    def map_batches(
        self, function: Callable[[Any], Any], *, name: str | None = None, parallelism: int | None = None
    ) -> Stage:
        """Process records as Arrow columns.

        How records are divided into batches is not fixed, so the function must treat each row independently.

        Args:
            function: Takes a `RecordBatch` with the columns payload, key, event_time, stream_id, message_id and row.
                Returns the new payloads, as an Arrow array or as a `RecordBatch` with a column `payload`. `row` numbers
                the rows of the batch. A function that drops or adds rows must return the column `row` too, so that
                each row keeps its position.
        """
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
        """Replace each record by the result of a coroutine function, for calls of slow services.

        Results have the order of the records. A call that raises or times out fails the epoch, which is then run again.
        The record never becomes a dead letter.

        Args:
            function: An `async def` function of one record.
            concurrency: Maximum number of calls in flight per task.
            timeout_s: Time limit of one call.

        Raises:
            PlanError: The function is not a coroutine function, or a number is out of range.
        """
        is_asynchronous = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004  (not a test of whether it is callable)
        )
        if not is_asynchronous:
            raise PlanError(
                f".map_async() has {function!r}, which is not a coroutine function",
                next_step="define it with `async def`, or use map",
            )
        if not isinstance(timeout_s, int | float) or not timeout_s > 0:
            raise PlanError(f"timeout_s={timeout_s!r} of map_async is not valid", next_step="pass seconds above 0")
        node = self._node(Kind.MAP_ASYNC, function, name, parallelism)
        limit = checked_count(concurrency, "concurrency", "map_async", CONCURRENCY_MAX)
        return self._add(replace(node, concurrency=limit, timeout_s=float(timeout_s)))

    def key_by(self, key: Key, *, name: str | None = None, parallelism: int | None = None) -> Stage:
        """Set each record's key. Records do not move to other tasks.

        `order="key"` refers to this key. Keyed stages without `key=` use it, too: `map_stateful`, `reduce`, `rolling`,
        `distinct`, `window`, `aggregate`, `join` and others. A record keeps its key when `map` or another stage changes
        its value. Records made from it have the same key. The key is valid until the next `key_by`, a stage with its
        own `key=`, or a stage that emits new records: a window, an aggregate, a join, a sort or a transform.
        """
        return self._then(Kind.KEY_BY, key, name, parallelism)

    def add_timestamps(
        self, time: Time, *, unit: Unit = "s", name: str | None = None, parallelism: int | None = None
    ) -> Stage:
        """Set each record's event time. It replaces the time that the record was sent with, and later windows and joins
        use it.

        Args:
            time: Returns the event time: a number in `unit` since 1970, or a datetime.
            unit: "s", "ms", "us" or "ns".
        """
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
        """Distribute the records over tasks again. With `key`, all records of a key are in one task; without it, the
        records are distributed evenly.

        With `key`, records have this key from here on. Later stages and sinks still receive the records in order.
        """
        if key is not None:
            return self._then(Kind.REBALANCE, key, name, parallelism)
        return self._add(self._node(Kind.REBALANCE, None, name, parallelism))

    def merge(self, *others: Stage, name: str | None = None, parallelism: int | None = None) -> Stage:
        """Join branches or sources. Each branch keeps its own order.

        Results of different input records have the order of these input records. Results of one input record have the
        order in which the branches are passed.

        Raises:
            PlanError: A stage belongs to another pipeline, or is passed twice.
        """
        places = [self._index]
        for other in others:
            if not isinstance(other, Stage) or other._pipeline is not self._pipeline:
                raise PlanError(
                    f".merge() has {other!r}, which is not a stage of pipeline {self._pipeline.name!r}",
                    next_step="merge stages of one pipeline",
                )
            if other._index in places:
                raise PlanError(
                    ".merge() was given the same stage twice: each of its records would be emitted twice",
                    next_step="to emit records twice, use flat_map(lambda record: [record, record])",
                )
            places.append(other._index)
        if len(places) < 2:
            raise PlanError(".merge() has no other stage", next_step="pass the stage to merge with")
        node = self._node(Kind.MERGE, None, name, parallelism)
        return self._add(replace(node, parents=tuple(places)))

    def peek(
        self, function: Callable[[Any], object], *, name: str | None = None, parallelism: int | None = None
    ) -> Stage:
        """Call the function with each record, and pass the record on unchanged."""
        return self._then(Kind.PEEK, function, name, parallelism)

    def transform(
        self, function: Callable[[Any], Any], *, name: str | None = None, parallelism: int | None = None
    ) -> Stage:
        """Process the records of an epoch with Spark SQL.

        The function receives a DataFrame with payload, key, event_time, stream_id and message_id. It returns a
        DataFrame with a column `payload` of text or bytes; its rows may have any order. The columns that begin with
        `order_` are the records' order key. Keep them, because they define the order of the rows. Rows made from one
        record are ordered by the column `child` if it exists, else by their payloads. The size of an epoch is not
        fixed, so treat each row independently: no aggregates. The stage costs two more Spark jobs per epoch.
        """
        return self._then(Kind.TRANSFORM, function, name, parallelism)

    def sink(
        self,
        name: str,
        *,
        to: str,
        codec: Literal["bytes", "text", "json", "msgpack", "arrow"] | None = None,
        framing: Literal["lines", "raw"] | None = None,
        key: Callable[[Any], Any] | None = None,
        order: Literal["total", "key", "stream", "none"] | None = None,
        connections: int = 1,
        lanes: int | None = None,
        idempotent: bool = False,
        knows_workers_left: bool = False,
    ) -> Stage:
        """Declare where records go.

        Args:
            name: Name of the sink.
            to: A URL of a connector, such as "file:DIR" or "kafka://HOST:PORT/TOPIC", for a sink that starts with the
                pipeline; or the "HOST:PORT" of a running sink. docs/how-to/connectors.md lists the connectors.
            codec: How records are encoded. "bytes" and "text" accept `str` and `bytes`. Without a codec, the sink uses
                the codec of its source, or "bytes" after `map_batches` and `transform`, whose functions return
                payloads.
            framing: "lines" puts a newline after each record, "raw" puts nothing. msgpack and Arrow need "raw". Sinks
                of records, such as topics and tables, have no framing.
            key: For sinks of records: returns the key that a record is written with. If it returns None, the record has
                no key. Without this function, records have the key of `key_by`, or the key that they were sent with.
            order: The promised order of this sink. None: that of the pipeline.
            connections: Number of outputs. They are written in parallel and committed together. With order "key" or
                "stream", each key or stream is always in the same output. The number cannot change after the first run.
            lanes: Write this many sorted lanes with order keys, for `procession merge`: to "lanes:DIR", or to the
                partitions of a topic. Any number of mergers read them and restore the order. The number cannot change
                after the first run. See docs/explanation/order-at-scale.md.
            idempotent: Skip two-phase commit. The sink shows records at once, and after a crash receives the same bytes
                at the same positions again. Requires `Pipeline(deterministic=True)`.
            knows_workers_left: Notify a sink given by address when a gateway leaves. File sinks are always notified.
                Off by default, because some existing sinks fail on this message.

        Returns:
            The stage before the sink, to which further branches can be added.

        Raises:
            PlanError: An argument is not valid, or the order cannot be kept with these connections.
        """
        if idempotent:
            self._pipeline.check_idempotent(name)
        chosen: PayloadCodec = (
            self._pipeline.codec_at(self._index, name)
            if codec is None
            else checked_choice(PayloadCodec, codec, "codec")
        )
        connector, _ = sink_of(to, f"sink {name!r}")
        is_in_blocks = connector.sink is not None and connector.sink.packing in (Packing.BLOCKS, Packing.LANES)
        lanes = _checked_lanes(name, connector, lanes, connections)
        _check_form(name, connector, is_in_blocks, framing, key, idempotent)
        if framing is None:
            framing = "raw" if chosen in BINARY or is_in_blocks else "lines"
        elif framing == "lines" and chosen in BINARY:
            raise PlanError(
                f'sink {name!r} has codec="{chosen.value}" and framing="lines", but such records may hold newlines',
                next_step='omit framing="lines": such records mark their own end'
                + (', or name the codec of the output: sink(…, codec="text")' if codec is None else ""),
            )
        level: Order = self._pipeline.order if order is None else checked_choice(Order, order, "order")
        if lanes and level is Order.NONE:
            raise PlanError(
                f'sink {name!r} has lanes and order="none", but the purpose of lanes is to restore an order',
                next_step='write order="total", or use connections=N without lanes',
                stage=name,
            )
        if checked_count(connections, "connections", f"sink {name!r}", CONNECTIONS_MAX) > 1 and level is Order.TOTAL:
            raise PlanError(
                f'sink {name!r} has {connections} connections and order="total", but one sequence cannot be written'
                " over several: the order of two records in different outputs would be lost",
                next_step='ask for less, as sink(…, order="key") or "stream", and each key or stream is in order in one'
                " of the outputs; or omit connections, and one output has all records in order",
                stage=name,
            )
        self._add(
            Node(
                Kind.SINK,
                checked_name(name, "a sink"),
                (self._index,),
                codec=chosen,
                is_codec_inherited=codec is None,
                framing=checked_choice(SinkFraming, framing, "framing"),
                target=to,
                is_in_blocks=is_in_blocks,
                key=key,
                order=None if order is None else level,
                connections=lanes or connections,
                lanes=lanes,
                is_idempotent=idempotent,
                knows_workers_left=knows_workers_left,
            )
        )
        return self


def _checked_lanes(name: str, connector: Connector, lanes: int | None, connections: int) -> int:
    """Return the number of lanes of a sink, or 0 if it has none."""
    traits = connector.sink
    is_all_lanes = traits is not None and traits.packing is Packing.LANES
    if lanes is None and not is_all_lanes:
        return 0
    if traits is None or not traits.lanes:
        raise PlanError(
            f"sink {name!r} has lanes={lanes}, but {connector.form} has no lanes",
            next_step="write to lanes:DIR or to kafka://HOST:PORT/TOPIC; or omit lanes",
            stage=name,
        )
    if lanes is None or connections != 1:
        raise PlanError(
            f"sink {name!r} writes lanes, but has " + ("no lanes=N" if lanes is None else "connections=, too"),
            next_step=f'write sink("{name}", to=…, lanes=N); each lane is a connection',
            stage=name,
        )
    return checked_count(lanes, "lanes", f"sink {name!r}", LANES_MAX)


def _check_form(
    name: str, connector: Connector, is_in_blocks: bool, framing: str | None, key: object, idempotent: bool
) -> None:
    """Raise PlanError if a sink of this connector does not support an argument."""
    if is_in_blocks and framing is not None:
        raise PlanError(
            f"sink {name!r} has framing={framing!r}, but {connector.form} gets records, not bytes of many",
            next_step="omit framing",
            stage=name,
        )
    if key is not None:
        checked_function(key, "sink", "key")
    if key is not None and not is_in_blocks:
        raise PlanError(
            f"sink {name!r} has key=, but {connector.form} writes no keys",
            next_step="omit key; key_by says which connection of a sink gets a record",
            stage=name,
        )
    if idempotent and connector.sink is not None and not connector.sink.is_repeatable:
        raise PlanError(
            f"sink {name!r} is idempotent, but {connector.form} takes part in the commit only",
            next_step="leave out idempotent=True",
            stage=name,
        )
