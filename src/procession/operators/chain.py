"""The chain: all stages between two exchanges, fused into one function over Arrow batches.

The one rule: rows in, rows out, in order, and every row knows the input row that it came from, so that an error can
name the record and a dead letter stands where the record would have stood. Before it `storage/log` or the runs of an
exchange, which the task reads; after it `storage/run_store`, which keeps what each sink and each exchange is to get.
Pure: the user's functions are all that it calls, and what waits for the asynchronous ones is handed in.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain as flatten
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from procession.operators.batch_result import read_answer
from procession.operators.buckets import listed
from procession.operators.chain_output import Delivery
from procession.operators.chain_rows import Output, Rows
from procession.operators.codecs import DECODE
from procession.operators.end_firing import fired_at_end, followed, row_of_end
from procession.operators.end_of_input import BEYOND, Change, End
from procession.operators.fusion import LINES, fused
from procession.operators.inlining import LinesOf
from procession.operators.keyed import NO_STATES, States, run_keyed
from procession.operators.stage_rows import Flow, Numbers, joined, ordinals, put_together
from procession.operators.tables import joinings_at
from procession.operators.timed import Timed
from procession.operators.value_codec import ValueCodec, as_column, as_payloads
from procession.operators.watermark import Watermark
from procession.operators.watermark_timers import Reached
from procession.operators.window_operator import timed_flow
from procession.planner.event_order import LateRecord
from procession.planner.graph import Codec, Kind, Node
from procession.planner.inputs import Turn
from procession.planner.keyed_spec import Gives, Stateful
from procession.planner.keys import KeyCodec
from procession.planner.order_key import Result, flow_of
from procession.planner.plan import BY_RECORD, Plan
from procession.planner.strategies import numbers_behind
from procession.record import COLUMNS

CHAIN_RECORDS_MAX = 65_536
"""How many records a chain holds as Python objects at a time."""

BLOCK_RECORDS = 8192
"""So many records at a time go through stages with functions of one record: what was made of them is still in the
processor's cache when it becomes a column. Smaller ones cost more beside their records."""

AwaitAll = Callable[[Callable[[Any], Any], list[Any], int, float], list[Any]]
"""Awaits a coroutine function on each value: (function, values, concurrency, timeout_s). Raises `CallFailed`."""


class CallFailed(Exception):
    """An asynchronous call raised, or took too long."""

    def __init__(self, row: int, error: BaseException) -> None:
        super().__init__(row, error)
        self.row = row
        self.error = error


class Chain:
    """One chain of a plan as a function: `run(rows)` gives what each sink and each exchange is to get of them.

    `find(sequence)` looks a record up that an error must name, where the chain has not the records themselves; `turn`
    is the bucket that the first rows of an even exchange go to; `states` are what a keyed stage works on; `copies`, by
    path, are read instead of tables that may change; `lines_of` reads the files that the user's functions are in."""

    def __init__(
        self,
        plan: Plan,
        number: int,
        *,
        find: Callable[[int], dict[str, Any]],
        await_all: AwaitAll | None = None,
        turn: int = 0,
        states: States = NO_STATES,
        changes: Sequence[Change] = (),
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
        others = [source.streams for source in graph.sources if source.streams is not None]
        self.named_streams = frozenset().union(*others)
        self.turn = turn
        self.steps = plan.steps(number)
        self.joinings = joinings_at({index: plan.node(index).function for index in self.planned.stages}, copies or {})
        # How far this task's records have moved the watermark of each stage with windows that it feeds.
        self.reached: defaultdict[int, Reached] = defaultdict(Reached)
        ending = None if root is None else plan.endings.get(root)
        self.ends: list[End | Turn] = [] if ending is None else [*followed(ending, states, changes)]
        inputs = None if root is None else plan.inputs.get(root)
        self.watermark = None if inputs is None else Watermark(inputs, states, changes)
        if self.watermark is not None:
            # Where both are, first an input ends, and then all that is held goes.
            self.ends = sorted([*self.watermark.ends, *self.ends], key=lambda end: (end.sequence, type(end) is End))
        self.late = 0

    @property
    def input(self) -> int | None:
        """The one input that what leaves this chain is of; None: each record is of its stream's."""
        return self.plan.origins[self.planned.number]

    def run_all(self, pieces: Iterable[Rows]) -> Iterator[Output]:
        """The output of all rows of an epoch, and of the ends that lie between them."""
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

    def _end(self, end: End | Turn) -> Iterator[Output]:
        """The input of the first stage has ended, or one of its inputs: what that fires stands behind all else at that
        place."""
        root = self.planned.root
        assert root is not None
        stateful = self.plan.node(root).stateful
        assert stateful is not None
        key = (end.sequence, BEYOND + root, *[0] * self.key_length)[: self.key_length]
        row = row_of_end(key, end, is_carrying=root in self.plan.carrying)
        if isinstance(end, Turn):
            assert stateful.windowing is not None
            assert self.watermark is not None
            fired: Iterator[Sequence[Result]] = stateful.windowing.go_on(self.states, self.watermark.end(end))
        else:
            fired = fired_at_end(stateful, self.states)
        for results in fired:
            yield from _Pass(self, row, flow_of(results)).outputs()

    def run(self, rows: Rows) -> Iterator[Output]:
        """The output of these rows, in slices of bounded size."""
        for start in range(0, len(rows), CHAIN_RECORDS_MAX):
            yield from _Pass(self, rows.slice(start, CHAIN_RECORDS_MAX)).outputs()
            self.turn += 1


class _Pass(Delivery):
    """One slice on its way through the chain. `fired` is what the first stage gives, if it is an end that lets it."""

    def __init__(self, chain: Chain, rows: Rows, fired: Flow | None = None) -> None:
        super().__init__(chain, rows)
        self.fired = fired

    def outputs(self) -> Iterator[Output]:
        for step in self.chain.steps:
            is_by_record = self.plan.node(step[0]).kind in BY_RECORD
            self.flows[step[-1]] = (
                self._in_blocks(step)
                if is_by_record
                else self._traced(step[0], self._kept_apart(step[0], self._stage(step[0])))
            )
        yield from self.delivered()

    # Stages

    def _traced(self, index: int, flow: Flow) -> Flow:
        """What leaves a stage; where nobody behind asks for it, the key is left here."""
        return flow if index in self.plan.traced else replace(flow, tail=())

    def _in_blocks(self, step: Sequence[int]) -> Flow:
        """Stages with functions of one record, each of which only the next one takes from."""
        before = self._before(step[0])
        # What only sinks get need not be told apart, bytes from text: they write both alike.
        behind = [self.plan.node(index) for index in self.plan.graph.children(step[-1])]
        is_final = all(node.kind is Kind.SINK and node.codec in (Codec.BYTES, Codec.TEXT) for node in behind)
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
        return put_together(pieces)

    def _fused(self, stages: tuple[int, ...], before: Flow) -> Flow:
        """Stages that give at most one value for one."""
        nodes = [self.plan.node(index) for index in stages]
        functions = [node.function for node in nodes if node.function is not None]

        def failed(place: int, row: int, error: Exception) -> None:
            came = before if self.plan.traced.issuperset(stages[:place]) else replace(before, tail=())
            self.letters.add(stages[place], came, row, error)

        kinds = tuple(node.kind for node in nodes)
        are_owned = tuple(index in self.plan.sharing.borrowing for index in stages)
        results, rows = fused(kinds, functions, before.as_list(), failed, self.chain.lines_of, are_owned)
        made = before.pick(rows, results)
        return made if self.plan.traced.issuperset(stages) else replace(made, tail=())

    def _stage(self, index: int) -> Flow:
        node = self.plan.node(index)
        if index == self.chain.planned.root:
            if self.fired is not None:
                return self.fired
            assert self.rows.forms is not None
            if node.stateful is not None and (windowing := node.stateful.windowing) is not None:
                refused = partial(self._refused, index, windowing)
                codec, watermark = self.chain.values, self.chain.watermark
                return timed_flow(self.rows, windowing, self.chain.states, refused, watermark, codec)
            flow = Flow(self.chain.values.unpack(self.rows.payload, self.rows.forms), keys=self.rows.keys)
            if node.stateful is not None and (totals := node.stateful.totals) is not None:
                assert self.rows.keys is not None
                refuse = partial(self.letters.add, index, flow)
                totals.add(self.chain.states, self.rows.keys.to_pylist(), flow.as_list(), refuse)
                return flow_of([])
            if node.stateful is not None and (sorting := node.stateful.sorting) is not None:
                sorting.add(self.chain.states, flow.as_list(), partial(self.letters.add, index, flow))
                return flow_of([])
            return flow if node.stateful is None else self._keyed(index, node.stateful, flow)
        if node.kind is Kind.SOURCE:
            return self._source(index, node)
        before = self._before(index)
        match node.kind:
            case Kind.MERGE | Kind.REBALANCE:  # a rebalance with nothing to do
                return before
            case Kind.MAP_BATCHES:
                return self._map_batches(index, node)
            case Kind.MAP_ASYNC:
                return self._map_async(index, node, before)
        raise AssertionError(f"{node.kind} cannot be run")

    def _called(self, index: int, before: Flow) -> Flow:
        node = self.plan.node(index)
        assert node.function is not None
        before = before.with_values(before.as_list())
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
        return self._kept_apart(index, self._flattened(index, before, results, rows))

    def _is_fused(self, index: int) -> bool:
        node = self.plan.node(index)
        return node.kind in LINES and not node.is_asking

    def _listed(self, index: int, node: Node) -> Callable[[Any], list[Any]]:
        """A stage's function that gives a list for one value, each result apart from the others where it matters."""
        assert node.function is not None
        is_exposed, is_changing = (index in those for those in (self.plan.sharing.exposed, self.plan.sharing.changing))
        if node.kind is Kind.HASH_JOIN:
            return replace(self.chain.joinings[index], is_copying=is_exposed or is_changing)
        return listed(node.function, is_exposed=is_exposed, is_changing=is_changing)

    def _kept_apart(self, index: int, flow: Flow) -> Flow:
        """What a stage gave, copied if its function may still hold it and somebody behind may change it."""
        return self._owned(index, flow) if index in self.plan.sharing.borrowing else flow

    def _before(self, index: int) -> Flow:
        """What comes to a stage, of those of its parents that this chain runs."""
        parents = [parent for parent in self.plan.node(index).parents if parent in self.flows]
        flows = [self._branch(parent, index, self._given(parent, index)) for parent in parents]
        if self.plan.node(index).kind is not Kind.MERGE:
            return flows[0]
        is_kept = bool(self.plan.traced & set(parents))
        if is_kept:
            flows = [flow.padded(len(self.plan.keys[index]) - self.chain.key_length) for flow in flows]
        # Where records came without their keys and times, no stage is shown any.
        of = None if self.rows.columns is None else (self._keys, self._times)
        return joined(flows, of, is_kept=is_kept)

    def _on_time(self, index: int, flow: Flow, are_late: npt.NDArray[np.bool_]) -> Flow:
        """The records that are not late; of the others, what the pipeline says becomes of them."""
        are_late = are_late if flow.origins is None else are_late[flow.origins]
        for row in np.flatnonzero(are_late).tolist():
            self.letters.late(index, flow, row)
        return flow.take(np.flatnonzero(~are_late))

    def _refused(self, index: int, windowing: Timed, flow: Flow, row: int, error: Exception) -> None:
        if isinstance(error, LateRecord):
            self.chain.late += 1
            if not windowing.sets_late_aside:
                return
        self.letters.add(index, flow, row, error)

    def _source(self, index: int, node: Node) -> Flow:
        flow = Flow(self.rows.payload)
        if len(self.plan.graph.sources) > 1:
            assert self.rows.columns is not None
            streams = node.streams if node.streams is not None else self.chain.named_streams
            mask = pc.is_in(self.rows.columns.column("stream_id"), value_set=pa.array(sorted(streams), pa.uint64()))
            flow = flow.take(np.flatnonzero(mask.to_numpy(zero_copy_only=False) == (node.streams is not None)))
        if self.rows.are_late is not None:
            flow = self._on_time(index, flow, self.rows.are_late)
        if node.codec is Codec.BYTES:
            return flow
        if node.codec is Codec.TEXT:
            try:
                return flow.with_values(flow.values.cast(pa.string()))  # type: ignore[union-attr]
            except pa.ArrowInvalid:
                pass  # one by one, to find which
        results, rows = self._each(index, DECODE[node.codec], flow)
        return flow.pick(rows, results)

    def _flattened(self, index: int, before: Flow, results: list[list[Any]], rows: list[int] | None) -> Flow:
        counts = np.fromiter(map(len, results), np.int64, len(results))
        parents = np.arange(len(results), dtype=np.int64) if rows is None else np.asarray(rows, dtype=np.int64)
        flow = before.pick(np.repeat(parents, counts), list(flatten.from_iterable(results)))
        return flow.numbered(ordinals(counts)) if index in self.plan.traced else flow

    def _keyed(self, index: int, stateful: Stateful, before: Flow) -> Flow:
        assert before.keys is not None
        refuse = partial(self.letters.add, index, before)
        results, rows = run_keyed(stateful, self.chain.states, before.keys, before.as_list(), refuse)
        if stateful.gives is Gives.MANY:
            return self._flattened(index, before, results, rows)
        return before.pick(rows, results)

    def _map_async(self, index: int, node: Node, before: Flow) -> Flow:
        assert self.chain.await_all is not None
        assert node.function is not None
        try:
            results = self.chain.await_all(node.function, before.as_list(), node.concurrency, node.timeout_s)
        except CallFailed as failed:
            raise self.letters.failed_call(index, before, failed.row, failed.error) from failed.error
        return before.with_values(results)

    def _map_batches(self, index: int, node: Node) -> Flow:
        (parent,) = node.parents
        before = self._branch(parent, index, self._encoded(parent, Codec.BYTES))
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
        if picked[0] is rows:  # one for one: nothing has to be picked
            return before.with_values(values[0]).numbered(numbers[0])
        flow = before.pick(np.concatenate(picked), pa.concat_arrays(values))
        return flow.numbered(np.concatenate(numbers))

    def _bisect(
        self, stage: int, function: Callable[[Any], Any], table: pa.RecordBatch, before: Flow, whole: Numbers
    ) -> Iterator[tuple[pa.Array, Numbers, Numbers]]:
        """Run the function; where it raises, halve the batch until the record that did it stands alone. Gives payloads,
        the row that each came from, and its number among those of that row."""
        if not table.num_rows:
            return
        rows = whole if table.num_rows == len(whole) else table.column("row").to_numpy()
        try:
            answer = read_answer(function(table), rows, is_placed=stage in self.plan.traced)
        except Exception as error:  # the user's code may raise anything; the record decides who acts
            if table.num_rows == 1:
                self.letters.add(stage, before, int(rows[0]), error)
                return
            half = table.num_rows // 2
            yield from self._bisect(stage, function, table.slice(0, half), before, whole)
            yield from self._bisect(stage, function, table.slice(half), before, whole)
            return
        yield answer
