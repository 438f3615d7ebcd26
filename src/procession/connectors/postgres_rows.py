"""Converts records to rows of a table: maps fields to columns, and formats the rows for COPY.

Invariant: all records of a chunk are converted at once, by columns. If that fails, the caller halves the chunk until it
has found the record that causes the error. Upstream: `connectors/postgres_table`; downstream:
`connectors/postgres_types`. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from procession.connectors.postgres_types import JSONS, TEXTS, Column, binary_rows, text_rows
from procession.errors import UsageError
from procession.operators.codecs import from_arrow

PAYLOAD, KEY, EVENT_TIME, POSITION, INSTANCE = "$payload", "$key", "$event_time", "$position", "$instance"
OF_THE_RECORD: dict[str, frozenset[str]] = {
    PAYLOAD: TEXTS | JSONS | {"bytea"},
    KEY: TEXTS | {"bytea"},
    EVENT_TIME: frozenset({"timestamptz", "int8"}),
    POSITION: frozenset({"int8"}),
    INSTANCE: TEXTS,
}
"""Properties of a record that can fill a column instead of a field, and the column types that can hold them."""
ORDINAL = Column("procession_ordinal", "bigint", "int8")
IS_DELETE = Column("procession_is_delete", "boolean", "bool")
_CHANGED = re.compile(r"Column\((?P<path>[^)]*)\) changed from (?P<wanted>\w+) to (?P<found>\w+)")
_WHERE = re.compile(r"^JSON parse error: |\.? in row \d+$")


class RecordRefused(Exception):
    """A record of the chunk cannot become a row. For a chunk of one record, the error has the reason."""


@dataclass(frozen=True, slots=True)
class TableRecords:
    """Records of one output, as columns.

    Args:
        payloads: An Arrow array of binaries.
        positions: The position of each in the output.
        keys: Their keys, if they have any.
        event_times: Nanoseconds since 1970, if they have any.
    """

    payloads: pa.Array
    positions: npt.NDArray[np.int64]
    keys: pa.Array | None = None
    event_times: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.payloads)

    def slice(self, start: int, count: int) -> TableRecords:
        return TableRecords(
            self.payloads.slice(start, count),
            self.positions[start : start + count],
            None if self.keys is None else self.keys.slice(start, count),
            None if self.event_times is None else self.event_times.slice(start, count),
        )


@dataclass(frozen=True, slots=True)
class FieldMapping:
    """A column and its content: a field such as `price` or `after.price`, or a property in `OF_THE_RECORD`."""

    column: Column
    field: str

    @property
    def is_of_the_record(self) -> bool:
        return self.field in OF_THE_RECORD

    @property
    def has_binary(self) -> bool:
        # In JSON, bytes come as text in PostgreSQL's notation, which the server parses.
        return self.column.has_binary and (self.column.base != "bytea" or self.is_of_the_record)

    @property
    def json_type(self) -> pa.DataType:
        """The type as which the field is parsed. Dates and times are text in JSON."""
        wanted = self.column.arrow_type
        return pa.string() if pa.types.is_temporal(wanted) else wanted


@dataclass(frozen=True, slots=True)
class DeleteRule:
    """A record whose `field` has this text deletes the row of its key."""

    field: str
    text: str

    @classmethod
    def parse(cls, text: str) -> DeleteRule:
        field, equals, wanted = text.partition("=")
        if not field or not equals or not wanted:
            raise UsageError(f"{text!r} does not say which records delete.", next_step="Write FIELD=TEXT: op=delete.")
        return cls(field, wanted)


class RecordEncoder:
    """Converts records of one instance into rows.

    Args:
        mappings: Which field goes into which column.
        instance: The instance whose records are converted.
        is_arrow: A payload is an Arrow table, of any number of rows, instead of a JSON object.
        delete: Which records delete.
        is_staged: Rows start with an ordinal number and a deletion flag.
    """

    def __init__(
        self,
        mappings: Sequence[FieldMapping],
        instance: str,
        *,
        is_arrow: bool = False,
        delete: DeleteRule | None = None,
        is_staged: bool = False,
    ) -> None:
        self._mappings = mappings
        self._instance = instance
        self._is_arrow = is_arrow
        self._delete = delete
        self._is_staged = is_staged
        self.is_binary = all(mapping.has_binary for mapping in mappings)
        self._fields = {mapping.field: mapping.json_type for mapping in mappings if not mapping.is_of_the_record}
        for mapping in mappings:
            if not mapping.is_of_the_record and self._fields[mapping.field] != mapping.json_type:
                raise UsageError(
                    f"Field {mapping.field!r} cannot go into columns of different types.",
                    next_step="Give one of the columns another field, or none.",
                )
        self._loose = {
            mapping.field for mapping in mappings if not mapping.is_of_the_record and mapping.column.base in JSONS
        }
        """Fields that may contain any JSON value, which is stored unchanged."""
        if delete:
            self._fields.setdefault(delete.field, pa.string())
            if self._fields[delete.field] != pa.string() or delete.field in self._loose:
                raise UsageError(
                    f"Field {delete.field!r}, which marks deletions, goes into a column that is not text.",
                    next_step="Name a field that holds a text in --delete-when.",
                )

    @property
    def columns(self) -> list[str]:
        """The names of the columns that rows have, in their order."""
        staged = [ORDINAL.name, IS_DELETE.name] if self._is_staged else []
        return staged + [mapping.column.name for mapping in self._mappings]

    def rows(self, records: TableRecords, first_ordinal: int = 0) -> pa.Array:
        """Return the rows in the format of COPY. Staged rows are numbered from `first_ordinal` on. Raises
        RecordRefused."""
        try:
            return self._rows(records, first_ordinal)
        except (pa.ArrowException, ValueError, OverflowError, RecursionError) as error:
            raise RecordRefused(_reason(str(error))) from error

    def _rows(self, records: TableRecords, first_ordinal: int) -> pa.Array:
        if self._is_arrow:
            fields, counts = self._arrow_fields(records.payloads)
            of = np.repeat(np.arange(len(records)), counts)
            starts = np.repeat(np.cumsum(counts) - counts, counts)
            positions = records.positions[of] + np.arange(len(of)) - starts
        else:
            fields = self._json_fields(records.payloads) if self._fields else {}
            of, positions = None, records.positions
        given: list[tuple[Column, pa.Array]] = []
        for mapping in self._mappings:
            if mapping.is_of_the_record:
                values = self._of_the_record(mapping, records, positions, of)
            else:
                values = fields[mapping.field]
                values = _cast(values, mapping.column.arrow_type)
            given.append((mapping.column, values))
        if self._is_staged:
            count = len(positions)
            is_delete = pa.repeat(False, count)
            if self._delete:
                is_delete = pc.equal(fields[self._delete.field], self._delete.text).fill_null(False)
            ordinals = pa.array(first_ordinal + np.arange(count))
            given = [(ORDINAL, ordinals), (IS_DELETE, is_delete), *given]
        if not given or not len(positions):
            return pa.array([], pa.binary())
        return binary_rows(given) if self.is_binary else text_rows(given)

    def _of_the_record(
        self,
        mapping: FieldMapping,
        records: TableRecords,
        positions: npt.NDArray[np.int64],
        of: npt.NDArray[np.int64] | None,
    ) -> pa.Array:
        def selected(array: pa.Array) -> pa.Array:
            return array if of is None else array.take(pa.array(of))

        is_bytes = mapping.column.base == "bytea"
        if mapping.field == POSITION:
            return pa.array(positions)
        if mapping.field == INSTANCE:
            return pa.repeat(self._instance, len(positions))
        if mapping.field == PAYLOAD:
            return selected(records.payloads.cast(pa.binary() if is_bytes else pa.string()))
        if mapping.field == KEY:
            keys = pa.nulls(len(records), pa.binary()) if records.keys is None else records.keys
            return selected(keys.cast(pa.binary() if is_bytes else pa.string()))
        times = pa.nulls(len(records), pa.int64()) if records.event_times is None else records.event_times
        if mapping.column.base == "timestamptz":
            times = pc.divide(times, 1000).cast(pa.timestamp("us", "UTC"))
        return selected(times)

    def _arrow_fields(self, payloads: pa.Array) -> tuple[dict[str, pa.Array], npt.NDArray[np.int64]]:
        found: dict[str, list[pa.Array]] = {field: [] for field in self._fields}
        counts = []
        wanted = {mapping.field: mapping.column.arrow_type for mapping in self._mappings}
        for payload in payloads.to_pylist():
            table = from_arrow(payload).combine_chunks()
            counts.append(table.num_rows)
            for field in self._fields:
                name, *below = field.split(".")
                values = table.column(name) if name in table.column_names else pa.nulls(table.num_rows)
                for part in below:
                    values = pc.struct_field(values, part)
                values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
                found[field].append(_cast(values, wanted.get(field, pa.string())))
        return {field: pa.concat_arrays(arrays) for field, arrays in found.items()}, np.array(counts, np.int64)

    def _json_fields(self, payloads: pa.Array) -> dict[str, pa.Array]:
        texts = payloads.cast(pa.string())
        if not _are_objects(texts):
            texts = pc.ascii_trim_whitespace(texts)
            if not _are_objects(texts):
                raise pa.ArrowInvalid("it is not a JSON object")
        strict = {field: kind for field, kind in self._fields.items() if field not in self._loose}
        newline, nothing = pa.scalar("\n"), pa.scalar("")
        lines = pc.binary_join_element_wise(texts, nothing, newline)
        table = _parsed(lines, _schema(strict))
        if table.num_rows != len(payloads):
            raise pa.ArrowInvalid("it is more than one JSON object")
        fields = {field: _nested(table, field) for field in strict}
        if self._loose:
            # No column operation preserves a part of a JSON document unchanged.
            documents = [json.loads(text) for text in texts.to_pylist()]
            fields |= {
                field: pa.array([_part(document, field) for document in documents], pa.string())
                for field in self._loose
            }
        return fields


def mapped(
    columns: Mapping[str, Column], names: Sequence[str], table: str, key: Sequence[str] = ()
) -> list[FieldMapping]:
    """Maps fields to columns. By default, each column that the database does not fill itself gets the field of the same
    name. `asked` has COLUMN, or COLUMN=FIELD. Raises UsageError."""
    fields = {name: name for name, column in columns.items() if not column.is_own or name in key}
    for text in names:
        name, _, field = text.partition("=")
        if name not in columns:
            raise UsageError(
                f"Table {table} has no column {name!r}.", next_step=f"Name one of {', '.join(columns) or 'no columns'}."
            )
        fields[name] = field or name
    mappings = []
    for name, field in fields.items():
        column = columns[name]
        if column.is_generated:
            raise UsageError(
                f"Column {name!r} of {table} is generated by the database.", next_step="Leave it out of --column."
            )
        if field.startswith("$") and field not in OF_THE_RECORD:
            raise UsageError(f"Records have no {field!r}.", next_step=f"Name one of {', '.join(OF_THE_RECORD)}.")
        if field in OF_THE_RECORD and column.base not in OF_THE_RECORD[field]:
            raise UsageError(
                f"Column {name!r} of {table} is of type {column.type_name}, which cannot hold {field}.",
                next_step=f"Give it one of the types {', '.join(sorted(OF_THE_RECORD[field]))}.",
            )
        mappings.append(FieldMapping(column, field))
    for name, column in columns.items():
        if column.is_required and name not in fields:
            raise UsageError(
                f"Column {name!r} of {table} accepts no null and has no default, but no field is mapped to it.",
                next_step=f"Add --column {name}=FIELD.",
            )
    if not mappings:
        raise UsageError(f"No field is mapped to a column of {table}.", next_step="Name columns with --column.")
    return mappings


def _are_objects(texts: pa.Array) -> bool:
    """Return whether each text begins and ends as a JSON object does."""
    return bool(pc.all(pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))).as_py())


def _schema(fields: Mapping[str, pa.DataType]) -> pa.Schema:
    tree: dict[str, Any] = {}
    for field, kind in fields.items():
        *above, last = field.split(".")
        node = tree
        for part in above:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                raise UsageError(
                    f"Field {field!r} is inside another field that is mapped.", next_step="Use one of them."
                )
        node[last] = kind
    return pa.schema([(name, _type(node)) for name, node in tree.items()])


def _type(node: Any) -> pa.DataType:
    return pa.struct([(name, _type(below)) for name, below in node.items()]) if isinstance(node, dict) else node


def _parsed(lines: pa.Array, schema: pa.Schema) -> pa.Table:
    data = lines.buffers()[2]
    if not len(schema):  # no field is used, but each payload must be a JSON object
        schema = pa.schema([("\0", pa.null())])
    return pj.read_json(
        pa.BufferReader(data),
        read_options=pj.ReadOptions(use_threads=False, block_size=data.size + 1),
        parse_options=pj.ParseOptions(
            explicit_schema=schema, newlines_in_values=True, unexpected_field_behavior="ignore"
        ),
    )


def _nested(table: pa.Table, field: str) -> pa.Array:
    name, *below = field.split(".")
    values = table.column(name).combine_chunks()
    for part in below:
        values = pc.struct_field(values, part)
    return values


def _cast(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Convert values to another type. Raises ArrowInvalid if a value does not fit."""
    if values.type == wanted:
        return values
    if pa.types.is_decimal(wanted) and pa.types.is_integer(values.type):
        values = values.cast(pa.decimal256(76, wanted.scale))  # Arrow requires room for every number of the type
    return values.cast(wanted)


def _part(document: Any, field: str) -> str | None:
    for name in field.split("."):
        document = document.get(name) if isinstance(document, dict) else None
    return None if document is None else json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def _reason(message: str) -> str:
    """Return Arrow's error about a record, in the words of the record's format."""
    if found := _CHANGED.search(message):
        field = found["path"].strip("/").replace("/", ".")
        return f"field {field!r} is of type {found['found']}, not {found['wanted']}"
    return _WHERE.sub("", message.partition("\n")[0]).rstrip(".") or "it cannot be read"
