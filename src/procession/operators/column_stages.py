"""Stages on columns: which stages of a graph are computed for whole Arrow columns, and how.

Invariant: a stage on columns emits the same results as record by record, in the same order and with the same errors. A
batch that does not fit its columns is processed record by record from there on. The decision depends only on the graph.
`operators/chain` uses it, and `planner/explain` shows it. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from procession.operators.column_pack import unpacked_field
from procession.operators.column_parser import why_not
from procession.operators.column_values import ColumnValues, NotColumnar, Settled, as_objects, is_records, settled
from procession.operators.expressions import Expression
from procession.operators.record_schema import SchemaJson
from procession.planner.graph import Graph, Kind, Node, PayloadCodec
from procession.planner.keys import RecordKey
from procession.planner.strategies import Routing, key_of, routing_of

STAGES = frozenset({Kind.FILTER, Kind.MAP, Kind.KEY_BY, Kind.ADD_TIMESTAMPS})
PASSING_ON = frozenset({Kind.REBALANCE, Kind.DISTINCT})
"""Stages behind an exchange that pass records on without looking at them."""
DECODING = frozenset({Kind.SOURCE, Kind.REBALANCE})
"""Stages that decode all records that they pass on."""


@dataclass(frozen=True)
class ColumnStages:
    """The stages that are computed on columns."""

    types: Mapping[int, pa.DataType]
    """The stages on columns, each with the type of the column that it emits."""
    keyed: frozenset[int]
    """The stages after an exchange whose keys are computed on columns, and whose records pass the exchange as
    columns."""
    arriving: Mapping[int, pa.StructType]
    """The stages that read records over their exchange as columns, each with the type of a record."""
    reasons: Mapping[int, str]
    """The other stages with expressions or schemas, and the reasons why they are processed record by record."""
    objects: Mapping[int, str]
    """The stages and sinks that turn columns into objects, and the reasons."""

    def __contains__(self, index: int) -> bool:
        return index in self.types


def column_stages(graph: Graph) -> ColumnStages:
    """Find the stages of this graph that are computed on columns: stages with expressions after a source with a schema,
    without a function in between."""
    kinds: dict[int, pa.DataType] = {}
    keyed: set[int] = set()
    arriving: dict[int, pa.StructType] = {}
    reasons: dict[int, str] = {}
    for index, node in enumerate(graph.nodes):
        try:
            if isinstance(node.typed, SchemaJson):
                kinds[index] = _type_of_source(node.typed)
            elif node.kind in STAGES and isinstance(node.function, Expression):
                kinds[index] = _type_behind(graph, node, node.function, kinds)
            elif _is_keyed(node) and _has_key_on_columns(graph, node, key_of(node), kinds):
                keyed.add(index)
            if (kind := _type_that_arrives(node, kinds)) is not None:
                arriving[index] = kind
                if node.kind in PASSING_ON:
                    kinds[index] = kind
        except NotColumnar as error:
            reasons[index] = str(error)
    # If later stages need objects anyway, records are decoded one by one, which is faster.
    for index in sorted(kinds, reverse=True):
        if graph.nodes[index].kind in DECODING and not any(
            child in kinds or child in keyed or child in arriving or _is_written(graph.nodes[child], kinds[index])
            for child in graph.children(index)
        ):
            del kinds[index]
            arriving.pop(index, None)
            if graph.nodes[index].kind is Kind.SOURCE:
                reasons[index] = "no stage with an expression follows it"
    objects = {
        child: reason
        for index, kind in kinds.items()
        for child in graph.children(index)
        if child not in kinds
        and child not in arriving
        and (reason := _why_objects(graph.nodes[child], kind, is_keyed=child in keyed))
    }
    return ColumnStages(kinds, frozenset(keyed), arriving, reasons, objects)


def _type_of_source(codec: SchemaJson) -> pa.DataType:
    if reason := why_not(codec):
        raise NotColumnar(reason)
    return codec.record_type


def _type_behind(graph: Graph, node: Node, expression: Expression, kinds: Mapping[int, pa.DataType]) -> pa.DataType:
    """Return the type that a stage emits. Raises NotColumnar."""
    (parent,) = node.parents
    before = _records_of(graph, parent, kinds)
    kind = expression.type_in(before)
    if node.kind is Kind.MAP:
        return kind
    if node.kind is Kind.FILTER and kind != pa.bool_():
        raise NotColumnar(f"{expression} is {kind}, and not true or false")
    return before


def _records_of(graph: Graph, index: int, kinds: Mapping[int, pa.DataType]) -> pa.StructType:
    """Return the type of the records of a stage. Raises NotColumnar if they are not in columns."""
    kind = kinds.get(index)
    if kind is None or not pa.types.is_struct(kind):
        raise NotColumnar(f"the records of {graph.nodes[index].name!r} are not in columns")
    return kind


def _type_that_arrives(node: Node, kinds: Mapping[int, pa.DataType]) -> pa.StructType | None:
    """The type of the records that come to a stage over its exchange, if they come in columns, and the stage passes
    them on or computes an expression of them."""
    operator = node.operator
    is_passing = node.kind in PASSING_ON and (operator is None or operator.state.steps is None)
    over = None if operator is None else operator.state.over
    expression = None if over is None else over.expression
    found = {kinds.get(parent) for parent in node.parents}
    kind = found.pop() if found else None
    if found or kind is None or not types.is_struct(kind) or unpacked_field(kind) is not None:
        return None
    if over is not None and expression is not None:
        return kind if over.takes(expression.type_in(kind)) else None
    return kind if is_passing else None


def _is_keyed(node: Node) -> bool:
    return routing_of(node) is Routing.BY_KEY


def _has_key_on_columns(
    graph: Graph, node: Node, key: Callable[[Any], Any] | RecordKey, kinds: Mapping[int, pa.DataType]
) -> bool:
    """Whether the keys and the records of an exchange are in columns. Raises NotColumnar if they almost are."""
    if isinstance(key, RecordKey):
        if not all(parent in kinds and types.is_struct(kinds[parent]) for parent in node.parents):
            return False
    elif not isinstance(key, Expression):
        return False
    for parent in node.parents:
        before = _records_of(graph, parent, kinds)
        if isinstance(key, Expression):
            key.type_in(before)
        if (other := unpacked_field(before)) is not None:
            raise NotColumnar(f"its field {other.name!r} is {other.type}, which passes an exchange in objects only")
    return True


def _is_written(node: Node, kind: pa.DataType) -> bool:
    """Whether a node is a sink that writes columns of this type."""
    is_text = types.is_string(kind) and node.codec in (PayloadCodec.BYTES, PayloadCodec.TEXT)
    return node.kind is Kind.SINK and (is_text or (types.is_struct(kind) and node.codec is PayloadCodec.JSON))


def _why_objects(node: Node, kind: pa.DataType, *, is_keyed: bool) -> str:
    """Return why a stage or a sink after columns of this type makes objects of them. Empty: it does not."""
    if node.kind is Kind.SINK:
        return "" if _is_written(node, kind) else f"codec={node.codec.value!r} writes {kind} value by value"
    if is_keyed and node.operator is not None and not node.operator.state.reads_records:
        return ""
    if is_keyed:
        return "a stage with state takes objects; its records pass the exchange as columns"
    if _is_keyed(node):
        return "its key is not an expression on columns"
    if not types.is_struct(kind):
        return f"it takes {kind}, and expressions take records with fields"
    return "its function takes objects" if node.function is not None else "it takes objects"


def computed(expression: Expression, records: pa.StructArray) -> Settled:
    """Compute the values of an expression for these records."""
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


def kept_rows(flags_of: Settled) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the rows for which a filter's expression is true."""
    if isinstance(flags_of.values, list):
        flags = np.fromiter(map(bool, flags_of.values), np.bool_, len(flags_of.values))
    else:
        flags = flags_of.values.to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(flags)
    return rows if flags_of.rows is None else np.asarray(flags_of.rows, np.int64)[rows]


def as_values(values: pa.Array | list[Any]) -> pa.Array | list[Any]:
    """Return the values that a map emits: records and text as columns, other values as objects."""
    if isinstance(values, list) or is_records(values) or (values.type == pa.string() and not values.null_count):
        return values
    return as_objects(values)
