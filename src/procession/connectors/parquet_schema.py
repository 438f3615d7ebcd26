"""Determines the schema of a lake table: from a schema file, or inferred from the first JSON records.

Invariant: a schema does not change once the table exists. A type is inferred only if all records agree. A schema file
is a JSON object of column names and types:

    {"id": "int64 not null", "at": "timestamp", "price": "decimal(10,2)", "tags": ["string"], "buyer": {"id": "int64"}}

Upstream: the options of `procession sink parquet|delta|iceberg`; downstream: `connectors/parquet_columns`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from procession.errors import ConfigError, RecordError

COLUMNS_MAX = 10_000
DEPTH_MAX = 32
"""Maximum nesting of lists and objects."""
SCHEMA_FILE_BYTES_MAX = 4 * 1024 * 1024

TYPES: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
"""Names of types in a schema file. A `timestamp` is an instant in UTC, a `timestamp_ntz` has no time zone."""

_DECIMAL = re.compile(r"decimal\((\d{1,2}), ?(\d{1,2})\)")
_NOT_NULL = re.compile(r"(.*\S)\s+not null", re.IGNORECASE)


def load_schema(path: Path) -> pa.Schema:
    """Return the schema of a schema file. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            text = file.read(SCHEMA_FILE_BYTES_MAX + 1)
        if len(text) > SCHEMA_FILE_BYTES_MAX:
            raise ValueError(f"it has more than {SCHEMA_FILE_BYTES_MAX} bytes")
        columns = json.loads(text)
        if not isinstance(columns, dict) or not columns:
            raise ValueError("it is not an object of column names and types")
        return pa.schema(_fields(columns, 0))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            f"Cannot read the schema of {path}: {reason}.",
            next_step=f'Write an object such as {{"id": "int64 not null", "name": "string"}}; types: {_type_names()}.',
        ) from error


def _type_names() -> str:
    return ", ".join([*TYPES, 'decimal(P,S), a list as ["TYPE"] and an object as {"NAME": "TYPE"}'])


def _fields(columns: dict[str, Any], depth: int) -> list[pa.Field]:
    if len(columns) > COLUMNS_MAX or depth > DEPTH_MAX:
        raise ValueError(f"it has more than {COLUMNS_MAX} columns, or is nested more than {DEPTH_MAX} deep")
    return [_field(name, declared, depth) for name, declared in columns.items()]


def _field(name: str, declared: Any, depth: int) -> pa.Field:
    is_required = isinstance(declared, str) and (found := _NOT_NULL.fullmatch(declared)) is not None
    kind = found[1] if is_required and found else declared
    return pa.field(name, _type(name, kind, depth), nullable=not is_required)


def _type(name: str, declared: Any, depth: int) -> pa.DataType:
    match declared:
        case str() if declared in TYPES:
            return TYPES[declared]
        case str() if found := _DECIMAL.fullmatch(declared):
            return pa.decimal128(int(found[1]), int(found[2]))
        case [element]:
            return pa.list_(_type(name, element, depth + 1))
        case dict() if declared:
            return pa.struct(_fields(declared, depth + 1))
    raise ValueError(f"column {name} has the type {json.dumps(declared)[:80]}")


def inferred_schema(payloads: Iterable[bytes]) -> pa.Schema:
    """Return the schema of JSON objects: bool, int64, float64 (where numbers have fractions), string, list and struct.

    A string is always a string, even if it contains a date or a number. Raises RecordError if the records do not
    determine a type, or disagree.
    """
    merged: dict[str, Any] = {}
    for payload in payloads:
        try:
            record = json.loads(payload)
        except (ValueError, RecursionError) as error:
            raise _unclear(f"A record is not JSON: {payload[:80]!r} ({error}).") from error
        if not isinstance(record, dict):
            raise _unclear(f"A record is not a JSON object: {payload[:80]!r}.")
        _merge_objects(merged, record, "", 0)
    return pa.schema(_closed(merged, ""))


def _merge_objects(merged: dict[str, Any], record: dict[str, Any], path: str, depth: int) -> None:
    if len(record) > COLUMNS_MAX or depth > DEPTH_MAX:
        raise _unclear(f"A record has more than {COLUMNS_MAX} fields, or is nested more than {DEPTH_MAX} deep.")
    for name, value in record.items():
        merged[name] = _merge(merged.get(name), value, f"{path}{name}", depth)


def _merge(found: Any, value: Any, path: str, depth: int) -> Any:
    """Combine the inferred type of a field with that of another value. A type is None while unknown, a list for
    lists, or a dict for objects."""
    match value:
        case None:
            return found
        case dict():
            known = {} if found is None else found
            if not isinstance(known, dict):
                raise _disagree(path)
            _merge_objects(known, value, f"{path}.", depth + 1)
            return known
        case list():
            known = [None] if found is None else found
            if not isinstance(known, list):
                raise _disagree(path)
            for element in value:
                known[0] = _merge(known[0], element, f"{path}[]", depth + 1)
            return known
    kind = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}[type(value)]
    if found is None or found == kind:
        return kind
    if isinstance(found, pa.DataType) and {found, kind} == {pa.int64(), pa.float64()}:
        return pa.float64()
    raise _disagree(path)


def _closed(merged: dict[str, Any], path: str) -> list[pa.Field]:
    return [pa.field(name, _closed_type(known, f"{path}{name}")) for name, known in merged.items()]


def _closed_type(known: Any, path: str) -> pa.DataType:
    match known:
        case [element]:
            return pa.list_(_closed_type(element, f"{path}[]"))
        case dict() if known:
            return pa.struct(_closed(known, f"{path}."))
        case pa.DataType():
            return known
    raise _unclear(f"The field {path} is empty in all records that the schema is inferred from.")


def _disagree(path: str) -> RecordError:
    return _unclear(f"The field {path} has values of different types in the records that the schema is inferred from.")


def _unclear(sentence: str) -> RecordError:
    return RecordError(sentence, next_step="Declare the columns in a schema file (--schema FILE), then start again.")
