"""Converts records to columns: JSON, Arrow or plain bytes become record batches with the table's schema.

Invariant: a record fits its columns exactly, or the sink stops before the vote and names record, column and type.
No value is dropped or rounded: an unknown field is an error, and so is a fraction in a column of integers. Upstream:
`connectors/parquet_spool`; downstream: the Parquet file.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from procession.connectors.parquet_schema import inferred_schema
from procession.errors import ConfigError, RecordError

INFERENCE_RECORDS_MAX = 10_000
"""Maximum number of records from which a new table's schema is inferred."""
PARSE_BYTES = 256 * 1024
"""Size of the blocks in which JSON is parsed in parallel."""
SHOWN_CHARACTERS = 120
PAYLOAD = "payload"
FROM_TEXT = (pa.types.is_date,)
"""Types whose JSON values are read as text and then converted."""


class RecordFormat(StrEnum):
    """The format of a record's bytes: the values of the option `--format`."""

    JSON = "json"
    """One JSON object."""
    ARROW = "arrow"
    """An Arrow IPC stream of rows."""
    BYTES = "bytes"
    """Any bytes, written to one binary column `payload`."""


class ColumnNames:
    """Names of the columns that are not filled from the payload; empty: no such column."""

    def __init__(self, key: str = "", event_time: str = "", position: str = "") -> None:
        self.key, self.event_time, self.position = key, event_time, position

    def fields(self) -> list[pa.Field]:
        kinds = ((self.key, pa.string()), (self.event_time, pa.timestamp("us", "UTC")), (self.position, pa.int64()))
        return [pa.field(name, kind) for name, kind in kinds if name]


class RowConverter:
    """Converts records to rows. `schema` is the table's schema, or None until it is known."""

    def __init__(self, record_format: RecordFormat, names: ColumnNames) -> None:
        self._format = record_format
        self._names = names
        self.schema: pa.Schema | None = None
        self.is_columnar = record_format is RecordFormat.ARROW
        """Whether a record already contains columns. Converting many records together then has no benefit."""

    def use(self, schema: pa.Schema) -> None:
        """Set the table's schema. Raises ConfigError if records of this format cannot fill it."""
        if self._format is RecordFormat.BYTES and PAYLOAD not in schema.names:
            raise ConfigError(
                f"The table has no column {PAYLOAD}, which records as bytes are written to.",
                next_step="Name a table that has it, or write JSON or Arrow records (--format).",
            )
        for field in self._names.fields():
            if field.name not in schema.names:
                raise ConfigError(
                    f"The table has no column {field.name}.",
                    next_step=f"Add the column ({field.type}) to the table, or leave its option out.",
                )
        if self._format is RecordFormat.JSON:
            _refuse_what_json_cannot_fill(self._payload_schema(schema))
        self.schema = schema

    def propose(self, batch: pa.RecordBatch) -> pa.Schema:
        """Return a schema for a new table, from its first records."""
        own = self._names.fields()
        match self._format:
            case RecordFormat.BYTES:
                fields = [pa.field(PAYLOAD, pa.binary())]
            case RecordFormat.ARROW:
                fields = list(_ipc_table(next(_buffers(batch.column(PAYLOAD)))).schema.remove_metadata())
            case RecordFormat.JSON:
                fields = list(inferred_schema(batch.column(PAYLOAD)[:INFERENCE_RECORDS_MAX].to_pylist()))
        taken = {field.name for field in own}
        return pa.schema([*(field for field in fields if field.name not in taken), *own])

    def table(self, batch: pa.RecordBatch, positions: npt.NDArray[np.int64]) -> pa.Table:
        """Return the rows of these records, in order, with the table's columns.

        Args:
            batch: The records, with the columns of a record block.
            positions: The position of each, for errors and the position column.
        """
        assert self.schema is not None
        payload = batch.column(PAYLOAD)
        schema = self._payload_schema(self.schema)
        if self._format is RecordFormat.ARROW:
            return self._arrow_rows(batch, schema, positions)
        if self._format is RecordFormat.BYTES:
            kind = schema.field(PAYLOAD).type
            rows = _fitted(pa.table({PAYLOAD: payload.cast(kind)}), schema, positions[0])
        else:
            rows = _json_rows(payload, schema, positions)
        return self._with_own(rows, batch, positions)

    def _payload_schema(self, schema: pa.Schema) -> pa.Schema:
        own = {field.name for field in self._names.fields()}
        return pa.schema([field for field in schema if field.name not in own])

    def _with_own(self, rows: pa.Table, batch: pa.RecordBatch, positions: npt.NDArray[np.int64]) -> pa.Table:
        assert self.schema is not None
        names = self._names
        filled: dict[str, Any] = {
            names.key: batch.column("key"),
            names.event_time: batch.column("event_time_ns"),
            names.position: pa.array(positions),
        }
        columns = []
        for field in self.schema:
            if field.name in filled:
                columns.append(_converted(filled[field.name], field))
            else:
                columns.append(rows.column(field.name))
        return pa.table(columns, schema=self.schema)

    def _arrow_rows(self, batch: pa.RecordBatch, schema: pa.Schema, positions: npt.NDArray[np.int64]) -> pa.Table:
        tables = []
        streams = _buffers(batch.column(PAYLOAD))
        for index, (position, stream) in enumerate(zip(positions.tolist(), streams, strict=True)):
            rows = _fitted(_ipc_table(stream), schema, position)
            if schema == self.schema:  # all columns come from the payload
                tables.append(rows)
                continue
            beside = batch.select(["key", "event_time_ns"]).slice(index, 1)
            repeated = beside.take(pa.array(np.zeros(rows.num_rows, np.int64)))
            tables.append(self._with_own(rows, repeated, position + np.arange(rows.num_rows)))
        return pa.concat_tables(tables)


def _converted(values: pa.Array, field: pa.Field) -> pa.Array:
    """Convert a column that is not from the payload to the table's type."""
    try:
        if pa.types.is_timestamp(field.type):
            instants = values.cast(pa.timestamp("ns", field.type.tz))
            return pc.floor_temporal(instants, unit="microsecond").cast(field.type, safe=False)
        return values.cast(field.type)
    except pa.ArrowInvalid as error:
        raise RecordError(
            f"A key, event time or position does not fit the column {field.name} of type {field.type}: {error}.",
            next_step="Choose another type for the column, or leave its option out.",
        ) from error


def _refuse_what_json_cannot_fill(schema: pa.Schema) -> None:
    for field in schema:
        try:
            _parsed(b"{}", pa.schema([_json_field(field)]), PARSE_BYTES)
        except pa.ArrowNotImplementedError as error:
            raise ConfigError(
                f"JSON records cannot fill the column {field.name} of type {field.type}.",
                next_step="Send Arrow records (--format arrow), or choose another type for the column.",
            ) from error
        except pa.ArrowInvalid:
            continue  # nulls are checked separately


def _json_field(field: pa.Field) -> pa.Field:
    return field.with_type(pa.string()) if any(of(field.type) for of in FROM_TEXT) else field


def _json_rows(payload: pa.Array, schema: pa.Schema, positions: npt.NDArray[np.int64]) -> pa.Table:
    try:
        return _json_table(payload, schema)
    except (pa.ArrowInvalid, UnicodeDecodeError):
        pass
    # The first record that fails ends the shortest prefix that fails.
    low, high = 0, len(payload)
    while high - low > 1:
        middle = (low + high) // 2
        if _fits(payload.slice(low, middle - low), schema):
            low = middle
        else:
            high = middle
    raise _refused(payload[low].as_py(), schema, int(positions[low]))


def _fits(payload: pa.Array, schema: pa.Schema) -> bool:
    try:
        _json_table(payload, schema)
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return False
    return True


def _json_table(payload: pa.Array, schema: pa.Schema) -> pa.Table:
    nothing, separator = (pa.scalar(text, pa.large_binary()) for text in (b"", b"\n"))
    lines = pc.binary_join_element_wise(payload.cast(pa.large_binary()), nothing, separator)
    offsets = np.frombuffer(lines.buffers()[1], np.int64)[lines.offset :]
    data = lines.buffers()[2].slice(int(offsets[0]), int(offsets[len(lines)] - offsets[0]))
    is_split = memoryview(data).tobytes().count(b"\n") == len(lines)
    longest = int(pc.max(pc.binary_length(lines)).as_py())
    block_bytes = max(PARSE_BYTES, longest + 1) if is_split else len(data) + 1
    parsed = _parsed(data, pa.schema([_json_field(field) for field in schema]), block_bytes)
    if parsed.num_rows != len(payload):
        raise pa.ArrowInvalid(f"{len(payload)} messages hold {parsed.num_rows} JSON objects")
    rows = parsed.select(schema.names).cast(schema)
    for name in schema.names:
        rows.column(name).validate(full=True)
        if not schema.field(name).nullable and rows.column(name).null_count:
            raise pa.ArrowInvalid("null in a column that must not be null")
    return rows


def _parsed(data: bytes | pa.Buffer, schema: pa.Schema, block_bytes: int) -> pa.Table:
    """Return the rows of JSON objects. Blocks of several objects are parsed in parallel and end at line breaks."""
    reading = pa_json.ReadOptions(block_size=block_bytes)
    parsing = pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error")
    return pa_json.read_json(pa.BufferReader(data), reading, parsing)


def _refused(payload: bytes, schema: pa.Schema, position: int) -> RecordError:
    """Return the error of this record, after checking it column by column."""
    shown = payload[:SHOWN_CHARACTERS].decode(errors="replace")
    reason, column = "", None
    try:
        record = json.loads(payload)
    except (ValueError, RecursionError) as error:
        reason = f"is not one JSON object ({error})"
    else:
        if not isinstance(record, dict):
            reason = "is not a JSON object"
        else:
            reason, column = _refused_column(record, schema)
    return RecordError(
        f"The record at position {position} {reason}: {shown}",
        next_step="Correct the app or the table's columns, then start again; nothing of this epoch was written.",
        position=position,
        column=column,
    )


def _refused_column(record: dict[str, Any], schema: pa.Schema) -> tuple[str, str | None]:
    for name in record:
        if name not in schema.names:
            return f"has the field {name}, and the table has no such column", name
    for field in schema:
        value = record.get(field.name)
        if value is None and not field.nullable:
            return f"has no value for the column {field.name}, which must not be null", field.name
        single = pa.array([json.dumps({field.name: value}, ensure_ascii=False).encode(errors="surrogatepass")])
        if not _fits(single.cast(pa.binary()), pa.schema([field])):
            given = json.dumps(value)[:SHOWN_CHARACTERS]
            return f"has {given} in the column {field.name}, whose type is {field.type}", field.name
    return "does not fit the table's columns", None


def _buffers(payload: pa.Array) -> Iterator[pa.Buffer]:
    """Yield the values of a binary array, without a copy."""
    _, offsets, data = payload.buffers()
    edges = np.frombuffer(offsets, np.int32)[payload.offset : payload.offset + len(payload) + 1]
    for start, end in itertools.pairwise(edges.tolist()):
        yield data.slice(start, end - start) if data is not None else pa.py_buffer(b"")


def _ipc_table(data: pa.Buffer) -> pa.Table:
    try:
        with pa.ipc.open_stream(pa.BufferReader(data)) as reader:
            table = reader.read_all()
        _validate(table)
    except (pa.ArrowException, OSError) as error:
        raise RecordError(
            f"A record is not an Arrow IPC stream: {error}.",
            next_step="Let the app write Arrow IPC streams, or choose --format json.",
        ) from error
    return table


def _validate(table: pa.Table) -> None:
    """Check every offset and text, as Table.validate does. ASCII texts are not checked one by one."""
    table.validate()
    for column in table.columns:
        for chunk in column.chunks:
            if pa.types.is_string(chunk.type) and _is_ascii(chunk.buffers()[2]):
                chunk = chunk.view(pa.binary())
            chunk.validate(full=True)


def _is_ascii(data: pa.Buffer | None) -> bool:
    return not data or bool(np.frombuffer(data, np.int8).min() >= 0)


def _fitted(rows: pa.Table, schema: pa.Schema, position: int) -> pa.Table:
    """Return the rows with the table's columns: missing ones are null, types are converted if no value changes."""
    if rows.schema.equals(schema) and all(field.nullable for field in schema):
        return rows
    columns = []
    for name in rows.schema.names:
        if name not in schema.names or rows.schema.names.count(name) > 1:
            raise _unfit(f"have the column {name}, and the table has no such column, or they have it twice", position)
    for field in schema:
        if field.name not in rows.schema.names:
            column = pa.chunked_array([pa.nulls(rows.num_rows, field.type)])
        else:
            try:
                column = rows.column(field.name).cast(field.type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                found = rows.schema.field(field.name).type
                raise _unfit(
                    f"have the type {found} in the column {field.name} of type {field.type} ({error})", position
                ) from error
        if column.null_count and not field.nullable:
            raise _unfit(f"have no value for the column {field.name}, which must not be null", position)
        columns.append(column)
    return pa.table(columns, schema=schema)


def _unfit(reason: str, position: int) -> RecordError:
    return RecordError(
        f"The Arrow rows at position {position} {reason}.",
        next_step="Correct the app or the table's columns, then start again; nothing of this epoch was written.",
        position=position,
    )
