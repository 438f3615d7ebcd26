"""A pipeline run one record at a time, as anybody would write it: what the chain must agree with."""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from procession.plan.graph import Codec, Framing, Graph, Kind
from procession.storage.segment import INGRESS_SCHEMA

Record = dict[str, Any]


def batch_of(payloads: list[bytes], stream_id: int = 7) -> pa.RecordBatch:
    """An ingress batch; the message id of record i is 10 * i."""
    count = len(payloads)
    columns = [[0] * count, [stream_id] * count, [10 * i for i in range(count)], [1] * count, [b"k"] * count, payloads]
    return pa.record_batch(
        [pa.array(column, one.type) for column, one in zip(columns, INGRESS_SCHEMA, strict=True)], schema=INGRESS_SCHEMA
    )


@dataclass
class Sequential:
    """Walks the graph from each record in turn. `by_row` has the one-row sense of each `map_batches` function."""

    graph: Graph
    by_row: dict[str, Callable[[bytes], bytes]] = field(default_factory=dict)
    outputs: dict[str, bytes] = field(default_factory=lambda: defaultdict(bytes))

    def run(self, batch: pa.RecordBatch) -> dict[str, bytes]:
        for record in batch.to_pylist():
            letters: list[tuple[int, bytes]] = []
            self._walk(0, record["payload"], record, letters)
            for _, letter in sorted(letters, key=lambda letter: letter[0]):
                self.outputs["dead-letter"] += letter + b"\n"
        return {sink.name: self.outputs[sink.name] for sink in self.graph.sinks}

    def _walk(self, index: int, value: Any, record: Record, letters: list[tuple[int, bytes]]) -> None:
        node = self.graph.nodes[index]
        if node.kind is Kind.SINK:
            data = value.encode() if isinstance(value, str) else value
            self.outputs[node.name] += data + (b"\n" if node.framing is Framing.LINES else b"")
            return
        try:
            values = list(self._results(index, value))
        except Exception as error:
            letters.append((index, letter_of(record, node.name, error)))
            return
        for one in values:
            for child in self.graph.children(index):
                self._walk(child, one, record, letters)

    def _results(self, index: int, value: Any) -> Iterator[Any]:
        node = self.graph.nodes[index]
        match node.kind:
            case Kind.SOURCE:
                yield value.decode() if node.codec is Codec.TEXT else value
            case Kind.MAP:
                yield node.function(value)  # type: ignore[misc]
            case Kind.FILTER:
                if node.function(value):  # type: ignore[misc]
                    yield value
            case Kind.FLAT_MAP:
                yield from node.function(value)  # type: ignore[misc]
            case Kind.MAP_BATCHES:
                yield self.by_row[node.name](value.encode() if isinstance(value, str) else value)


def letter_of(record: Record, stage: str, error: Exception) -> bytes:
    return json.dumps(
        {
            "stream_id": record["stream_id"],
            "message_id": record["message_id"],
            "stage": stage,
            "error": f"{type(error).__name__}: {error}",
            "payload": base64.b64encode(record["payload"]).decode(),
        }
    ).encode()
