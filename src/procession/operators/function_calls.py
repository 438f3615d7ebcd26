"""Calls of the user's functions for the rows between two stages.

Invariant: a function is called once for each row, in order. If it raises, this is an error of the stage and of the
record, and the other rows continue. An expression is computed for whole columns if possible, with the same results and
errors. Used by `operators/chain_output` and `operators/chain`. Pure, except that it calls the user's functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from procession.operators.column_keys import has_key_column, key_column, time_column
from procession.operators.column_stages import as_values, computed, kept_rows
from procession.operators.column_values import NotColumnar, Settled, as_objects, is_records, settled
from procession.operators.dead_letters import DeadLetters
from procession.operators.expressions import Expression
from procession.operators.fusion import fused
from procession.operators.inlining import LinesOf
from procession.operators.stage_rows import Numbers, StageRows
from procession.planner.graph import Kind, Node
from procession.planner.keys import KeyCodec
from procession.planner.plan import Plan
from procession.times import all_nanoseconds, nanoseconds


class FunctionCalls:
    """The calls of one pass of a chain."""

    def __init__(self, plan: Plan, keys: KeyCodec, dead_letters: DeadLetters, lines_of: LinesOf | None = None) -> None:
        self.plan = plan
        self.lines_of = lines_of
        self.key_codec = keys
        self.dead_letters = dead_letters

    def _each(
        self, stage: int, function: Callable[[Any], Any], before: StageRows
    ) -> tuple[list[Any], list[int] | None]:
        """Call the function for each row. Returns the results, and the rows that have one (None: all rows)."""
        values = before.as_list()
        results: list[Any] = []
        failed: list[int] = []
        left = iter(values)
        while len(results) + len(failed) < len(values):
            try:
                # The fastest loop in Python. If it raises, the number of results gives the row.
                for value in left:
                    results.append(function(value))  # noqa: PERF401  (the results before an error are kept)
            except Exception as error:  # user code may raise any exception
                row = len(results) + len(failed)
                self.dead_letters.add(stage, before, row, error)
                failed.append(row)
        if not failed:
            return results, None
        refused = set(failed)
        return results, [row for row in range(len(values)) if row not in refused]

    def _called_alone(self, index: int, node: Node, before: StageRows) -> StageRows:
        """Return the output of a map, a split, a filter or a peek that is not fused with others."""
        assert node.function is not None
        results, rows = self._each(index, node.function, before)
        if node.kind in (Kind.MAP, Kind.SPLIT):
            return before.pick(rows, results)
        if node.kind is Kind.PEEK:
            return before.only(rows)
        called = range(len(results)) if rows is None else rows
        return before.only([row for row, is_kept in zip(called, results, strict=True) if is_kept])

    def _on_columns(self, index: int, before: StageRows) -> StageRows:
        """Run a stage with an expression on whole columns."""
        node = self.plan.node(index)
        assert isinstance(node.function, Expression)
        if node.kind is Kind.KEY_BY:
            return self._keyed_by(index, node.function, before)
        if node.kind is Kind.ADD_TIMESTAMPS:
            flow, times = self._timed_by(index, node.function, before)
            return replace(flow, times=pa.array(times))
        found = computed(node.function, before.values)
        if node.kind is Kind.MAP:
            return self._without_errors(index, before, found).with_values(as_values(found.values))
        for row, error in found.errors:
            self.dead_letters.add(index, before, row, error)
        return before.take(kept_rows(found))

    def _evaluated(
        self, index: int, function: Callable[[Any], Any], flow: StageRows
    ) -> tuple[StageRows, pa.Array | list[Any]]:
        """Return the rows for which the function returns a value, and the values: as a column, if the function is an
        expression."""
        if isinstance(function, Expression) and is_records(flow.values):
            try:
                function.type_in(flow.values.type)  # type: ignore[union-attr]
            except NotColumnar:
                pass
            else:
                found = computed(function, flow.values)
                return self._without_errors(index, flow, found), found.values

        def failed(_place: int, row: int, error: Exception) -> None:
            self.dead_letters.add(index, flow, row, error)

        # One function, so that a key or a time that is a single expression is inlined.
        results, rows = fused((Kind.MAP,), (function,), flow.as_list(), failed, self.lines_of)
        return flow.only(rows), results

    def _without_errors(self, index: int, flow: StageRows, found: Settled) -> StageRows:
        """Return the rows that have a value. The others are errors of this stage."""
        for row, error in found.errors:
            self.dead_letters.add(index, flow, row, error)
        return flow.only(found.rows)

    def _keyed_by(self, index: int, key: Callable[[Any], Any], flow: StageRows) -> StageRows:
        """Return these rows with the keys that a user's function returns."""
        flow, keys = self._evaluated(index, key, flow)
        encode = self.key_codec.encode
        if not isinstance(keys, list) and has_key_column(keys.type):
            column = keys
            found = settled(key_column(column), lambda row: encode(as_objects(column[row : row + 1])[0]))
            return replace(self._without_errors(index, flow, found), keys=found.values)
        results = keys if isinstance(keys, list) else as_objects(keys)
        try:
            return replace(flow, keys=self.key_codec.column(results))
        except (TypeError, ValueError):  # one by one, to find the invalid key
            encoded, rows = self._each(index, encode, flow.with_values(results))
            return replace(flow.only(rows), keys=pa.array(encoded, pa.binary()))

    def _timed_by(self, index: int, time: Callable[[Any], Any], flow: StageRows) -> tuple[StageRows, Numbers]:
        """Return these rows, and the times that a user's function returns, in nanoseconds."""
        unit = self.plan.node(index).unit
        flow, found = self._evaluated(index, time, flow)
        if not isinstance(found, list):
            if (column := time_column(found, unit)) is not None:
                return flow, column
            found = as_objects(found)
        if (times := all_nanoseconds(found, unit)) is not None:
            return flow, times
        results, rows = self._each(index, partial(nanoseconds, unit=unit), flow.with_values(found))
        return flow.only(rows), np.array(results, np.int64)
