"""The chain: all stages between two exchanges, fused into one function over Arrow batches.

Invariant: rows enter and leave in order, and every row knows the input row that it came from. So an error can name the
record, and a dead letter has the position of its record. The input is the log (`storage/log`) or the runs of an
exchange; the output for each sink and exchange is written by `storage/run_store`. Stages with state are operators
(`operators/operator`). Pure: it only calls the user's functions; the caller passes a function that awaits asynchronous
functions.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from procession.operators.batch_result import read_batch_result
from procession.operators.chain_output import Delivery
from procession.operators.chain_rows import ChainOutput, ChainRows
from procession.operators.codecs import decoder_of
from procession.operators.column_parser import parsed
from procession.operators.column_stages import column_stages
from procession.operators.end_firing import find_ends, row_of_end
from procession.operators.end_of_input import BEYOND, EndOfInput, StreamChange
from procession.operators.fusion import LINES, fused
from procession.operators.inlining import LinesOf
from procession.operators.keyed import flattened
from procession.operators.operator import NO_STATES, Operator, OperatorRows, Reach, StateAccess
from procession.operators.partitioning import as_result_list
from procession.operators.record_schema import SchemaJson
from procession.operators.side_outputs import rows_of_output
from procession.operators.stage_rows import Numbers, StageRows, concatenated, joined
from procession.operators.tables import joinings_at
from procession.operators.value_codec import ValueCodec, as_column, as_payloads
from procession.operators.watermark import Watermark
from procession.operators.watermark_timers import InputSteps
from procession.planner.event_order import LateRecord
from procession.planner.graph import Kind, Node, PayloadCodec
from procession.planner.inputs import InputChange
from procession.planner.keys import KeyCodec
from procession.planner.order_key import rows_of_results
from procession.planner.plan import BY_RECORD, Plan
from procession.planner.source_streams import streams_of
from procession.planner.strategies import numbers_behind
from procession.record import COLUMNS

CHAIN_RECORDS_MAX = 65_536
"""Maximum number of records that a chain holds as Python objects."""

BLOCK_RECORDS = 8192
"""Records per block in stages with functions of one record. The results of a block are still in the processor's cache
when they become a column. Smaller blocks have more overhead per record."""

AwaitAll = Callable[[Callable[[Any], Any], list[Any], int, float], list[Any]]
"""Awaits a coroutine function for each value: (function, values, concurrency, timeout_s). Raises `CallFailed`."""


class CallFailed(Exception):
    """An asynchronous call raised or timed out."""

    def __init__(self, row: int, error: BaseException) -> None:
        super().__init__(row, error)
        self.row = row
        self.error = error


class Chain:
    """One chain of a plan as a function: `run(rows)` yields the output for each sink and each exchange.

    `find(sequence)` looks up a record that an error names, if the chain does not have the records. `turn` is the
    number of the task, and the first bucket of an exchange without keys. `states` are those of a stage with state.
    `copies`, by path, are read instead of tables that may change. `lines_of` reads the source files of the user's
    functions."""

    def __init__(
        self,
        plan: Plan,
        number: int,
        *,
        find: Callable[[int], dict[str, Any]],
        await_all: AwaitAll | None = None,
        turn: int = 0,
        states: StateAccess = NO_STATES,
        changes: Sequence[StreamChange] = (),
        copies: Mapping[str, Path] | None = None,
        lines_of: LinesOf | None = None,
    ) -> None:
        self.plan = plan
        self.planned = plan.chains[number]
        self.find = find
        self.await_all = await_all
        self.states = states
        self.lines_of = lines_of
        graph = plan.graph
        self.values, self.keys = ValueCodec(graph.types), KeyCodec(graph.types)
        self.branches = {
            (before, after): branch
            for before in plan.branching & plan.traced
            for branch, after in enumerate(graph.children(before))
        }
        root = self.planned.root
        self.key_length = 1 if root is None else len(plan.keys[root]) - numbers_behind(plan.node(root))
        self.turn = self.task = turn
        self.steps = plan.steps(number)
        self.joinings = joinings_at({index: plan.node(index).function for index in self.planned.stages}, copies or {})
        # The progress of the watermark of each later timed stage, from this task's records.
        self.reached: defaultdict[int, InputSteps] = defaultdict(InputSteps)
        ending = None if root is None else plan.endings.get(root)
        self.ends: list[EndOfInput | InputChange] = [] if ending is None else [*find_ends(ending, states, changes)]
        inputs = None if root is None else plan.inputs.get(root)
        self.watermark = None if inputs is None else Watermark(inputs, states, changes)
        if self.watermark is not None:
            # At the same position, the end of a single input comes before the end of all inputs.
            together = [*self.watermark.ends, *self.ends]
            self.ends = sorted(together, key=lambda end: (end.sequence, type(end) is EndOfInput))
        self.late = 0
        self.columns = column_stages(graph)
        self.counts = states.counts
        """The amounts that functions have added to the counters of the app."""

    @property
    def input(self) -> int | None:
        """The input that all output of this chain belongs to. None: each record belongs to the input of its stream."""
        return self.plan.origins[self.planned.number]

    def run_all(self, pieces: Iterable[ChainRows]) -> Iterator[ChainOutput]:
        """Yield the output of all rows of an epoch, and of the ends between them."""
        ends = deque(self.ends)
        for rows in pieces:
            start = 0
            while ends and len(rows) and ends[0].sequence < rows.order[0][-1]:
                end = int(np.searchsorted(rows.order[0], ends[0].sequence, "right"))
                yield from self.run(rows.slice(start, end - start))
                yield from self._end(ends.popleft())
                start = end
            yield from self.run(rows.slice(start, len(rows) - start) if start else rows)
        for last in ends:
            yield from self._end(last)
        if self.watermark is not None:
            self.watermark.keep()

    def _end(self, end: EndOfInput | InputChange) -> Iterator[ChainOutput]:
        """Handle the end of the first stage's input, or of one of its inputs. Its results come after all others at that
        position."""
        root = self.planned.root
        assert root is not None
        operator = self.plan.node(root).operator
        assert operator is not None
        key = (end.sequence, BEYOND + root, *[0] * self.key_length)[: self.key_length]
        row = row_of_end(key, end, is_carrying=root in self.plan.carrying)
        if isinstance(end, InputChange):
            assert self.watermark is not None
            fired = operator.fire(self.states, self.watermark.end(end))
        else:
            fired = operator.end(self.states)
        for results in fired:
            yield from _Pass(self, row, rows_of_results(results)).outputs()

    def run(self, rows: ChainRows) -> Iterator[ChainOutput]:
        """Yield the output of these rows, in slices of bounded size."""
        for start in range(0, len(rows), CHAIN_RECORDS_MAX):
            yield from _Pass(self, rows.slice(start, CHAIN_RECORDS_MAX)).outputs()
            self.turn += 1


class _Pass(Delivery):
    """One slice of rows in the chain. `fired` is the output of the first stage, if an end fires it."""

    def __init__(self, chain: Chain, rows: ChainRows, fired: StageRows | None = None) -> None:
        super().__init__(chain, rows)
        self.fired = fired

    def outputs(self) -> Iterator[ChainOutput]:
        for step in self.chain.steps:
            is_by_record = self.plan.node(step[0]).kind in BY_RECORD
            self.flows[step[-1]] = (
                self._in_blocks(step)
                if is_by_record
                else self._traced(step[0], self._kept_apart(step[0], self._stage(step[0])))
            )
        yield from self.delivered()

    # Stages

    def _traced(self, index: int, flow: StageRows) -> StageRows:
        """Return the output of a stage, without order keys if no later stage needs them."""
        return flow if index in self.plan.traced else replace(flow, tail=())

    def _in_blocks(self, step: Sequence[int]) -> StageRows:
        """Run consecutive stages with functions of one record, in blocks of records."""
        before = self._before(step[0])
        while step and self._is_on_columns(step[0], before):
            before = self._traced(step[0], self._on_columns(step[0], before))
            step = step[1:]
        if not step:
            return before
        # For sinks, bytes and text need not be distinguished, because sinks write both in the same way.
        behind = [self.plan.node(index) for index in self.plan.graph.children(step[-1])]
        as_it_is = (PayloadCodec.BYTES, PayloadCodec.TEXT)
        is_final = all(node.kind is Kind.SINK and not node.key and node.codec in as_it_is for node in behind)
        pieces = []
        for start in range(0, max(1, len(before)), BLOCK_RECORDS):
            piece = before if len(before) <= BLOCK_RECORDS else before.slice(start, BLOCK_RECORDS)
            for is_fused, part in groupby(step, self._is_fused):
                if is_fused:
                    piece = self._fused(tuple(part), piece)
                    continue
                for index in part:
                    piece = self._traced(index, self._called(index, piece))
            made = (as_payloads if is_final else as_column)(piece.as_list())
            pieces.append(piece.with_values(made))
        return concatenated(pieces)

    def _fused(self, stages: tuple[int, ...], before: StageRows) -> StageRows:
        """Run stages with at most one result per record as one loop."""
        nodes = [self.plan.node(index) for index in stages]
        functions = [node.function for node in nodes if node.function is not None]

        def failed(place: int, row: int, error: Exception) -> None:
            came = before if self.plan.traced.issuperset(stages[:place]) else replace(before, tail=())
            self.dead_letters.add(stages[place], came, row, error)

        kinds = tuple(node.kind for node in nodes)
        are_owned = tuple(index in self.plan.sharing.borrowing for index in stages)
        results, rows = fused(kinds, functions, before.as_list(), failed, self.chain.lines_of, are_owned)
        made = before.pick(rows, results)
        return made if self.plan.traced.issuperset(stages) else replace(made, tail=())

    def _stage(self, index: int) -> StageRows:
        node = self.plan.node(index)
        if index == self.chain.planned.root:
            if self.fired is not None:
                return self.fired
            if node.operator is not None and not node.operator.state.reads_records:
                return self._operated(index, node.operator, StageRows(pa.nulls(len(self.rows)), keys=self.rows.keys))
            kind = self.chain.columns.arriving.get(index)
            came = StageRows(self.rows.decoded(self.chain.values, kind), keys=self.rows.keys)
            return came if node.operator is None else self._operated(index, node.operator, came)
        if node.kind is Kind.SOURCE:
            return self._source(index, node)
        before = self._before(index)
        match node.kind:
            case Kind.MERGE | Kind.REBALANCE:  # a rebalance that moves no records
                return before
            case Kind.MAP_BATCHES:
                return self._map_batches(index, node)
            case Kind.MAP_ASYNC:
                return self._map_async(index, node, before)
        raise AssertionError(f"{node.kind} cannot be run")

    def _called(self, index: int, before: StageRows) -> StageRows:
        node = self.plan.node(index)
        before = before.with_values(before.as_list())
        if node.kind is Kind.OUTPUT:
            return rows_of_output(node.output, before)
        assert node.function is not None
        if node.kind is Kind.KEY_BY:
            return self._keyed_by(index, node.function, before)
        if node.kind is Kind.ADD_TIMESTAMPS:
            flow, times = self._timed_by(index, node.function, before)
            return replace(flow, times=pa.array(times))
        if node.is_asking:
            node = replace(node, function=self._with_contexts(node.function, before))
        if node.kind in LINES:
            return self._kept_apart(index, self._called_alone(index, node, before))
        results, rows = self._each(index, self._listed(index, node), before)
        return self._kept_apart(index, flattened(before, results, rows))

    def _is_fused(self, index: int) -> bool:
        node = self.plan.node(index)
        return self.plan.graph.is_fused and node.kind in LINES and not node.is_asking

    def _listed(self, index: int, node: Node) -> Callable[[Any], list[Any]]:
        """Return the function of a stage with several results per record. It returns a list, with copies if needed."""
        assert node.function is not None
        is_exposed, is_changing = (index in those for those in (self.plan.sharing.exposed, self.plan.sharing.changing))
        if node.kind is Kind.HASH_JOIN:
            return replace(self.chain.joinings[index], is_copying=is_exposed or is_changing)
        return as_result_list(node.function, is_exposed=is_exposed, is_changing=is_changing)

    def _kept_apart(self, index: int, flow: StageRows) -> StageRows:
        """Return the output of a stage, copied if its function may still hold it and a later stage may change it."""
        return self._owned(index, flow) if index in self.plan.sharing.borrowing else flow

    def _before(self, index: int) -> StageRows:
        """Return the input of a stage, from those of its parents that this chain runs."""
        parents = [parent for parent in self.plan.node(index).parents if parent in self.flows]
        flows = [self._branch(parent, index, self._given(parent, index)) for parent in parents]
        if self.plan.node(index).kind is not Kind.MERGE:
            return flows[0]
        is_kept = bool(self.plan.traced & set(parents))
        if is_kept:
            flows = [flow.padded(len(self.plan.keys[index]) - self.chain.key_length) for flow in flows]
        # If records came without their keys and times, no stage needs these.
        of = None if self.rows.columns is None else (self._keys, self._times)
        return joined(flows, of, is_kept=is_kept)

    def _on_time(self, index: int, flow: StageRows, are_late: npt.NDArray[np.bool_]) -> StageRows:
        """Return the records that are not late. Late records are handled as the pipeline declares."""
        are_late = are_late if flow.origins is None else are_late[flow.origins]
        for row in np.flatnonzero(are_late).tolist():
            self.dead_letters.late(index, flow, row)
        return flow.take(np.flatnonzero(~are_late))

    def _operated(self, index: int, operator: Operator, came: StageRows) -> StageRows:
        """Return the output of a stage with state for the rows that arrived over its exchange."""
        rows, watermark = self.rows, self.chain.watermark
        reach: Reach | None = None
        if watermark is not None:
            assert rows.inputs is not None
            reach = partial(watermark.reached, rows.inputs, rows.order[0])
        state = operator.state

        def refuse(row: int, error: Exception) -> None:
            if isinstance(error, LateRecord) and (state.steps is not None or state.counts_late):
                self.chain.late += 1
                if not state.late_to_dead_letters:
                    return
            self.dead_letters.add(index, came, row, error)

        return operator.add(self.chain.states, OperatorRows(came, rows.times, rows.are_ticks, reach), refuse)

    def _source(self, index: int, node: Node) -> StageRows:
        flow = StageRows(self.rows.payload)
        if len(self.plan.graph.sources) > 1:
            assert self.rows.columns is not None
            taken = streams_of(self.plan.graph, [node]).mask(self.rows.columns.column("stream_id").to_numpy())
            flow = flow.take(np.flatnonzero(taken))
        if self.rows.are_late is not None:
            flow = self._on_time(index, flow, self.rows.are_late)
        if node.codec is PayloadCodec.BYTES:
            return flow
        if node.codec is PayloadCodec.TEXT:
            try:
                return flow.with_values(flow.values.cast(pa.string()))  # type: ignore[union-attr]
            except pa.ArrowInvalid:
                pass  # one by one, to find the invalid value
        if index in self.chain.columns and isinstance(node.typed, SchemaJson):
            found = parsed(node.typed, flow.values)
            for row, error in found.errors:
                self.dead_letters.add(index, flow, row, error)
            return flow.pick(found.rows, found.values)
        results, rows = self._each(index, decoder_of(node), flow)
        return flow.pick(rows, results)

    def _map_async(self, index: int, node: Node, before: StageRows) -> StageRows:
        assert self.chain.await_all is not None
        assert node.function is not None
        try:
            results = self.chain.await_all(node.function, before.as_list(), node.concurrency, node.timeout_s)
        except CallFailed as failed:
            raise self.dead_letters.failed_call(index, before, failed.row, failed.error) from failed.error
        return before.with_values(results)

    def _map_batches(self, index: int, node: Node) -> StageRows:
        (parent,) = node.parents
        before = self._branch(parent, index, self._encoded(parent, PayloadCodec.BYTES))
        assert node.function is not None
        assert self.rows.columns is not None
        count = len(before)
        rows = np.arange(count, dtype=np.int64)
        table = pa.RecordBatch.from_arrays(
            [before.values, self._plain_keys(before), *self._others(before).columns, pa.array(rows)],
            names=["payload", *COLUMNS, "row"],
        )
        pieces = list(self._bisect(index, node.function, table, before, rows))
        if not pieces:
            return before.pick([], pa.array([], pa.binary())).numbered(0)
        values, picked, numbers = zip(*pieces, strict=True)
        if picked[0] is rows:  # one result per row, so no row has to be picked
            return before.with_values(values[0]).numbered(numbers[0])
        flow = before.pick(np.concatenate(picked), pa.concat_arrays(values))
        return flow.numbered(np.concatenate(numbers))

    def _bisect(
        self, stage: int, function: Callable[[Any], Any], table: pa.RecordBatch, before: StageRows, whole: Numbers
    ) -> Iterator[tuple[pa.Array, Numbers, Numbers]]:
        """Run the function. If it raises, halve the batch until the record that causes the error is alone. Yields
        payloads, the row that each came from, and its number among the results of that row."""
        if not table.num_rows:
            return
        rows = whole if table.num_rows == len(whole) else table.column("row").to_numpy()
        try:
            result = read_batch_result(function(table), rows, is_placed=stage in self.plan.traced)
        except Exception as error:  # user code may raise any exception
            if table.num_rows == 1:
                self.dead_letters.add(stage, before, int(rows[0]), error)
                return
            half = table.num_rows // 2
            yield from self._bisect(stage, function, table.slice(0, half), before, whole)
            yield from self._bisect(stage, function, table.slice(half), before, whole)
            return
        yield result
