"""The output of one pass of a chain, for each sink and each exchange behind it.

The one rule: the output is what the stages produced, in order, as bytes. A value that cannot be encoded is an error of
the stage that made it. Used by `operators/chain`; written by `storage/run_store`. Pure, except that it calls the user's
keys, times and codecs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from procession.operators.buckets import parted, parted_by_stream
from procession.operators.chain_rows import INPUT, TIME, Output, Rows, batch_of
from procession.operators.codecs import ENCODE
from procession.operators.context import with_contexts
from procession.operators.dead_letters import Letters
from procession.operators.partitioning import deal_out, dealt_out, shared_out
from procession.operators.stage_rows import Flow, Numbers
from procession.operators.value_codec import Forms, as_payloads
from procession.planner.graph import Codec, Framing, Kind, Node, Order
from procession.planner.inputs import Ids, input_ids
from procession.planner.keyed_spec import RecordKey
from procession.planner.keys import NO_KEY, of_bytes
from procession.planner.ownership import own, own_all
from procession.planner.strategies import Way, is_timed, key_of, way_of
from procession.record import COLUMNS
from procession.times import all_nanoseconds, nanoseconds

if TYPE_CHECKING:
    from procession.operators.chain import Chain

END = 2**31 - 1
"""Where no payload goes on: its length would not fit into a column."""

HANDING_ON = frozenset({Kind.FILTER, Kind.PEEK, Kind.KEY_BY, Kind.ADD_TIMESTAMPS, Kind.REBALANCE})


class Delivery:
    """One slice of rows in a chain. `flows` is what has left each stage so far; the stages are the chain's business."""

    def __init__(self, chain: Chain, rows: Rows) -> None:
        self.chain = chain
        self.plan = chain.plan
        self.rows = rows
        self.letters = Letters(chain.plan, rows, chain.find)
        self.flows: dict[int, Flow] = {}
        self.encoded: dict[tuple[int, Codec], Flow] = {}
        self._taken: tuple[Numbers | None, pa.RecordBatch] = None, None

    def delivered(self) -> Iterator[Output]:
        """What every sink and every exchange behind the chain gets, and the letters."""
        plan, planned = self.plan, self.chain.planned
        for index in planned.sinks:
            for parent in plan.node(index).parents:
                yield from self._for_sink(index, parent)
        for index in planned.feeds:
            for parent in plan.node(index).parents:
                yield from self._for_exchange(index, parent)
        yield from (Output(*letters) for letters in self.letters.batches())

    def _each(self, stage: int, function: Callable[[Any], Any], before: Flow) -> tuple[list[Any], list[int] | None]:
        """The function's result for each row, and which rows they are (None: all of them)."""
        values = before.as_list()
        results: list[Any] = []
        failed: list[int] = []
        left = iter(values)
        while len(results) + len(failed) < len(values):
            try:
                # The quickest way to call a Python function; how many results there are tells on which row it raised.
                for value in left:
                    results.append(function(value))  # noqa: PERF401  (what was made before it raised must stay)
            except Exception as error:  # the user's code may raise anything; the record decides who acts
                row = len(results) + len(failed)
                self.letters.add(stage, before, row, error)
                failed.append(row)
        if not failed:
            return results, None
        refused = set(failed)
        return results, [row for row in range(len(values)) if row not in refused]

    def _with_contexts(self, function: Callable[..., Any], flow: Flow) -> Callable[[Any], Any]:
        """A function that asks for more of a record than its value, for these rows."""
        return with_contexts(function, self._keys(flow), self._others(flow), self.chain.keys)

    def _called_alone(self, index: int, node: Node, before: Flow) -> Flow:
        """What a map or a filter gives, outside of a loop that it shares with others."""
        assert node.function is not None
        results, rows = self._each(index, node.function, before)
        if node.kind is Kind.MAP:
            return before.pick(rows, results)
        called = range(len(results)) if rows is None else rows
        return before.only([row for row, is_kept in zip(called, results, strict=True) if is_kept])

    def _branch(self, parent: int, index: int, flow: Flow) -> Flow:
        branch = self.chain.branches.get((parent, index))
        return flow if branch is None else flow.numbered(branch)

    def _given(self, parent: int, index: int) -> Flow:
        """What left a stage, for one of those behind it: its own copy, if another one holds it too."""
        flow = self.flows[parent]
        return self._owned(parent, flow) if (parent, index) in self.plan.sharing.copied else flow

    def _owned(self, stage: int, flow: Flow) -> Flow:
        """Copies of what left a stage; a value that cannot be copied is the error of the stage that made it."""
        if not isinstance(flow.values, list):
            return flow
        try:
            return flow.with_values(own_all(flow.values))
        except Exception:  # a copy may call the user's code; one by one, to find which value it is
            results, rows = self._each(self._maker(stage), own, flow)
            return flow.pick(rows, results)

    def _keys(self, flow: Flow) -> pa.Array:
        """The keys of these rows, encoded: those that they were given, or came with."""
        if flow.keys is not None:
            return flow.keys
        came = self._came_with(flow).column("key")
        return of_bytes(came) if self.rows.is_ingress else came

    def _plain_keys(self, flow: Flow) -> pa.Array:
        """The same as plain bytes, for functions of batches, and for the connections of sinks."""
        if flow.keys is None and self.rows.is_ingress:
            return self._came_with(flow).column("key")
        return self.chain.keys.shown(self._keys(flow))

    def _times(self, flow: Flow) -> pa.Array:
        return self._others(flow).column("event_time")

    def _others(self, flow: Flow) -> pa.RecordBatch:
        """What the records of these rows have beside payload and key: what they came with, or were given since."""
        came = self._came_with(flow).select(COLUMNS[1:])
        if flow.times is None:
            return came
        place = came.schema.get_field_index("event_time")
        return came.set_column(place, came.schema.field(place), flow.times)

    def _came_with(self, flow: Flow) -> pa.RecordBatch:
        assert self.rows.columns is not None
        if flow.origins is None:
            return self.rows.columns.select(COLUMNS)
        # Stages that give one for one hand the same rows on: they are taken once.
        if self._taken[0] is not flow.origins:
            self._taken = flow.origins, self.rows.columns.select(COLUMNS).take(pa.array(flow.origins))
        return self._taken[1]

    def _encoded(self, stage: int, codec: Codec) -> Flow:
        """What left a stage, as an Arrow column of bytes; a value that cannot become bytes is that stage's error, and
        is so once, however many take it from there."""
        if codec is Codec.TEXT:
            codec = Codec.BYTES
        if (stage, codec) not in self.encoded:
            self.encoded[stage, codec] = self._encode(stage, codec, self.flows[stage])
        return self.encoded[stage, codec]

    def _encode(self, stage: int, codec: Codec, flow: Flow) -> Flow:
        if codec is Codec.BYTES:
            if not isinstance(flow.values, list):
                return flow.with_values(flow.values.cast(pa.binary()))
            column = as_payloads(flow.values)
            if not isinstance(column, list):
                return flow.with_values(column)
        results, rows = self._each(self._maker(stage), ENCODE[codec], flow)
        return flow.pick(rows, pa.array(results, pa.binary()))

    def _maker(self, stage: int) -> int:
        """The stage that made the values which leave this one: the others hand on what they get."""
        while self.plan.node(stage).kind in HANDING_ON and stage != self.chain.planned.root:
            (stage,) = self.plan.node(stage).parents
        return stage

    def _for_sink(self, index: int, parent: int) -> Iterator[Output]:
        node = self.plan.node(index)
        flow = self._branch(parent, index, self._encoded(parent, node.codec))
        payload = flow.values
        if node.framing is Framing.LINES:
            # A slice beyond the end, replaced: a quarter of the time that joining the two takes.
            payload = pc.binary_replace_slice(payload, start=END, stop=END, replacement=b"\n")
        order = self._order(flow) if self.plan.edge(parent, index).is_merged else ()
        whole = batch_of(payload, order)
        if node.connections == 1:
            yield Output(index, 0, whole)
            return
        match self.plan.graph.order_at(node):
            case Order.KEY:
                yield from shared_out(index, whole, parted(self._plain_keys(flow), node.connections))
            case Order.STREAM:
                yield from shared_out(
                    index, whole, parted_by_stream(self._others(flow).column("stream_id"), node.connections)
                )
            case _:
                yield from dealt_out(index, whole, node.connections, self.chain.turn)

    def _for_exchange(self, index: int, parent: int) -> Iterator[Output]:
        node = self.plan.node(index)
        flow = self._branch(parent, index, self._given(parent, index))
        if way_of(node) is Way.BY_KEY:
            key = key_of(node)
            flow = (
                replace(flow, keys=self._keys(flow)) if isinstance(key, RecordKey) else self._keyed_by(index, key, flow)
            )
        elif node.stateful is not None:
            flow = replace(flow, keys=pa.array([NO_KEY] * len(flow), pa.binary()))
        if node.kind is Kind.TRANSFORM:
            flow = self._branch(parent, index, self._encoded(parent, Codec.BYTES))
        if (time := node.time) is not None:
            flow, times = self._timed_by(index, time, flow)
            flow = flow.numbered(times)
        flow, forms = self._packed(parent, flow)
        if node.time is not None:
            flow, times = replace(flow, tail=flow.tail[:-1]), flow.tail[-1]
        order = self._order(flow)
        more: list[tuple[str, pa.Array]] = [("form", pa.array(forms))]
        if index in self.plan.carrying:
            columns = self._others(flow)
            more += [("key", self._keys(flow)), *((name, columns.column(name)) for name in columns.schema.names)]
        elif node.stateful is not None or index in self.plan.keeping_key:
            more.append(("key", self._keys(flow)))
        if is_timed(node):
            more.append((TIME, columns.column("event_time") if node.time is None else pa.array(times)))
        if index in self.plan.inputs:
            more.append((INPUT, pa.array(self._inputs(flow))))
        whole = batch_of(flow.values, order if self.plan.edge(parent, index).is_merged else order[:1], more)
        (behind,) = (chain for chain in self.plan.chains if chain.root == index)
        turn, reached = self.chain.turn, self.chain.reached[index]
        yield from deal_out(index, node, whole, flow.keys, behind.tasks, turn=turn, reached=reached)

    def _inputs(self, flow: Flow) -> Ids:
        """The inputs that these rows are of, for a stage behind that has several."""
        if self.chain.input is not None:
            return np.full(len(flow), self.chain.input, np.uint64)
        return input_ids(self.plan.graph, self._came_with(flow).column("stream_id").to_numpy())

    def _keyed_by(self, index: int, key: Callable[[Any], Any], flow: Flow) -> Flow:
        """These rows with the keys that a user's function gives them."""
        results, rows = self._each(index, key, flow)
        flow = flow.only(rows)
        try:
            return replace(flow, keys=self.chain.keys.column(results))
        except (TypeError, ValueError):  # one by one, to find which
            encoded, rows = self._each(index, self.chain.keys.encode, flow.with_values(results))
            return replace(flow.only(rows), keys=pa.array(encoded, pa.binary()))

    def _timed_by(self, index: int, time: Callable[[Any], Any], flow: Flow) -> tuple[Flow, Numbers]:
        """These rows, and the times that a user's function gives them, in nanoseconds."""
        unit = self.plan.node(index).unit
        results, rows = self._each(index, time, flow)
        flow = flow.only(rows)
        if (times := all_nanoseconds(results, unit)) is not None:
            return flow, times
        results, rows = self._each(index, partial(nanoseconds, unit=unit), flow.with_values(results))
        return flow.only(rows), np.array(results, np.int64)

    def _packed(self, stage: int, flow: Flow) -> tuple[Flow, Forms]:
        try:
            payload, forms = self.chain.values.pack(flow.values)
            return flow.with_values(payload), forms
        except (TypeError, ValueError):  # one by one, to find which
            results, rows = self._each(self._maker(stage), self.chain.values.packed_value, flow)
            payload = pa.array([data for data, _ in results], pa.binary())
            return flow.pick(rows, payload), np.array([form for _, form in results], np.uint8)

    def _order(self, flow: Flow) -> tuple[Numbers, ...]:
        """The whole order key of each row."""
        own = self.rows.order if flow.origins is None else tuple(column[flow.origins] for column in self.rows.order)
        return (*own, *flow.tail)
