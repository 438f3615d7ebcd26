"""Stages on columns: which stages of a graph are computed for whole Arrow columns, and how.

Invariant: a stage on columns emits what it would emit record by record, in the same order and with the same errors. A
batch that does not fit its columns goes record by record from there on. The decision follows from the graph alone. Used
by `operators/chain`, and by `planner/explain`, which shows it. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from procession.operators.column_parser import why_not
from procession.operators.column_values import ColumnValues, NotColumnar, Settled, as_objects, is_records, settled
from procession.operators.expressions import Expression
from procession.operators.record_schema import SchemaJson
from procession.planner.graph import Graph, Kind, Node

STAGES = frozenset({Kind.FILTER, Kind.MAP})


@dataclass(frozen=True)
class ColumnStages:
    """Which stages are computed on columns."""

    types: Mapping[int, pa.DataType]
    """The stages, each with the type of the column that it emits."""
    reasons: Mapping[int, str]
    """The other stages with expressions or schemas, and why they go record by record."""

    def __contains__(self, index: int) -> bool:
        return index in self.types


def column_stages(graph: Graph) -> ColumnStages:
    """The stages of this graph that are computed on columns: filters and maps with expressions behind a source with a
    schema, without a function in between."""
    kinds: dict[int, pa.DataType] = {}
    reasons: dict[int, str] = {}
    for index, node in enumerate(graph.nodes):
        if isinstance(node.typed, SchemaJson):
            kinds[index], reasons[index] = node.typed.record_type, why_not(node.typed)
            if reasons[index]:
                del kinds[index]
        elif node.kind in STAGES and isinstance(node.function, Expression):
            try:
                kinds[index] = _type_behind(graph, node, kinds)
            except NotColumnar as reason:
                reasons[index] = str(reason)
    # A source whose records are needed as objects anyway is decoded one by one: that is faster.
    for index, node in enumerate(graph.nodes):
        if node.kind is Kind.SOURCE and index in kinds and not any(child in kinds for child in graph.children(index)):
            del kinds[index]
            reasons[index] = "no filter or map with an expression follows it"
    return ColumnStages(kinds, {index: reason for index, reason in reasons.items() if reason})


def _type_behind(graph: Graph, node: Node, kinds: Mapping[int, pa.DataType]) -> pa.DataType:
    """The type that a stage emits. Raises NotColumnar."""
    (parent,) = node.parents
    before = kinds.get(parent)
    expression = node.function
    assert isinstance(expression, Expression)
    if before is None or not pa.types.is_struct(before):
        raise NotColumnar(f"the records of {graph.nodes[parent].name!r} are not in columns")
    kind = expression.type_in(before)
    if node.kind is Kind.MAP:
        return kind
    if kind != pa.bool_():
        raise NotColumnar(f"{expression} is {kind}, and not true or false")
    return before


def computed(expression: Expression, records: pa.StructArray) -> Settled:
    """The values of an expression for these records."""
    try:
        column = expression.over(records)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # such as a number beyond 64 bits
        nothing = pa.nulls(len(records), expression.type_in(records.type))
        column = ColumnValues(nothing, np.ones(len(records), np.bool_))
    if column.doubts is None:
        return Settled(column.values, None, [])
    rows = np.flatnonzero(column.doubts)
    doubtful = dict(zip(rows.tolist(), as_objects(records.take(pa.array(rows))), strict=True))
    return settled(column, lambda row: expression(doubtful[row]))


def kept_rows(found: Settled) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The rows for which a filter's expression is true."""
    if isinstance(found.values, list):
        flags = np.fromiter(map(bool, found.values), np.bool_, len(found.values))
    else:
        flags = found.values.to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(flags)
    return rows if found.rows is None else np.asarray(found.rows, np.int64)[rows]


def as_values(values: pa.Array | list[Any]) -> pa.Array | list[Any]:
    """What a map emits: records and text as columns, other values as objects."""
    if isinstance(values, list) or is_records(values) or (values.type == pa.string() and not values.null_count):
        return values
    return as_objects(values)
