"""The output of one pass of a chain, for each sink and each exchange after it.

Invariant: the output has the results of the stages, in order, as bytes. A value that cannot be encoded is an error of
the stage that made it. Used by `operators/chain`; written by `storage/run_store`. Pure, except that it calls the user's
keys, times and codecs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from procession.operators.broadcast import sides_of
from procession.operators.chain_rows import INPUT, TIME, ChainOutput, ChainRows, batch_of
from procession.operators.codecs import ENCODE
from procession.operators.column_json import encoded
from procession.operators.column_values import is_records
from procession.operators.context import with_contexts
from procession.operators.dead_letters import DeadLetters
from procession.operators.function_calls import FunctionCalls
from procession.operators.partitioning import (
    partition_by,
    partition_evenly,
    partition_rows,
    partition_sides,
    split_by_key,
    split_by_stream,
)
from procession.operators.side_outputs import Tagging
from procession.operators.stage_rows import Numbers, StageRows
from procession.operators.value_codec import Forms, as_payloads
from procession.planner.graph import Kind, Node, Order, PayloadCodec, SinkFraming
from procession.planner.inputs import Ids, input_ids
from procession.planner.keys import NO_KEY, RecordKey, of_bytes
from procession.planner.ownership import own, own_all
from procession.planner.strategies import Routing, is_timed, key_of, routing_of
from procession.record import COLUMNS

if TYPE_CHECKING:
    from procession.operators.chain import Chain

END = 2**31 - 1
"""An offset beyond the end of every payload. Longer payloads do not fit into a column."""

PASSING_ON = frozenset({Kind.FILTER, Kind.PEEK, Kind.KEY_BY, Kind.ADD_TIMESTAMPS, Kind.REBALANCE, Kind.OUTPUT})


class Delivery(FunctionCalls):
    """One slice of rows in a chain, and its output. `flows` is the output of each stage so far."""

    def __init__(self, chain: Chain, rows: ChainRows) -> None:
        lines_of = chain.lines_of if chain.plan.graph.is_fused else None
        super().__init__(chain.plan, chain.keys, DeadLetters(chain.plan, rows, chain.find), lines_of)
        self.chain = chain
        self.rows = rows
        self.flows: dict[int, StageRows] = {}
        self.encoded: dict[tuple[int, PayloadCodec], tuple[StageRows, list[int] | None]] = {}
        """The output of a stage as bytes, and which of its rows these are (None: all rows)."""
        self._taken: tuple[Numbers | None, pa.RecordBatch] = None, None

    def delivered(self) -> Iterator[ChainOutput]:
        """Yield the output for every sink and every exchange after the chain, and the dead letters."""
        plan, planned = self.plan, self.chain.planned
        for index in planned.sinks:
            for parent in plan.node(index).parents:
                yield from self._for_sink(index, parent)
        for index in planned.feeds:
            for parent in plan.node(index).parents:
                yield from self._for_exchange(index, parent)
        yield from (ChainOutput(*dead_letters) for dead_letters in self.dead_letters.batches())

    def _with_contexts(self, function: Callable[..., Any], flow: StageRows) -> Callable[[Any], Any]:
        """Return a function of the value from a function that takes a `Context`, for these rows."""
        return with_contexts(function, self._keys(flow), self._others(flow), self.chain.keys, self.chain.counts)

    def _is_on_columns(self, index: int, before: StageRows) -> bool:
        return index in self.chain.columns and is_records(before.values)

    def _branch(self, parent: int, index: int, flow: StageRows) -> StageRows:
        branch = self.chain.branches.get((parent, index))
        return flow if branch is None else flow.numbered(branch)

    def _given(self, parent: int, index: int) -> StageRows:
        """Return the output of a stage for one of the next stages. It is a copy if another stage holds the output,
        too."""
        flow = self.flows[parent]
        return self._owned(parent, flow) if (parent, index) in self.plan.sharing.copied else flow

    def _owned(self, stage: int, flow: StageRows) -> StageRows:
        """Return copies of the output of a stage. A value that cannot be copied is an error of the stage that made
        it."""
        if not isinstance(flow.values, list):
            return flow
        try:
            return flow.with_values(own_all(flow.values))
        except Exception:  # a copy may call the user's code; copied one by one, to find the value
            results, rows = self._each(self._maker(stage), own, flow)
            return flow.pick(rows, results)

    def _keys(self, flow: StageRows) -> pa.Array:
        """Return the encoded keys of these rows: those that a stage has set, or those that they came with."""
        if flow.keys is not None:
            return flow.keys
        came = self._came_with(flow).column("key")
        return of_bytes(came) if self.rows.is_ingress else came

    def _plain_keys(self, flow: StageRows) -> pa.Array:
        """Return the keys as plain bytes, for functions of batches and for the connections of sinks."""
        if flow.keys is None and self.rows.is_ingress:
            return self._came_with(flow).column("key")
        return self.chain.keys.shown(self._keys(flow))

    def _times(self, flow: StageRows) -> pa.Array:
        return self._others(flow).column("event_time")

    def _others(self, flow: StageRows) -> pa.RecordBatch:
        """Return the columns of these rows other than payload and key: those that they came with, or that a stage has
        set."""
        came = self._came_with(flow).select(COLUMNS[1:])
        if flow.times is None:
            return came
        place = came.schema.get_field_index("event_time")
        return came.set_column(place, came.schema.field(place), flow.times)

    def _came_with(self, flow: StageRows) -> pa.RecordBatch:
        assert self.rows.columns is not None
        if flow.origins is None:
            return self.rows.columns.select(COLUMNS)
        # Stages with one result per row pass the same rows on, so the columns are taken only once.
        if self._taken[0] is not flow.origins:
            self._taken = flow.origins, self.rows.columns.select(COLUMNS).take(pa.array(flow.origins))
        return self._taken[1]

    def _encoded(self, stage: int, codec: PayloadCodec) -> StageRows:
        """Encode the output of a stage as an Arrow column of bytes. A value that cannot be encoded is an error of that
        stage. It is reported once, even if several stages read it."""
        return self._encoded_rows(stage, codec)[0]

    def _encoded_rows(self, stage: int, codec: PayloadCodec) -> tuple[StageRows, list[int] | None]:
        codec = PayloadCodec.BYTES if codec is PayloadCodec.TEXT else codec
        if (stage, codec) not in self.encoded:
            self.encoded[stage, codec] = self._encode(stage, codec, self.flows[stage])
        return self.encoded[stage, codec]

    def _encode(self, stage: int, codec: PayloadCodec, flow: StageRows) -> tuple[StageRows, list[int] | None]:
        if codec is PayloadCodec.BYTES and not is_records(flow.values):
            if not isinstance(flow.values, list):
                return flow.with_values(flow.values.cast(pa.binary())), None
            column = as_payloads(flow.values)
            if not isinstance(column, list):
                return flow.with_values(column), None
        if codec is PayloadCodec.JSON and is_records(flow.values):
            found = encoded(flow.values)
            for row, error in found.errors:
                self.dead_letters.add(self._maker(stage), flow, row, error)
            return flow.pick(found.rows, found.values), found.rows
        results, rows = self._each(self._maker(stage), ENCODE[codec], flow)
        return flow.pick(rows, pa.array(results, pa.binary())), rows

    def _maker(self, stage: int) -> int:
        """Return the stage that made the output values of this stage: some stages pass on their input."""
        while _is_passing_on(self.plan.node(stage)) and stage != self.chain.planned.root:
            (stage,) = self.plan.node(stage).parents
        return stage

    def _for_sink(self, index: int, parent: int) -> Iterator[ChainOutput]:
        node = self.plan.node(index)
        flow, more = self._with_columns(index, parent) if node.is_in_blocks else (self._encoded(parent, node.codec), ())
        flow = self._branch(parent, index, flow)
        payload = flow.values
        if node.framing is SinkFraming.LINES:
            # Replacing an empty slice at the end takes a quarter of the time of joining two columns.
            payload = pc.binary_replace_slice(payload, start=END, stop=END, replacement=b"\n")
        order = self._order(flow) if self.plan.edge(parent, index).is_merged else ()
        whole = batch_of(payload, order, more)
        if node.connections == 1:
            yield ChainOutput(index, 0, whole)
            return
        match self.plan.graph.order_at(node):
            case Order.TOTAL:  # for lanes: a path stays in one lane, so that the lane is sorted
                path = self.plan.path_of(index, self.chain.planned.number, self.chain.task)
                yield ChainOutput(index, path % node.lanes, whole)
            case Order.KEY:
                yield from partition_by(index, whole, split_by_key(self._plain_keys(flow), node.connections))
            case Order.STREAM:
                yield from partition_by(
                    index, whole, split_by_stream(self._others(flow).column("stream_id"), node.connections)
                )
            case _:
                yield from partition_evenly(index, whole, node.connections, self.chain.turn)

    def _with_columns(self, index: int, parent: int) -> tuple[StageRows, list[tuple[str, pa.Array]]]:
        """Return the rows for a sink that takes blocks, and the keys and event times that its records are written
        with."""
        node = self.plan.node(index)
        flow, rows = self._encoded_rows(parent, node.codec)
        if node.key is None:
            keys = self._keys(flow)
        else:
            assert not isinstance(node.key, RecordKey)
            values = self._given(parent, index).only(rows)
            keyed = self._keyed_by(index, node.key, values.numbered(np.arange(len(values))))
            keys, left = keyed.keys, keyed.tail[-1]
            flow = flow if len(left) == len(flow) else flow.take(left)
        return flow, [("key", self._written_keys(keys)), ("event_time", self._written_times(flow))]

    def _written_keys(self, keys: pa.Array) -> pa.Array:
        """Return encoded keys as plain bytes. A key that is None or empty, as from producers without keys, becomes
        null."""
        is_none = pc.is_in(keys, value_set=pa.array([NO_KEY, self.chain.keys.encode(None)], pa.binary()))
        return pc.if_else(is_none, pa.scalar(None, pa.binary()), self.chain.keys.shown(keys))

    def _written_times(self, flow: StageRows) -> pa.Array:
        """Return the event times. 0, as from producers without event times, becomes null."""
        times = self._times(flow)
        return pc.if_else(pc.equal(times, 0), pa.scalar(None, pa.int64()), times)

    def _for_exchange(self, index: int, parent: int) -> Iterator[ChainOutput]:
        node = self.plan.node(index)
        flow = self._branch(parent, index, self._given(parent, index))
        is_sided = routing_of(node) is Routing.TO_ALL
        if routing_of(node) is Routing.BY_KEY:
            key = key_of(node)
            flow = (
                replace(flow, keys=self._keys(flow)) if isinstance(key, RecordKey) else self._keyed_by(index, key, flow)
            )
        elif node.operator is not None and not (is_sided and index in self.plan.carrying | self.plan.keeping_key):
            flow = replace(flow, keys=pa.array([NO_KEY] * len(flow), pa.binary()))
        if is_sided:
            flow = flow.numbered(sides_of(flow))
        if node.kind is Kind.TRANSFORM:
            flow = self._branch(parent, index, self._encoded(parent, PayloadCodec.BYTES))
        if (time := node.time) is not None:
            flow, times = self._timed_by(index, time, flow)
            flow = flow.numbered(times)
        if is_records(flow.values) and node.operator is not None and not node.operator.state.reads_records:
            flow = flow.with_values(pa.repeat(pa.scalar(b"", pa.binary()), len(flow)))
        flow, forms = self._packed(parent, flow)
        if node.time is not None or is_sided:
            flow, last = replace(flow, tail=flow.tail[:-1]), flow.tail[-1]
        order = self._order(flow)
        more: list[tuple[str, pa.Array]] = [("form", pa.array(forms))]
        if index in self.plan.carrying:
            columns = self._others(flow)
            more += [("key", self._keys(flow)), *((name, columns.column(name)) for name in columns.schema.names)]
        elif node.operator is not None or index in self.plan.keeping_key:
            more.append(("key", self._keys(flow)))
        if is_timed(node):
            more.append((TIME, columns.column("event_time") if node.time is None else pa.array(last)))
        if index in self.plan.inputs:
            more.append((INPUT, pa.array(self._inputs(flow))))
        whole = batch_of(flow.values, order if self.plan.edge(parent, index).is_merged else order[:1], more)
        (following,) = (chain for chain in self.plan.chains if chain.root == index)
        turn, reached = self.chain.turn, self.chain.reached[index]
        if is_sided:
            yield from partition_sides(index, whole, last, following.tasks, turn)
            return
        yield from partition_rows(index, node, whole, flow.keys, following.tasks, turn=turn, reached=reached)

    def _inputs(self, flow: StageRows) -> Ids:
        """Return the inputs of these rows, for a next stage with several inputs."""
        if self.chain.input is not None:
            return np.full(len(flow), self.chain.input, np.uint64)
        return input_ids(self.plan.graph, self._came_with(flow).column("stream_id").to_numpy())

    def _packed(self, stage: int, flow: StageRows) -> tuple[StageRows, Forms]:
        try:
            payload, forms = self.chain.values.pack(flow.values)
            return flow.with_values(payload), forms
        except (TypeError, ValueError):  # one by one, to find the invalid value
            results, rows = self._each(self._maker(stage), self.chain.values.packed_value, flow)
            payload = pa.array([data for data, _ in results], pa.binary())
            return flow.pick(rows, payload), np.array([form for _, form in results], np.uint8)

    def _order(self, flow: StageRows) -> tuple[Numbers, ...]:
        """Return the whole order key of each row."""
        own = self.rows.order if flow.origins is None else tuple(column[flow.origins] for column in self.rows.order)
        return (*own, *flow.tail)


def _is_passing_on(node: Node) -> bool:
    """Whether a stage passes on the values that it gets."""
    return node.kind in PASSING_ON or (isinstance(node.function, Tagging) and node.function.value is None)
