"""The chain: all stages between two exchanges, fused into one function over Arrow batches.

The one rule: rows in, rows out, in order, and every row knows the ingress row that it came from, so that an error can
name the record and a dead letter stands where the record would have stood. Before it `storage/log`, which the task
reads; after it `storage/runs`, which keeps what each sink is to get. Pure: the user's functions are all that it calls.
"""

from __future__ import annotations

import base64
import json
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain as flatten
from itertools import compress, islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from procession.errors import RecordError
from procession.plan.graph import Codec, Framing, Graph, Kind, Node, OnError

CHAIN_RECORDS_MAX = 65_536
"""How many records a chain holds as Python objects at a time."""

VISIBLE = ("payload", "key", "event_time", "stream_id", "message_id")
TYPES = "str or bytes"


@dataclass(frozen=True)
class Flow:
    """Rows between two stages: values for the user's functions, and the ingress row of each (None: row i is row i)."""

    values: pa.Array | list[Any]
    origins: np.ndarray[Any, np.dtype[np.int64]] | None = None

    def as_list(self) -> list[Any]:
        return self.values if isinstance(self.values, list) else self.values.to_pylist()

    def origin(self, row: int) -> int:
        return row if self.origins is None else int(self.origins[row])

    def keep(self, rows: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The origins of these rows."""
        picked = np.asarray(rows, dtype=np.int64)
        return picked if self.origins is None else self.origins[picked]


@dataclass(frozen=True)
class Letter:
    """A record on which a function raised, at the place in the order that it had."""

    origin: int
    stage: int
    line: bytes


class Chain:
    """A graph's stages as one function: `run(batch)` gives the bytes that each sink is to get."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def run(self, batch: pa.RecordBatch) -> Iterator[dict[str, pa.Array]]:
        """The rows of each sink for this batch of records, in slices of bounded size."""
        for start in range(0, batch.num_rows, CHAIN_RECORDS_MAX):
            yield _Pass(self.graph, batch.slice(start, CHAIN_RECORDS_MAX)).outputs()


class _Pass:
    """One slice on its way through the graph."""

    def __init__(self, graph: Graph, batch: pa.RecordBatch) -> None:
        self.graph = graph
        self.batch = batch
        self.letters: list[Letter] = []
        self.columns: dict[int | None, Flow] = {}

    def outputs(self) -> dict[str, pa.Array]:
        flows: list[Flow] = []
        outputs: dict[str, pa.Array] = {}
        for index, node in enumerate(self.graph.nodes):
            if not node.parents and node.kind is Kind.SINK:
                outputs[node.name] = self._framed(node, Flow(self._letter_lines()), index)
                flows.append(Flow([]))
                continue
            before = Flow(self.batch.column("payload")) if not node.parents else flows[node.parents[0]]
            flow = self._stage(index, node, before)
            flows.append(flow)
            if node.kind is Kind.SINK:
                outputs[node.name] = self._framed(node, flow, index)
        return outputs

    def _stage(self, index: int, node: Node, before: Flow) -> Flow:
        if node.kind is Kind.SOURCE:
            return self._decoded(index, node, before)
        if node.kind is Kind.SINK:
            return before
        assert node.function is not None
        if node.kind is Kind.MAP_BATCHES:
            return self._mapped_batches(index, node.function, before)
        results, rows = self._each(index, node.function, before, listed=node.kind is Kind.FLAT_MAP)
        if node.kind is Kind.MAP:
            return Flow(results, before.origins if rows is None else before.keep(rows))
        if node.kind is Kind.FILTER:
            values = before.as_list()
            kept = list(compress(range(len(values)) if rows is None else rows, results))
            return Flow([values[row] for row in kept], before.keep(kept))
        counts = np.fromiter(map(len, results), np.int64, len(results))
        parents = np.arange(len(results), dtype=np.int64) if rows is None else np.asarray(rows, dtype=np.int64)
        return Flow(list(flatten.from_iterable(results)), before.keep(np.repeat(parents, counts)))

    def _each(
        self, stage: int, function: Callable[[Any], Any], before: Flow, *, listed: bool
    ) -> tuple[list[Any], list[int] | None]:
        """The function's result for each row, and which rows they are (None: all of them)."""
        values = before.as_list()
        results: list[Any] = []
        failed: list[int] = []
        append = results.append
        while (row := len(results) + len(failed)) < len(values):
            try:
                if listed:
                    for value in islice(values, row, None):
                        append(list(function(value)))
                else:
                    for value in islice(values, row, None):
                        append(function(value))
            except Exception as error:  # the user's code may raise anything; the record decides who acts
                row = len(results) + len(failed)
                self._failed(stage, before.origin(row), error)
                failed.append(row)
        if not failed:
            return results, None
        refused = set(failed)
        return results, [row for row in range(len(values)) if row not in refused]

    def _mapped_batches(self, stage: int, function: Callable[[Any], Any], before: Flow) -> Flow:
        payload = self._binary(stage, before)
        origins = payload.origins if payload.origins is not None else np.arange(len(payload.values), dtype=np.int64)
        visible = self.batch.select([name for name in VISIBLE if name != "payload"]).take(pa.array(origins))
        table = pa.RecordBatch.from_arrays([payload.values, *visible.columns], names=list(VISIBLE))
        pieces = list(self._bisect(stage, function, table, origins))
        if not pieces:
            return Flow(pa.array([], pa.binary()), np.empty(0, np.int64))
        values, rows = zip(*pieces, strict=True)
        return Flow(pa.concat_arrays(values), np.concatenate(rows))

    def _bisect(
        self, stage: int, function: Callable[[Any], Any], table: pa.RecordBatch, origins: Any
    ) -> Iterator[tuple[pa.Array, Any]]:
        """Run the function; where it raises, halve the batch until the record that did it stands alone."""
        if not table.num_rows:
            return
        try:
            column = _column(function(table))
        except Exception as error:  # the user's code may raise anything; the record decides who acts
            if table.num_rows == 1:
                self._failed(stage, int(origins[0]), error)
                return
            half = table.num_rows // 2
            yield from self._bisect(stage, function, table.slice(0, half), origins[:half])
            yield from self._bisect(stage, function, table.slice(half), origins[half:])
            return
        # A batch that grew or shrank has lost its row numbers: its rows are then said to come from its first record.
        known = origins if len(column) == len(origins) else np.full(len(column), origins[0], np.int64)
        yield column, known

    def _decoded(self, index: int, node: Node, before: Flow) -> Flow:
        if node.codec is Codec.BYTES:
            return before
        try:
            return Flow(before.values.cast(pa.string()), before.origins)  # type: ignore[union-attr]
        except pa.ArrowInvalid:
            results, rows = self._each(index, bytes.decode, before, listed=False)
            return Flow(results, before.origins if rows is None else before.keep(rows))

    def _binary(self, stage: int, flow: Flow) -> Flow:
        """The values as an Arrow column of bytes; a value that is neither text nor bytes is the stage's error."""
        parent = next(iter(self.graph.nodes[stage].parents), None)
        if parent not in self.columns:  # once for all that go on from there: a record errs once
            self.columns[parent] = self._as_column(parent, flow)
        return self.columns[parent]

    def _as_column(self, stage: int | None, flow: Flow) -> Flow:
        if not isinstance(flow.values, list):
            return Flow(flow.values.cast(pa.binary()), flow.origins)
        try:
            column = pa.array(flow.values, pa.binary())
            if not column.null_count:  # Arrow takes None for a value; we do not
                return Flow(column, flow.origins)
        except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, UnicodeEncodeError):
            pass
        assert stage is not None
        results, rows = self._each(stage, _as_bytes, flow, listed=False)
        return Flow(pa.array(results, pa.binary()), flow.origins if rows is None else flow.keep(rows))

    def _framed(self, node: Node, flow: Flow, index: int) -> pa.Array:
        payload = self._binary(index, flow).values
        if node.framing is Framing.RAW:
            return payload
        newline = pa.scalar(b"\n", pa.binary())
        return pc.binary_join_element_wise(payload, newline, pa.scalar(b"", pa.binary()))

    def _failed(self, stage: int, origin: int, error: Exception) -> None:
        name = self.graph.nodes[stage].name
        row = self.batch.slice(origin, 1).to_pylist()[0]
        told = f"{type(error).__name__}: {error}"
        if self.graph.on_error is OnError.STOP:
            raise RecordError(
                f"stage {name!r} raised on message {row['message_id']} of stream {row['stream_id']}: {told}",
                next_step='mend the function, or give the Pipeline dead_letter="file:DIR" to set such records aside;'
                " nothing of this epoch was committed, and it is run again when you start again",
                stage=name,
                stream_id=row["stream_id"],
                message_id=row["message_id"],
                trace="".join(traceback.format_exception(error)),
            ) from error
        letter = {
            "stream_id": row["stream_id"],
            "message_id": row["message_id"],
            "stage": name,
            "error": told,
            "payload": base64.b64encode(row["payload"]).decode(),
        }
        self.letters.append(Letter(origin, stage, json.dumps(letter).encode()))

    def _letter_lines(self) -> list[bytes]:
        ordered = sorted(self.letters, key=lambda letter: (letter.origin, letter.stage))
        return [letter.line for letter in ordered]


def _column(answer: Any) -> pa.Array:
    if isinstance(answer, pa.RecordBatch | pa.Table):
        answer = answer.column("payload")
    if isinstance(answer, pa.ChunkedArray):
        answer = answer.combine_chunks()
    if not isinstance(answer, pa.Array):
        raise TypeError(f"map_batches gave back {type(answer).__name__}: give an Arrow array or a RecordBatch")
    if answer.null_count:
        raise TypeError("map_batches gave back a null payload")
    return answer.cast(pa.binary())


def _as_bytes(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    raise TypeError(f"the function gave back {type(value).__name__}: give {TYPES}")
