"""The inputs of a test as rows of the log, as a gateway would write them.

Invariant: the source's codec decodes the bytes of a row to the value of the test. A value that would be decoded to a
different value is refused. `testing/in_process` reads the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from procession.api.sources import number_of_stream
from procession.errors import UsageError
from procession.gateway.event_time_log import arrived_rows, ordered_rows
from procession.gateway.log_rows import LogRow, batch_of, eos_row
from procession.merge.event_time import DeclaredOrder, EventOrder
from procession.operators.codecs import ENCODE, decoder_of
from procession.planner.graph import Graph, Node
from procession.planner.source_streams import streams_of
from procession.record import id_in_share, stream_id
from procession.sdk.event_time_field import EventTimeField
from procession.storage.segment import KIND_RECORD
from procession.times import nanoseconds

Stream = int | str | Path
"""A stream, as `source(streams=[…])` names it."""


@dataclass(frozen=True)
class Record:
    """A record of a test with more than a value: a key, an event time or a stream.

    Attributes:
        value: The value that the source's codec decodes, or the bytes that a producer sends.
        key: The key of the record.
        event_time: A number of seconds since 1970, or a datetime.
        stream: The stream of the record, as `source(streams=[…])` names it. Used if the inputs are a list of pairs.

    >>> from procession.testing import Record
    >>> Record({"id": 1}, key="north", event_time=12.5).event_time
    12.5
    """

    value: Any
    key: str | bytes = b""
    event_time: Any = 0
    stream: Stream | None = None


Inputs = Mapping[str, Any] | Iterable[tuple[str, Any]]
"""The records of each source, by its name: a list, or a dict with a list for each stream. Or the records of all sources
in the order of arrival: pairs of a source's name and a value."""


@dataclass
class Arrivals:
    """All inputs of a test, in the order of arrival."""

    graph: Graph
    names: dict[int, str] = field(default_factory=dict)
    """The name of each stream, for people."""
    _rows: list[LogRow] = field(default_factory=list)
    _lasts: dict[int, int] = field(default_factory=dict)
    """The index of the last row of each stream, or -1 if the stream has no rows."""

    @classmethod
    def of(cls, graph: Graph, inputs: Inputs) -> Arrivals:
        """Convert the inputs to rows. Raises UsageError for inputs that no producer could send to these sources."""
        found = cls(graph)
        if isinstance(inputs, Mapping):
            for name, records in inputs.items():
                found._add_source(name, records)
        else:
            for pair in _listed(inputs, "the inputs"):
                if not isinstance(pair, tuple) or len(pair) != 2:
                    raise UsageError(
                        f"{pair!r} is not a pair of a source's name and a value",
                        next_step='give the inputs as {"orders": [first, second]}, or in the order of their arrival, as'
                        ' [("orders", first), ("payments", second)]',
                    )
                name, value = pair
                found._add(found._source(name), value)
        for source in graph.sources:  # a source that the test does not name has no records, and ends
            for stream in found.streams_of(source):
                found._name(stream, source)
        return found

    @property
    def streams(self) -> frozenset[int]:
        return frozenset(self.names)

    def rows(self, *, is_ended: bool) -> pa.RecordBatch:
        """Return the rows of the log. If streams end, each ends after its last record. Streams without records end
        last."""
        if not is_ended:
            return batch_of(self._rows)
        ends = {place: stream for stream, place in self._lasts.items() if place >= 0}
        rows: list[LogRow] = []
        for place, row in enumerate(self._rows):
            rows.append(row)
            if place in ends:
                rows.append(eos_row(row.stream_id, row.message_id))
        rows += [eos_row(stream, None) for stream in self.names if self._lasts[stream] < 0]
        return batch_of(rows)

    def _add_source(self, name: str, records: Any) -> None:
        source = self._source(name)
        if isinstance(records, Mapping):
            for stream, stream_records in records.items():
                for record in _listed(stream_records, f"stream {stream!r} of source {name!r}"):
                    self._add(source, record, stream)
                self._name(self._stream(source, stream), source, stream)
            return
        for record in _listed(records, f"source {name!r}"):
            self._add(source, record)

    def _add(self, source: Node, given: Any, stream: Stream | None = None) -> None:
        record = given if isinstance(given, Record) else Record(given)
        named = record.stream if stream is None else stream
        number = self._stream(source, named)
        self._name(number, source, named)
        last = self._lasts[number]
        self._lasts[number] = len(self._rows)
        key = record.key.encode() if isinstance(record.key, str) else bytes(record.key)
        message_id = 1 if last < 0 else self._rows[last].message_id + 1
        payload = payload_of(source, record.value)
        time = nanoseconds(record.event_time, "s") if record.event_time else 0
        if source.time_field and not time:
            field = EventTimeField(source.time_field, source.unit)
            time = int(field.times(pa.array([payload], pa.binary()), self.names[number], [message_id])[0])
        self._rows.append(LogRow(KIND_RECORD, number, message_id, time, key, payload))

    def _name(self, number: int, source: Node, stream: Stream | None = None) -> None:
        self.names.setdefault(number, f"source {source.name!r}" if stream is None else f"stream {str(stream)!r}")
        self._lasts.setdefault(number, -1)

    def _source(self, name: Any) -> Node:
        found = {source.name: source for source in self.graph.sources}
        if name not in found:
            raise UsageError(
                f"pipeline {self.graph.name!r} has no source {name!r}",
                next_step=f"give the inputs of {', '.join(map(repr, found))}",
            )
        return found[name]

    def streams_of(self, source: Node) -> list[int]:
        """Return the streams that a source has even without records: all streams that it names, or its own stream."""
        if source.streams is not None:
            return sorted(source.streams)
        named = [row.stream_id for row in self._rows]
        return [] if set(named) - self.graph.streams else [_own_stream(source)]

    def _stream(self, source: Node, named: Stream | None) -> int:
        if named is None:
            if source.streams is None:
                return _own_stream(source)
            if len(source.streams) == 1:
                return next(iter(source.streams))
            raise UsageError(
                f"source {source.name!r} takes {len(source.streams)} streams, and the test does not say which has the"
                " records",
                next_step=f'give a list for each: {{"{source.name}": {{stream: [record, …], …}}}}',
            )
        number = number_of_stream(named)
        number = None if number is None else _in_share(source, number)
        if number is None or not streams_of(self.graph, [source]).takes(number):
            raise UsageError(
                f"source {source.name!r} does not take stream {named!r}",
                next_step="name a stream of its streams=[…], as they are named there",
            )
        return number


def _own_stream(source: Node) -> int:
    """Return the stream of a source that names no streams."""
    return _in_share(source, stream_id(f"source:{source.name}".encode()))


def _in_share(source: Node, stream: int) -> int:
    return stream if source.share is None else id_in_share(source.share, stream)


def _listed(records: Any, of: str) -> Iterator[Any]:
    if isinstance(records, str | bytes | Mapping) or not isinstance(records, Iterable):
        raise UsageError(f"the records of {of} are a {type(records).__name__}", next_step="give them in a list")
    return iter(records)


def payload_of(source: Node, value: Any) -> bytes:
    """Return the bytes that a producer sends so that the source's functions get this value. Bytes are sent unchanged.
    Raises UsageError if the functions would get another value."""
    if isinstance(value, bytes):
        return value
    codec = source.codec
    try:
        payload = ENCODE[codec](value)
        if source.typed is not None and not source.typed.is_record(value):
            return payload  # a JSON value, which the source may refuse
        decoded = decoder_of(source)(payload)
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(
            f"source {source.name!r} cannot be given {value!r}, because its codec is {codec.value!r}: {error}",
            next_step="give a value that the codec decodes, or the bytes that a producer would send",
        ) from error
    if not _is_same(decoded, value):
        raise UsageError(
            f"source {source.name!r} would be given {decoded!r} instead of {value!r}, because its codec is"
            f" {codec.value!r}",
            next_step="give a value that the codec decodes, or the bytes that a producer would send",
        )
    return payload


def _is_same(decoded: Any, value: Any) -> bool:
    if isinstance(decoded, pa.Table):
        return bool(decoded.equals(value if isinstance(value, pa.Table) else pa.Table.from_batches([value])))
    # The texts are compared, too, because NaN is not equal to itself.
    return bool(decoded == value) or repr(decoded) == repr(value)


def in_event_order(declared: DeclaredOrder, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows of the log in event-time order, without rows whose place is not final."""
    order = EventOrder(declared)
    order.observe(arrived_rows(rows))
    taken = order.take()
    return ordered_rows(rows.take(pa.array(taken.rows.sequences)), taken.rows, taken.references)


def cuts_of(are_records: Sequence[bool], epochs: int | Sequence[int] | None) -> list[int]:
    """Return the ends of the epochs among these rows. An epoch ends right after its last record, the last epoch after
    all rows."""
    after = [0, *(np.flatnonzero(are_records) + 1).tolist()]
    records, end = len(after) - 1, len(are_records)
    if epochs is None:
        return [end]
    if isinstance(epochs, Sequence):
        sizes = [_size(size, 0) for size in epochs]
    else:
        size = _size(epochs, 1)
        sizes = [size] * -(-records // size)
    cuts, reached = [], 0
    for size in sizes:
        reached = min(records, reached + size)
        cuts.append(after[reached])
    return cuts if cuts and cuts[-1] == end else [*cuts, end]


def _size(size: Any, least: int) -> int:
    if type(size) is not int or size < least:
        raise UsageError(
            f"epochs={size!r} is not a number of records",
            next_step="give epochs=3, or one number each, as epochs=[3, 2]",
        )
    return size
