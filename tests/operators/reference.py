"""The reference run of a pipeline: one record at a time, without a plan. Every plan must give the same output."""

from __future__ import annotations

import base64
import json
import zlib
from collections import defaultdict
from collections.abc import Sequence
from copy import deepcopy as own
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from procession.operators.codecs import ENCODE
from procession.operators.end_of_input import sources_before
from procession.planner.graph import Kind, Node, Order, SinkFraming
from procession.planner.inputs import number_of
from procession.planner.keys import RecordKey
from procession.planner.strategies import TABLE
from procession.storage.segment import INGRESS_SCHEMA, KIND_EOS
from tests.operators.reference_stages import StageStates

Record = dict[str, Any]


Ends = Sequence[tuple[int, int]]
"""Ends of streams: (number of the record before which it comes, number of the stream)."""


def batch_of(payloads: list[bytes], stream_id: int = 7, streams: int = 1, ends: Ends = ()) -> pa.RecordBatch:
    """Return an ingress batch. The message id of record i is 10 * i; records alternate between the streams, some of
    which end."""
    rows = [(i, 1, (0, stream_id + i % streams, 10 * i, 1, b"k", payload)) for i, payload in enumerate(payloads)]
    rows += [(i, 0, (1, stream_id + stream, 0, 0, b"", b"")) for i, stream in ends]
    columns = list(zip(*(row for *_, row in sorted(rows, key=lambda row: row[:2])), strict=True)) or [()] * 6
    return pa.record_batch(
        [pa.array(column, one.type) for column, one in zip(columns, INGRESS_SCHEMA, strict=True)], schema=INGRESS_SCHEMA
    )


def batch_of_sent(sent: Sequence[tuple[int, int, bytes]]) -> pa.RecordBatch:
    """Return an ingress batch of what living sources have sent: the kind, stream and payload of each. Message ids are
    new."""
    kinds, streams, payloads = zip(*sent, strict=True)
    columns = [kinds, streams, range(len(sent)), [0] * len(sent), [b""] * len(sent), payloads]
    arrays = [pa.array(list(column), one.type) for column, one in zip(columns, INGRESS_SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=INGRESS_SCHEMA)


@dataclass
class Sequential(StageStates):
    """Passes each record through the graph, depth first.

    A record that leaves a stage goes through all branches before the next one, and every stage gets a copy of its
    input.
    """

    outputs: dict[str, bytes] = field(default_factory=lambda: defaultdict(bytes))

    def run(self, batch: pa.RecordBatch) -> dict[str, bytes]:
        with self.loop:
            for record in batch.to_pylist():
                letters: list[tuple[int, bytes]] = []
                if record["kind"] == KIND_EOS:
                    self._end(record, letters)
                else:
                    self._begin(record["stream_id"])
                    source = self.source_of[record["stream_id"]]
                    self.input = record["stream_id"] if self.graph.nodes[source].ends else number_of(source)
                    self.time = record["event_time"]
                    self.latest = max(self.latest, self.time)
                    self._walk(source, record["payload"], record, letters, self.keys.encode(record["key"]))
                for _, letter in sorted(letters, key=lambda letter: letter[0]):
                    self.outputs["dead-letter"] += letter + b"\n"
        return {participant.name: self.outputs[participant.name] for participant in self.graph.participants}

    def _begin(self, stream: int) -> None:
        self.has_ended[stream] = False
        for index in range(len(self.graph.nodes)):
            self.known[index][stream] = False
            if self._streams_of(index, [stream]):
                self.is_over[index] = False

    def _end(self, record: Record, letters: list[tuple[int, bytes]]) -> None:
        self.has_ended[record["stream_id"]] = True
        for index, node in enumerate(self.graph.nodes):
            self.known[index][record["stream_id"]] = True
            if index in self.inputs:
                self.time = self.latest
                self._moved(index, None)
                for one, key in [(one, self.fired) for one in self._due(index)]:
                    self._walk_on(index, one, record, letters, key)
            awaited = [stream for source in self.graph.sources for stream in source.awaited]
            mine = self._streams_of(index, [*self.has_ended, *awaited])
            if (
                record["stream_id"] in mine
                and all(source.ends for source in sources_before(self.graph, index))
                and all(self.has_ended.get(stream) for stream in mine)
                and not self.is_over.get(index)
                and node.operator is not None
            ):
                self.is_over[index] = True
                self.time = self.latest
                for one, key in [(one, self.fired) for one in self._fired(index)]:
                    self._walk_on(index, one, record, letters, key)

    def _walk_on(self, index: int, value: Any, record: Record, letters: list[tuple[int, bytes]], key: bytes) -> None:
        """Pass on a result that a stage emits because streams have ended."""
        # Not the key of an open window: results that a stage fires by itself have the key of that stage, or none.
        origin = self.origins.get(index)
        self.input = -1 if origin is None else origin
        for child in self.children[index]:
            self._walk(child, value, record, letters, key)

    def _output_of(self, node: Node, record: Record, key: bytes) -> str:
        """Return the output of a record: for a sink with several connections, the one of its stream or key."""
        if node.connections == 1:
            return node.name
        is_by_key = self.graph.order_at(node) is Order.KEY
        share = zlib.crc32(self._plain(key)) % 4096 if is_by_key else record["stream_id"] % 4096
        return f"{node.name}.{share % node.connections}"

    def _walk(self, index: int, value: Any, record: Record, letters: list[tuple[int, bytes]], key: bytes) -> None:
        came, of = self.time, self.input
        try:
            self._go_on(index, value, record, letters, key)
        finally:
            self.time, self.input = came, of  # a time that was set applies to the branches from there on

    def _go_on(self, index: int, value: Any, record: Record, letters: list[tuple[int, bytes]], key: bytes) -> None:
        node = self.graph.nodes[index]
        if node.kind is Kind.SINK:
            output = self._output_of(node, record, key)
            self.outputs[output] += ENCODE[node.codec](value) + (b"\n" if node.framing is SinkFraming.LINES else b"")
            return
        try:
            key_of = node.function if node.kind in (Kind.KEY_BY, Kind.REBALANCE) else node.key
            came_with = self.came_with = key
            if key_of is not None and not isinstance(key_of, RecordKey):
                key = self.keys.encode(key_of(value))
            expired = [(one, self.fired) for one in self._expiring(index, value)]
            for one, gone in expired:
                for child in self.children[index]:
                    self._walk(child, one, record, letters, gone)
            # Copied at once: a generator may change a result before it yields the next one.
            self.came_with = came_with
            values = [(own(result), self._key_of(node, key)) for result in self._results(index, value)]
        except Exception as error:
            letters.append((index, letter_of(record, node.name, error)))
            return
        aside, self.aside = self.aside, None
        if aside is not None and node.operator is not None and node.operator.state.late_to_dead_letters:
            letters.append((index, letter_of(record, node.name, aside)))
        self.input = self.origins.get(index) or self.input
        for one, its_key in values:
            for child in self.children[index]:
                self._walk(child, own(one), record, letters, its_key)

    def _key_of(self, node: Node, key: bytes) -> bytes:
        """Return the key of a result; that of the window, if it is the result of a window."""
        if node.kind is Kind.TRANSFORM:  # Spark SQL uses keys as bytes
            return self.keys.encode(self._plain(key))
        return self.fired if TABLE[node.kind].is_timed else key


def letter_of(record: Record, stage: str, error: Exception) -> bytes:
    return json.dumps(
        {
            "stream_id": record["stream_id"],
            "message_id": record["message_id"],
            "stage": stage,
            "error": f"{type(error).__name__}: {error}",
            **({"event_time": record["event_time"]} if record["event_time"] else {}),
            **({"key": base64.b64encode(record["key"]).decode()} if record["key"] else {}),
            "payload": base64.b64encode(record["payload"]).decode(),
        }
    ).encode()
