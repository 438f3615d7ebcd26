"""A pipeline run one record at a time, as anybody would write it: what any plan of it must agree with."""

from __future__ import annotations

import asyncio
import base64
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from procession.plan.codecs import DECODE, ENCODE
from procession.plan.graph import Framing, Graph, Kind
from procession.storage.segment import INGRESS_SCHEMA

Record = dict[str, Any]


def batch_of(payloads: list[bytes], stream_id: int = 7, streams: int = 1) -> pa.RecordBatch:
    """An ingress batch; the message id of record i is 10 * i, and records go round the streams."""
    count = len(payloads)
    ids = [stream_id + i % streams for i in range(count)]
    columns = [[0] * count, ids, [10 * i for i in range(count)], [1] * count, [b"k"] * count, payloads]
    return pa.record_batch(
        [pa.array(column, one.type) for column, one in zip(columns, INGRESS_SCHEMA, strict=True)], schema=INGRESS_SCHEMA
    )


@dataclass
class Sequential:
    """Walks the graph from each record in turn, depth first: a record that leaves a stage goes through all branches
    before the next one does. `by_row` has the one-row sense of each function that takes many: the payload of a
    `map_batches`, the list of payloads of a `transform`."""

    graph: Graph
    by_row: dict[str, Callable[[bytes], Any]] = field(default_factory=dict)
    outputs: dict[str, bytes] = field(default_factory=lambda: defaultdict(bytes))
    loop: asyncio.Runner = field(default_factory=asyncio.Runner)

    def run(self, batch: pa.RecordBatch) -> dict[str, bytes]:
        with self.loop:
            for record in batch.to_pylist():
                letters: list[tuple[int, bytes]] = []
                self._walk(self._source_of(record), record["payload"], record, letters)
                for _, letter in sorted(letters, key=lambda letter: letter[0]):
                    self.outputs["dead-letter"] += letter + b"\n"
        return {sink.name: self.outputs[sink.name] for sink in self.graph.sinks}

    def _source_of(self, record: Record) -> int:
        sources = [index for index, node in enumerate(self.graph.nodes) if node.kind is Kind.SOURCE]
        named = [index for index in sources if record["stream_id"] in (self.graph.nodes[index].streams or ())]
        return (named or [index for index in sources if self.graph.nodes[index].streams is None])[0]

    def _walk(self, index: int, value: Any, record: Record, letters: list[tuple[int, bytes]]) -> None:
        node = self.graph.nodes[index]
        if node.kind is Kind.SINK:
            self.outputs[node.name] += ENCODE[node.codec](value) + (b"\n" if node.framing is Framing.LINES else b"")
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
        function: Any = node.function
        match node.kind:
            case Kind.SOURCE:
                yield DECODE[node.codec](value)
            case Kind.MAP:
                yield function(value)
            case Kind.MAP_ASYNC:
                yield self.loop.run(function(value))
            case Kind.FILTER:
                if function(value):
                    yield value
            case Kind.FLAT_MAP:
                yield from function(value)
            case Kind.MAP_BATCHES:
                yield self.by_row[node.name](value.encode() if isinstance(value, str) else value)
            case Kind.TRANSFORM:
                yield from self.by_row[node.name](value.encode() if isinstance(value, str) else value)
            case Kind.PEEK | Kind.KEY_BY:
                function(value)
                yield value
            case Kind.REBALANCE:
                if function is not None:
                    function(value)
                yield value
            case Kind.MERGE:
                yield value


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
